"""A shop whose pools are all busy at once: what the screenshots of the dashboard show.

`python -m tools.lively_store` serves it until Ctrl-C, for a look by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import sys
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import uvicorn

from millpond import (
    BoundCall,
    Context,
    GiveUp,
    Millpond,
    PoolFull,
    Retry,
    bounded,
    fair_round_robin,
    priority,
)
from millpond.server import app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from millpond import Pool

TENANTS = ("acme", "borealis", "cobalt", "delphi", "ember")
WEIGHTS = (9, 4, 3, 2, 1)
dice = random.Random(7)  # noqa: S311 - seeded randomness is the point


class Shop:
    """The pools of the shop, and what keeps them busy."""

    def __init__(self, url: str) -> None:
        self.mp = mp = Millpond(url)
        fleet = mp.budget("mail-provider", 24)
        self.mail = mp.pool(
            "mail",
            max_concurrent=16,
            max_per_key=8,
            queue=fair_round_robin("tenant"),
            retry=Retry(attempts=3, initial=1.0),
            budgets=[fleet],
        )
        self.newsletter = mp.pool("newsletter", max_concurrent=8, budgets=[fleet])
        self.thumbnails = mp.pool(
            "thumbnails", max_concurrent=12, backpressure=bounded(400, on_full="fail_submitter")
        )
        self.invoices = mp.pool("invoices", lanes=6)
        self.crawl = mp.pool("crawl", max_concurrent=10)
        self.exports = mp.pool("exports", max_concurrent=4, queue=priority())
        self.search = mp.pool("search-index", max_concurrent=8)
        self.reports = mp.pool("reports", max_concurrent=2)
        self._declare()

    def _declare(self) -> None:
        self._declare_mail()
        self._declare_pictures()
        self._declare_papers()
        self._declare_crawl()
        self._declare_times()

    def _declare_mail(self) -> None:
        @self.mail.task(key="tenant")
        async def send_mail(to: str, tenant: str) -> str:
            await asyncio.sleep(dice.uniform(0.1, 0.9))
            if dice.random() < 0.015:
                raise GiveUp(f"550 mailbox {to!r} does not exist")
            if dice.random() < 0.04:
                raise TimeoutError(f"smtp-{dice.randint(1, 4)} did not answer in 5 s")
            return f"sent to {to} for {tenant}"

        @self.newsletter.task
        async def send_issue(number: int, reader: str) -> str:
            await asyncio.sleep(dice.uniform(0.2, 0.6))
            return f"issue {number} for {reader}"

        self.send_mail, self.send_issue = send_mail, send_issue

    def _declare_pictures(self) -> None:
        @self.thumbnails.task(retry=Retry.never())
        async def make_thumbnail(picture: str, width: int) -> dict[str, int]:
            await asyncio.sleep(dice.uniform(0.05, 0.4))
            if dice.random() < 0.02:
                raise ValueError(f"cannot identify image file '{picture}'")
            return {"width": width, "height": width * 3 // 4}

        @self.search.task
        async def index_page(page: str) -> int:
            await asyncio.sleep(dice.uniform(0.05, 0.2))
            return len(page)

        self.make_thumbnail, self.index_page = make_thumbnail, index_page

    def _declare_papers(self) -> None:
        @self.invoices.task(key="customer")
        async def print_invoice(customer: str, number: int) -> str:
            await asyncio.sleep(dice.uniform(0.2, 0.8))
            return f"{customer}-{number:05}.pdf"

        @self.exports.task
        async def export_orders(ctx: Context, tenant: str, rows: int) -> str:
            for part in range(20):
                await ctx.progress(part / 20, f"{rows * part // 20:,} of {rows:,} rows")
                await asyncio.sleep(dice.uniform(0.3, 1.2))
            return f"{tenant}.csv"

        @self.reports.task
        async def nightly_report(kind: str) -> str:
            await asyncio.sleep(1)
            return f"{kind}.pdf"

        self.print_invoice, self.export_orders = print_invoice, export_orders
        self.nightly_report = nightly_report

    def _declare_crawl(self) -> None:
        @self.crawl.task(retry=Retry(attempts=2, initial=0.5))
        async def fetch_page(ctx: Context, address: str, depth: int) -> int:
            await asyncio.sleep(dice.uniform(0.1, 0.5))
            if dice.random() < 0.03:
                raise ConnectionError(f"host-{dice.randint(10, 99)}.example refused the connection")
            if depth < 5:
                links = [f"{address}/{n}" for n in range(dice.randint(1, 4))]
                await ctx.submit_many(visit(one, depth + 1) for one in links)
            return depth

        def visit(address: str, depth: int = 0) -> BoundCall[int]:
            return fetch_page.bind(address, depth)

        self.visit = visit

    def _declare_times(self) -> None:
        @self.reports.task
        async def welcome(event: dict[str, str]) -> str:
            await asyncio.sleep(0.2)
            return f"welcome, {event['name']}"

        berlin = "Europe/Berlin"
        self.mp.cron(
            "nightly-report", "30 2 * * *", tz=berlin, task=self.nightly_report.bind("nightly")
        )
        self.mp.cron(
            "weekly-digest", "0 8 * * mon", tz=berlin, task=self.nightly_report.bind("weekly")
        )
        self.mp.cron("sweep", every=300, task=self.nightly_report.bind("sweep"))
        self.mp.trigger("welcome-mail", on="user.created", into=self.reports, task=welcome)

    async def _mail(self) -> None:
        number = 0
        while True:
            number += 1
            (tenant,) = dice.choices(TENANTS, WEIGHTS)
            labels = {"campaign": dice.choice(("spring", "receipt"))}
            mail = self.send_mail.options(labels=labels)
            await mail.submit(f"reader-{number}@{tenant}.example", tenant)
            await asyncio.sleep(dice.expovariate(24))

    async def _pictures(self) -> None:
        number = 0
        while True:
            number += 1
            with contextlib.suppress(PoolFull):
                await self.make_thumbnail.submit(f"upload-{number:05}.png", 320)
            await asyncio.sleep(dice.expovariate(30))

    async def _papers(self) -> None:
        number = 0
        while True:
            number += 1
            await self.print_invoice.submit(f"customer-{dice.randint(1, 9)}", number)
            if number % 14 == 1:
                await self.export_orders.submit(dice.choice(TENANTS), dice.randint(20, 90) * 1000)
            await asyncio.sleep(dice.expovariate(5))

    async def _crawls(self) -> None:
        await asyncio.gather(*(self._crawl(site) for site in ("shop", "blog", "docs")))

    async def _crawl(self, site: str) -> None:
        for week in range(41, 99):
            start = self.visit(f"https://{site}.example")
            await self.crawl.drain([start], run=f"{site}-week-{week}")

    async def _others(self) -> None:
        await self.search.pause()
        for number in range(180):
            await self.index_page.submit(f"/products/{number}")
        for number in range(12):
            later = self.nightly_report.options(delay=3600 * (number + 1))
            await later.submit("quarter")
        number = 0
        while True:
            number += 1
            event = {"name": f"user-{number}", "plan": "team"}
            await self.mp.emit("user.created", event, event_id=f"user-{number}")
            await self.send_issue.submit(12, f"reader-{number}")
            await asyncio.sleep(1.5)

    @asynccontextmanager
    async def open_for_business(self) -> AsyncIterator[None]:
        """Run the workers and all that keeps them busy."""
        busy: tuple[Callable[[], Awaitable[None]], ...] = (
            self._mail,
            self._pictures,
            self._papers,
            self._crawls,
            self._others,
        )
        pools: tuple[tuple[Pool, ...], ...] = (
            (self.mail, self.newsletter, self.invoices, self.reports),
            (self.thumbnails, self.crawl, self.exports, self.search),
        )
        async with self.mp, AsyncExitStack() as stack:
            for some in pools:
                await stack.enter_async_context(self.mp.worker(some))
            running = [asyncio.ensure_future(one()) for one in busy]
            try:
                yield
            finally:
                for one in running:
                    one.cancel()
                await asyncio.gather(*running, return_exceptions=True)


@asynccontextmanager
async def served(port: int = 0, *, shop: bool = True) -> AsyncIterator[str]:
    """Serve the dashboard of a busy shop, or of an empty store, and yield its address."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        busy = Shop("sqlite:///shop.db") if shop else None
        mp = busy.mp if busy else Millpond("sqlite:///empty.db")
        listening = socket.create_server(("127.0.0.1", port))
        config = uvicorn.Config(
            app(mp, allow_actions=True), log_level="warning", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        async with busy.open_for_business() if busy else mp:
            serving = asyncio.ensure_future(server.serve([listening]))
            try:
                yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
            finally:
                server.should_exit = True
                await serving


async def main() -> None:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8642
    async with served(port) as address:
        print(address)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
