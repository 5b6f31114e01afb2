"""Starlette: the same with a plain route. `uvicorn starlette_app:app` serves it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from millpond import Millpond

mp = Millpond("sqlite:///work.db", work=True)
mail = mp.pool("mail", max_concurrent=4)


@mail.task
async def send(to: str) -> str:
    return f"sent to {to}"


@asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[None]:
    async with mp:
        yield


async def submit_mail(request: Request) -> JSONResponse:
    handle = await send.submit(request.query_params["to"])
    return JSONResponse({"task": str(handle.id)}, 202)


async def read_mail(request: Request) -> JSONResponse:
    handle = await mp.handle(int(request.path_params["task"]), of=send)
    return JSONResponse({"result": await handle})


app = Starlette(
    lifespan=lifespan,
    routes=[
        Route("/mails", submit_mail, methods=["POST"]),
        Route("/mails/{task}", read_mail),
    ],
)
