"""`make gateway`: a model gets ten times the requests it allows, without and with a gateway.

It prints both, draws them with --plot, and fails if the gateway breaks one of its promises.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from docs.examples.llm_gateway.chart import Side, drawn
from docs.examples.llm_gateway.gateway import Gateway
from docs.examples.llm_gateway.judge import Check, Figures, figures, judged
from docs.examples.llm_gateway.limits import Limits
from docs.examples.llm_gateway.naive import Naive
from docs.examples.llm_gateway.traffic import flood
from docs.examples.llm_gateway.wire import HttpModel, serving
from docs.examples.llm_gateway.worker import workers
from verify.servers.postgres import serve

WORDS = {
    "overload": ("offered, times what the rate allows", "{:.1f}"),
    "worst_share": ("worst part of a fair share", "{:.0%}"),
    "answered": ("answered", "{:,}"),
    "refused": ("refused at once", "{:,}"),
    "expired": ("given up after waiting", "{:,}"),
    "failed": ("failed", "{:,}"),
    "median_wait": ("wait of the admitted, median", "{:.2f} s"),
    "late_wait": ("wait of the admitted, p99", "{:.2f} s"),
    "most_asked": ("most tokens asked for in a minute", "{:,}"),
    "over_budget": ("429s for the tokens", "{:,}"),
    "overloaded": ("429s for other reasons", "{:,}"),
    "tokens_a_second": ("tokens used a second", "{:,.0f}"),
}


@contextmanager
def store_at(store: str) -> Iterator[str]:
    """Yield the URL of a new store of a kind, or of a named one."""
    if "://" in store:
        yield store
    elif store == "postgres":
        with serve({}) as server, server.database() as url:
            yield url
    else:
        with tempfile.TemporaryDirectory(prefix="millpond-gateway-") as folder:
            yield f"sqlite:///{folder}/work.db"


async def before(model: HttpModel, limits: Limits, seconds: float) -> Side:
    """Flood the naive client."""
    book = await flood(Naive(model, limits), limits, seconds)
    return Side("before", book, await model.book())


async def after(
    url: str, model: HttpModel, limits: Limits, seconds: float, count: int
) -> tuple[Side, Figures, list[Check]]:
    """Flood the gateway, and check its promises."""
    gateway = Gateway(url, model, limits)
    async with gateway.mp:
        await gateway.pool.snapshot()
        async with workers(count, url, model.port, limits):
            book = await flood(gateway, limits, seconds)
        entries = await model.book()
        records = [record async for record in gateway.mp.audit()]
    found, checks = judged(gateway, book, entries, records)
    return Side("after", book, entries), found, checks


async def run(given: argparse.Namespace) -> int:
    """Measure both, print, draw, and return whether all promises were kept."""
    limits = Limits()
    with store_at(given.store) as url:
        async with serving(limits) as model:
            naive = await before(model, limits, given.seconds * 0.6)
            await model.reset()
            ours, found, checks = await after(url, model, limits, given.seconds, given.workers)
    was = figures(naive.book, naive.model, limits)
    if given.json:
        print(json.dumps({"before": asdict(was), "after": asdict(found)}))
    else:
        show(was, found, checks)
    if given.plot is not None:
        given.plot.write_text(drawn(naive, ours, limits))
    return 0 if all(check.kept for check in checks) else 1


def show(was: Figures, found: Figures, checks: list[Check]) -> None:
    """Print the figures, and whether each promise was kept."""
    print(f"{'':38}{'before':>12}{'after':>12}")
    for name, (words, form) in WORDS.items():
        columns = (form.format(getattr(side, name)) for side in (was, found))
        print(f"{words:38}" + "".join(f"{column:>12}" for column in columns))
    print()
    for check in checks:
        print(f"{'kept  ' if check.kept else 'BROKEN'} {check.promise}: {check.found}")


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="make gateway", description=__doc__)
    parser.add_argument("--store", default="sqlite", help="sqlite, postgres, or a URL")
    parser.add_argument("--seconds", type=float, default=45.0, help="of overload")
    parser.add_argument("--workers", type=int, default=2, help="processes that call the model")
    parser.add_argument("--plot", type=Path, help="draw it into this SVG file")
    parser.add_argument("--json", action="store_true", help="print data instead of a table")
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
