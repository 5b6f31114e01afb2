"""Submit by name: a process without the code of a function asks another to run it."""

import asyncio

from millpond import Millpond

URL = "sqlite:///names.db"


def application() -> Millpond:
    """The worker's side: it has the code."""
    mp = Millpond(URL)
    mail = mp.pool("mail", max_concurrent=8)

    @mail.task
    async def send(to: str, copies: int = 1) -> str:
        return f"sent {copies} to {to}"

    return mp


async def main() -> None:
    app = application()
    async with app, Millpond(URL) as mp:
        handle = await mp.submit("mail", "send", {"to": "ada@example.com"}, priority=5)
        async with app.worker():
            print(await handle)


asyncio.run(main())
