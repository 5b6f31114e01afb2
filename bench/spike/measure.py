"""Timed rounds over every combination, interleaved, so that a slow minute hits all alike."""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections import defaultdict
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

from common import Backend, PoolSpec, Settle, Store, Task, keys_for, median, print_table

CLAIMERS = 4
PAYLOAD = b'{"args": [1984, "acme"], "kwargs": {"depth": 3, "force": false}, "v": 1}'
RESULT = b'{"ok": true}'
FOREVER = 2**60
fork = multiprocessing.get_context("fork")


class TimedBackend(Backend, Protocol):
    def settle_in(self, site: str) -> None: ...
    def log_bytes(self, site: str) -> int | None: ...


class Site(NamedTuple):
    """One pool with its backlog."""

    name: str
    spec: PoolSpec
    size: int
    keys: int


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 1_000_000])
    parser.add_argument("--keys", type=int, nargs="+", default=[1, 10_000])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--histories", type=int, default=40, help="random histories per pool kind")
    parser.add_argument(
        "--tasks", type=int, default=5_000, help="tasks per contest of four claimers"
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, few rounds: under a minute"
    )
    parser.add_argument("--skip-proofs", action="store_true")
    parser.add_argument("--plans", action="store_true", help="print the plans")
    parser.add_argument("--json", help="write the report here instead of printing it")
    parser.add_argument("--dir", help="where the scratch data goes")


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.rounds = [1_000, 20_000], 3
        options.histories, options.tasks = 8, 1_500
    return options


def sites_for(options: argparse.Namespace) -> list[Site]:
    sites = []
    for size in options.sizes:
        sites.append(Site(f"fifo-{size}", PoolSpec("fifo", 400), size, 1))
        for keys in options.keys:
            limit = 2 if keys > 1000 else 400
            spec = PoolSpec("fair", 400, fair=True, per_key=limit)
            sites.append(Site(f"fair-{size}-{keys}", spec, size, keys))
    return sites


def fill(store: Store, count: int, keys: int, first: int, chunk: int = 1000) -> float:
    """Submit in bulk; seconds taken."""
    names = keys_for(count, keys, first)
    started = time.perf_counter()
    for at in range(0, count, chunk):
        batch = [
            Task(first + at + i + 1, name, payload=PAYLOAD)
            for i, name in enumerate(names[at : at + chunk])
        ]
        store.submit(batch, 1)
    return time.perf_counter() - started


def run_steps(store: Store, worker: int, batch: int, quota: int) -> int:
    """Lease and settle quota tasks, fused; how many were."""
    settles: list[Settle] = []
    count = 0
    while count < quota:
        claims = store.step(worker, settles, min(batch, quota - count), 2).claims
        settles = [Settle(c.id, c.attempt, c.token, result=RESULT) for c in claims]
        if not claims:
            break
        count += len(claims)
    store.step(worker, settles, 0, 2)
    return count


def claimer(backend: Backend, sites: list[Site], worker: int, pipe: Connection) -> None:
    """A process that claims when told, over connections it keeps."""
    stores: dict[str, Store] = {}
    specs = {site.name: site.spec for site in sites}
    while (order := pipe.recv()) is not None:
        name, batch, quota = order
        if name not in stores:
            stores[name] = backend.open(name, specs[name])
            stores[name].renew(worker, FOREVER)
        if quota:
            started = time.monotonic()
            count = run_steps(stores[name], worker, batch, quota)
            pipe.send((started, time.monotonic(), count))
        else:
            pipe.send(None)
    for store in stores.values():
        store.close()


def prepare(backend: TimedBackend, sites: list[Site]) -> dict[str, Store]:
    stores: dict[str, Store] = {}
    for site in sites:
        backend.make(site.name, site.spec)
        stores[site.name] = backend.open(site.name, site.spec)
        took = fill(stores[site.name], site.size, site.keys, 0)
        backend.settle_in(site.name)
        print(f"loaded {site.name}: {site.size / took:,.0f}/s", flush=True)
    return stores


def measure(backend: TimedBackend, options: argparse.Namespace, title: str) -> dict[str, Any]:
    sites = sites_for(options)
    stores = prepare(backend, sites)
    pipes, processes = [], []
    for worker in range(1, CLAIMERS + 1):
        mine, theirs = fork.Pipe()
        process = fork.Process(target=claimer, args=(backend, sites, worker, theirs))
        process.start()
        pipes.append(mine)
        processes.append(process)
    rates: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    logs: dict[tuple[str, int], list[float]] = defaultdict(list)
    submits: dict[tuple[str, str], list[float]] = defaultdict(list)
    used = {site.name: site.size for site in sites}
    for site in sites:
        for pipe in pipes:
            pipe.send((site.name, 0, 0))
            pipe.recv()
    for turn in range(options.rounds + 1):
        for site in sites:
            for claimers in (1, CLAIMERS):
                for batch in (10, 100):
                    before = backend.log_bytes(site.name)
                    rate, count = one_round(pipes[:claimers], site, batch)
                    after = backend.log_bytes(site.name)
                    took = fill(stores[site.name], count, site.keys, used[site.name])
                    used[site.name] += count
                    if turn == 0:
                        continue
                    rates[site.name, claimers, batch].append(rate)
                    submits[site.name, "bulk"].append(count / took)
                    if before is not None and after is not None and claimers == 1:
                        logs[site.name, batch].append((after - before) / count)
            took = fill(stores[site.name], 100, site.keys, used[site.name], chunk=1)
            used[site.name] += 100
            submits[site.name, "single"].append(100 / took)
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(None)
        process.join()
    for store in stores.values():
        store.close()
    return report(sites, rates, submits, logs, title)


def one_round(pipes: list[Connection], site: Site, batch: int) -> tuple[float, int]:
    quota = min(8000 if batch == 100 else 1600, site.size * 8 // 10) // len(pipes)
    for pipe in pipes:
        pipe.send((site.name, batch, quota))
    answers = [pipe.recv() for pipe in pipes]
    count = sum(a[2] for a in answers)
    return count / (max(a[1] for a in answers) - min(a[0] for a in answers)), count


def report(
    sites: list[Site],
    rates: dict[tuple[str, int, int], list[float]],
    submits: dict[tuple[str, str], list[float]],
    logs: dict[tuple[str, int], list[float]],
    title: str,
) -> dict[str, Any]:
    steps: list[dict[str, object]] = []
    intake: list[dict[str, object]] = []
    for site in sites:
        row: dict[str, object] = {"pool": site.spec.name, "queued": site.size, "keys": site.keys}
        intake.append(
            row
            | {f"{how} /s": f"{median(submits[site.name, how]):,.0f}" for how in ("bulk", "single")}
        )
        for claimers in (1, CLAIMERS):
            for batch in (10, 100):
                values = rates[site.name, claimers, batch]
                row[f"{claimers}x{batch}"] = f"{median(values):,.0f}"
        if logs:
            row |= {f"log B/task {b}": f"{median(logs[site.name, b]):,.0f}" for b in (10, 100)}
        steps.append(row)
    ratios = ratio_rows(sites, rates)
    print_table(f"{title}: fused step, tasks/s (claimers x batch)", steps)
    print_table(f"{title}: submit, tasks/s", intake)
    print_table(f"{title}: ratios", ratios)
    spread = {
        f"{name} {claimers}x{batch}": [round(min(v)), round(median(v)), round(max(v))]
        for (name, claimers, batch), v in rates.items()
    }
    return {"steps": steps, "submit": intake, "ratios": ratios, "min, median, max": spread}


def ratio_rows(
    sites: list[Site], rates: dict[tuple[str, int, int], list[float]]
) -> list[dict[str, object]]:
    """Fair against fifo of the same size; the largest backlog against the middle one."""
    rows: list[dict[str, object]] = []
    cells = [(claimers, batch) for claimers in (1, CLAIMERS) for batch in (10, 100)]

    def add(what: str, over: str, under: str) -> None:
        row: dict[str, object] = {"ratio": what}
        for claimers, batch in cells:
            value = median(rates[over, claimers, batch]) / median(rates[under, claimers, batch])
            row[f"{claimers}x{batch}"] = f"{value:.2f}"
        rows.append(row)

    sizes = sorted({site.size for site in sites})
    for site in sites:
        if site.spec.fair:
            what = f"fair, {site.keys} keys / fifo, {site.size} queued"
            add(what, site.name, f"fifo-{site.size}")
    for site in sites:
        if site.size == sizes[-1]:
            other = site.name.replace(str(sizes[-1]), str(sizes[-2]), 1)
            add(
                f"{site.spec.name}, {site.keys} keys: {sizes[-1]} / {sizes[-2]} queued",
                site.name,
                other,
            )
    return rows
