"""The model over HTTP on the loopback interface: a server with three verbs, and its client."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from docs.examples.llm_gateway.limits import Limits
from docs.examples.llm_gateway.model import Busy, Entry, FakeModel

HOST = "127.0.0.1"
REASONS = {200: "OK", 404: "Not Found", 429: "Too Many Requests"}

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def read(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], Any]:
    """Return the first line, the headers and the body of what comes next."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return head[0], headers, json.loads(body) if body else None


def written(first: str, body: object, **headers: str) -> bytes:
    """Return a message as it is sent."""
    content = json.dumps(body).encode()
    named = {"Content-Type": "application/json", "Content-Length": str(len(content)), **headers}
    lines = [first, *(f"{name.replace('_', '-')}: {text}" for name, text in named.items())]
    return "\r\n".join([*lines, "", ""]).encode() + content


class ModelServer:
    """A fake model behind HTTP: POST /ask, GET /book, POST /reset."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.model = FakeModel(limits)

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection, request after request."""
        try:
            while True:
                first, _, body = await read(reader)
                writer.write(await self.answer(first.split(" ")[1], body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, path: str, body: Any) -> bytes:  # noqa: ANN401 - JSON
        """Answer one request."""
        match path:
            case "/ask":
                try:
                    tokens = await self.model.ask(**body)
                except Busy as busy:
                    return _response(429, {"why": busy.why}, Retry_After=f"{busy.retry_after:.3f}")
                return _response(200, {"tokens": tokens})
            case "/book":
                return _response(200, self.model.book)
            case "/reset":
                self.model = FakeModel(self.limits)
                return _response(200, None)
            case _:
                return _response(404, None)


def _response(status: int, body: object, **headers: str) -> bytes:
    return written(f"HTTP/1.1 {status} {REASONS[status]}", body, **headers)


class HttpModel:
    """The model as a client sees it; connections are kept and used again."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._idle: list[Streams] = []

    async def ask(self, tenant: str, question: int, most: int) -> int:
        """Ask the model, or raise Busy with its Retry-After."""
        request = {"tenant": tenant, "question": question, "most": most}
        status, headers, body = await self._call("POST", "/ask", request)
        if status == 429:
            raise Busy(body["why"], float(headers["retry-after"]))
        return int(body["tokens"])

    async def book(self) -> list[Entry]:
        """Return all that the model was asked."""
        return [Entry(*entry) for entry in (await self._call("GET", "/book"))[2]]

    async def reset(self) -> None:
        """Let it forget everything."""
        await self._call("POST", "/reset")

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop()[1].close()

    async def _call(
        self, verb: str, path: str, body: object = None
    ) -> tuple[int, dict[str, str], Any]:
        reader, writer = self._idle.pop() if self._idle else await self._open()
        try:
            writer.write(written(f"{verb} {path} HTTP/1.1", body, Host=HOST))
            first, headers, answer = await read(reader)
        except BaseException:
            writer.close()
            raise
        self._idle.append((reader, writer))
        return int(first.split(" ")[1]), headers, answer

    async def _open(self) -> Streams:
        return await asyncio.open_connection(HOST, self.port, limit=1 << 20)


@asynccontextmanager
async def serving(limits: Limits) -> AsyncIterator[HttpModel]:
    """Run the model in a process of its own, and give its client."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, json.dumps(limits.plain())),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    client = HttpModel(int(await process.stdout.readline()))
    try:
        yield client
    finally:
        client.close()
        process.kill()
        await process.wait()


async def main(limits: Limits) -> None:
    """Serve until the process that asked for it is gone."""
    server = await asyncio.start_server(ModelServer(limits).talk, HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(Limits(**json.loads(sys.argv[1]))))
