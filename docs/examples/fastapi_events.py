"""FastAPI: a run's live progress by server-sent events, and a health check."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse

from millpond import Millpond, RunOutcome
from millpond.errors import StoreError

mp = Millpond("sqlite:///work.db", work=True)  # work=True: this process runs the tasks, too
imports = mp.pool("imports", max_concurrent=4)


@imports.task
async def load(row: int) -> int:
    await asyncio.sleep(0.01)
    return row


@imports.task
async def done(outcome: RunOutcome, name: str) -> None:
    print(f"{name}: {outcome.completed} of {outcome.total} rows")


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    async with mp:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/imports/{name}", status_code=202)
async def start(name: str, rows: int) -> dict[str, str]:
    await imports.when_all(load.each(range(rows)), then=done.bind(name), run=name)
    return {"events": f"/imports/{name}/events"}


async def changes(name: str) -> AsyncIterator[str]:
    before = None
    while before is None or not before.finished:
        report = await imports.report(name)
        if report is None:
            return
        if report != before:
            counts = {"ended": report.completed + report.failed, "of": report.total}
            yield f"data: {json.dumps(counts)}\n\n"
            before = report
        await asyncio.sleep(0.2)


@app.get("/imports/{name}/events")
async def events(name: str) -> StreamingResponse:
    return StreamingResponse(changes(name), media_type="text/event-stream")


@app.get("/health")
async def health() -> dict[str, float]:
    try:
        snapshot = await imports.snapshot()
    except StoreError as away:
        raise HTTPException(503, away.message) from away
    return {"waiting": snapshot.queued, "oldest": snapshot.oldest_queued_age or 0.0}
