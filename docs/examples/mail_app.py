"""An application whose tasks are run by workers: `millpond worker mail_app:mp`."""

import asyncio

from millpond import Millpond

mp = Millpond("sqlite:///mail.db")
mail = mp.pool("mail", max_concurrent=8)


@mail.task
async def send(to: str) -> str:
    await asyncio.sleep(0.01)  # the slow part
    return f"sent to {to}"


async def main() -> None:
    async with mp:
        handle = await send.submit("ada@example.com")  # stored: it survives this process
        print(handle.status)


if __name__ == "__main__":  # a worker imports this file
    asyncio.run(main())
