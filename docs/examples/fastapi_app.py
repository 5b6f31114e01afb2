"""FastAPI: the lifespan opens the Millpond. `uvicorn fastapi_app:app` serves it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException

from millpond import Context, Handle, Millpond, PoolFull, UnknownTask, bounded

mp = Millpond("sqlite:///work.db", work=True)  # work=True: this process runs the tasks, too
mail = mp.pool("mail", max_concurrent=4, backpressure=bounded(1000, on_full="fail_submitter"))


@mail.task
async def send(ctx: Context, to: str) -> str:
    await ctx.progress(0.5, "connected")
    return f"sent to {to}"


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    async with mp:
        yield


app = FastAPI(lifespan=lifespan)


def millpond() -> Millpond:
    """Return the Millpond; a test overrides this dependency."""
    return mp


@app.post("/mails", status_code=202)
async def submit_mail(to: str) -> dict[str, str]:
    try:
        handle = await send.submit(to)
    except PoolFull as full:
        raise HTTPException(503, "too many mails wait", {"Retry-After": "1"}) from full
    return {"task": str(handle.id)}


@app.get("/mails/{task}/status")
async def mail_status(
    task: int, pond: Annotated[Millpond, Depends(millpond)]
) -> dict[str, str | float]:
    try:
        handle = await pond.handle(task, of=send)
    except UnknownTask as unknown:
        raise HTTPException(404, unknown.message) from unknown
    fraction, text = handle.reported or (0.0, "")  # what ctx.progress() said last
    return {"status": handle.status, "done": fraction, "doing": text}


@app.get("/mails/{task}")
async def read_mail(task: int, pond: Annotated[Millpond, Depends(millpond)]) -> dict[str, str]:
    handle: Handle[str] = await pond.handle(task, of=send)
    return {"result": await handle}
