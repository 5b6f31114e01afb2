"""A Millpond with some of everything, for tests that look at every page."""

import asyncio
from typing import TypeAlias

from millpond import Context, GiveUp, Millpond, Retry, fair_round_robin

Note: TypeAlias = dict[str, str | int] | str

HOSTILE: dict[str, str | int] = {
    "note": "<script>window.broken = 1</script>",
    "picture": '<img src=x onerror="window.broken = 2">',
    "turned": "user\u202egnp.exe",
    "hidden": "zero\u200bwidth\u0007bell",
    "large": 9007199254740993,
    "password": "hunter2",
}
"""What a payload must not do to a page."""


class Shop:
    """Its pools and functions. Mails to `broken` fail until `mended` is set."""

    def __init__(self, url: str | None = None) -> None:
        self.mp = mp = Millpond() if url is None else Millpond(url, work=True)
        self.mended = False
        self.mail = mp.pool("mail", max_concurrent=4, queue=fair_round_robin("tenant"))
        self.slow = mp.pool("slow", max_concurrent=2, retry=Retry.never())
        self.release = asyncio.Event()

        @self.mail.task(key="tenant", retry=Retry.never())
        async def send(to: str, tenant: str) -> str:
            if to == "broken" and not self.mended:
                raise GiveUp(f"mailbox {to!r} of {tenant} <b>does not</b> exist")
            return f"sent to {to}"

        @self.slow.task
        async def wait(ctx: Context, note: Note) -> Note:
            await ctx.progress(0.4, "two of five")
            await self.release.wait()
            return note

        @self.slow.task
        async def follow(event: object) -> None:
            """Stand for what a trigger does."""

        @self.slow.task
        async def grow(ctx: Context, levels: int) -> None:
            if levels:
                await ctx.submit_many(grow.bind(levels - 1) for _ in range(2))

        self.send, self.wait, self.follow, self.grow = send, wait, follow, grow
        mp.cron("hourly", every=3600, task=wait.bind("hourly"))
        mp.trigger("newcomers", on="user.created", into=self.slow, task=follow)

    async def furnish(self) -> None:
        """Put something on every page."""
        await self.slow.drain([self.grow.bind(1)], run="spring")
        for tenant in ("acme", "bolt"):
            for to in ("ada", "bob", "broken"):
                await (await self.send.submit(to, tenant)).wait()
        await self.wait.options(labels={"kind": "demo"}).submit(HOSTILE)
        await self.wait.submit("plain")
        await self.wait.options(delay=3600).submit("later")
        await self.mp.emit("user.created", {"name": "ada"}, event_id="ada")
