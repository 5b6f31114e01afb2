"""The collector: its output, read by Prometheus' own parser, and its size."""

import asyncio
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.parser import text_string_to_metric_families
from tests.pool.fleet import Fleet

from millpond import (
    Failed,
    Millpond,
    Outcome,
    PoolFull,
    Retry,
    bounded,
    fail_fast,
    ring_buffer,
)
from millpond.core.control import DeclareDead
from millpond.errors import ConfigError
from millpond.pool.internals import internals_of
from millpond.telemetry.names import OTHER
from millpond.telemetry.prometheus import Collector


class Scraped:
    """Metrics as Prometheus reads them."""

    def __init__(self, text: bytes) -> None:
        self.samples = [
            sample
            for family in text_string_to_metric_families(text.decode())
            for sample in family.samples
        ]

    def __getitem__(self, metric: tuple[str, dict[str, str]] | str) -> float:
        name, labels = metric if isinstance(metric, tuple) else (metric, {})
        (found,) = [
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return float(found)

    def by(self, name: str, label: str) -> dict[str, float]:
        """The values of a metric by one of its labels."""
        found: Counter[str] = Counter()
        for sample in self.samples:
            if sample.name == name:
                found[sample.labels[label]] += sample.value  # type: ignore[assignment]
        return dict(found)


async def scraped(collector: Collector) -> Scraped:
    return Scraped(await collector.text())


async def test_what_happened_is_there_to_be_read() -> None:
    """Depth by state, ends by status, attempts by outcome, waits and run times."""
    mp = Millpond()
    mail = mp.pool("mail", max_concurrent=1, retry=Retry.constant(10, attempts=2))
    collector = Collector(mp)
    answer = asyncio.Event()

    @mp.task
    async def on_end(outcome: Outcome) -> None:
        await answer.wait()

    @mail.task
    async def send(fail: bool = False) -> None:
        await asyncio.sleep(2)
        if fail:
            raise ConnectionError

    async with mp:
        await send.options(on_complete=on_end.bind()).submit()
        await send.submit(fail=True)
        await send.options(delay=100).submit()
        await asyncio.sleep(1)
        seen = await scraped(collector)
        assert {"ready": 1, "scheduled": 1, "parked": 0, "claimed": 0, "running": 1} == seen.by(
            "millpond_pool_tasks", "state"
        )
        assert 1 == seen["millpond_pool_oldest_waiting_seconds"]
        assert (1, 1, 1) == (
            seen["millpond_up"],
            seen["millpond_workers"],
            seen["millpond_pool_limit"],
        )
        assert 1 == seen["millpond_pool_wanted_slots"]
        await asyncio.sleep(30)
        seen = await scraped(collector)
        assert {"completed": 1, "failed": 1, "cancelled": 0, "rejected": 0} == seen.by(
            "millpond_pool_ended_tasks_total", "status"
        )
        assert 1 == seen["millpond_pool_dead_tasks"]
        assert {"completed": 1, "retry": 1, "failed": 1} == seen.by(
            "millpond_attempts_total", "outcome"
        )
        assert 3 == seen["millpond_submitted_tasks_total", {"pool": "mail"}]
        assert 1 == seen["millpond_pool_callbacks"]
        # Waited 0 s, 2 s and 0 s; the callback did not wait either, and has not ended.
        buckets = seen.by("millpond_task_wait_seconds_bucket", "le")
        assert (3, 3, 4, 4) == tuple(buckets[le] for le in ("0.005", "1", "2.5", "+Inf"))
        assert 2 == seen["millpond_task_wait_seconds_sum"]
        assert (3, 6) == (
            seen["millpond_task_run_seconds_count"],
            round(seen["millpond_task_run_seconds_sum"], 9),
        )
        assert 2 == seen["millpond_pool_wait_seconds", {"quantile": "0.99"}]
        assert 2 == seen["millpond_pool_run_seconds", {"quantile": "0.5"}]
        answer.set()
        await mail.purge()


async def test_rejections_are_counted_by_reason() -> None:
    """Refused, never stored, evicted, in whichever way it was submitted."""
    mp = Millpond()
    collector = Collector(mp)
    refusing = mp.pool("refusing", backpressure=bounded(1, on_full="fail_submitter"))
    newest = mp.pool("newest", backpressure=bounded(1, on_full="drop_newest"))
    oldest = mp.pool("oldest", backpressure=bounded(1, on_full="drop_oldest"))
    ring = mp.pool("ring", backpressure=ring_buffer(2))
    fast = mp.pool("fast", backpressure=fail_fast())

    @mp.task
    async def work(number: int) -> None: ...

    async with mp:
        for pool in mp.pools():
            await pool.pause()
        await refusing.submit(work.bind(0))
        with pytest.raises(PoolFull):
            await refusing.submit(work.bind(1))
        assert not await refusing.try_submit(work.bind(2))
        assert not await fast.try_submit(work.bind(0))
        await newest.submit_many(work.each(range(4)))
        for number in range(3):
            await oldest.submit(work.bind(number))
        await ring.submit_many(work.each(range(2)))
        await ring.submit_many(work.each(range(5)))
        seen = await scraped(collector)
        for pool in mp.pools():
            await pool.purge()
    rejected = {
        (sample.labels["pool"], sample.labels["reason"]): sample.value
        for sample in seen.samples
        if sample.name == "millpond_rejected_tasks_total"
    }
    assert {
        ("refusing", "queue_full"): 2,
        ("fast", "no_capacity"): 1,
        ("newest", "drop_newest_queue_full"): 3,
        ("oldest", "drop_oldest_queue_full"): 2,
        ("ring", "ring_buffer_drop_oldest"): 5,
    } == rejected
    stored = seen.by("millpond_submitted_tasks_total", "pool")
    # Of the five in one batch two are left; three of them were never stored.
    assert {"refusing": 1, "fast": 0, "newest": 1, "oldest": 3, "ring": 4} == stored


@pytest.mark.real_loop
async def test_tasks_of_one_transaction_are_counted_per_pool(tmp_path: Path) -> None:
    """Two pools that evict, in one transaction: each counts its own."""
    mp = Millpond(f"sqlite:///{tmp_path}/work.db")
    collector = Collector(mp)
    pools = [mp.pool(name, backpressure=ring_buffer(1)) for name in ("one", "two")]

    @mp.task
    async def work() -> None: ...

    async with mp:
        await asyncio.gather(*(pool.submit(work.bind()) for _ in range(5) for pool in pools))
        async with asyncio.timeout(10):
            while True:
                seen = (await scraped(collector)).by("millpond_rejected_tasks_total", "pool")
                if sum(seen.values()) == 8:
                    break
    assert {"one": 4, "two": 4} == seen


async def test_ten_thousand_keys_do_not_make_ten_thousand_series() -> None:
    """Neither do as many functions, pools, lanes, tasks or kinds of error."""
    mp = Millpond()
    mail = mp.pool("mail", max_concurrent=100, retry=Retry.never())
    lanes = mp.pool("lanes", max_concurrent=50, ordered=True, retry=Retry.never())
    collector = Collector(mp, max_functions=5)

    @mp.task(key="tenant")
    async def send(tenant: str) -> None:
        if tenant.endswith("7"):
            raise type(f"Error{tenant}", (Exception,), {})

    async def closure() -> None: ...

    async with mp:
        before = len((await scraped(collector)).samples)
        await mail.submit_many(send.bind(f"tenant-{n}") for n in range(10_000))
        await lanes.submit_many(send.bind(f"tenant-{n}") for n in range(100))
        for number in range(50):
            named = FunctionType(closure.__code__, {})
            named.__qualname__ = f"closure{number}"
            await mail.submit(named)
        await mail.drain()
        await lanes.drain()
        seen = await scraped(collector)
        # Counted as two pools with two histograms of 19 each, attempts and quantiles.
        assert len(seen.samples) < before + 2 * 2 * 19 + 40
        labels = {name for sample in seen.samples for name in sample.labels}
        assert {
            "function",
            "kind",
            "le",
            "outcome",
            "pool",
            "quantile",
            "state",
            "status",
        } == labels
        functions = seen.by("millpond_attempts_total", "function")
        assert {"send": 10_100, "closure0": 1, OTHER: 46} == {
            name: functions[name] for name in ("send", "closure0", OTHER)
        }
        assert 6 == len(functions)


async def test_pools_beyond_the_limit_are_left_out_and_said_to_be() -> None:
    """Those of a thousand tenants are not read at every scrape; what they do counts as one."""
    mp = Millpond()
    pools = [mp.pool(f"pool{n}") for n in range(5)]
    collector = Collector(mp, max_pools=3)
    async with mp:
        for pool in pools:
            await (await pool.submit(_nothing))
        seen = await scraped(collector)
    assert 2 == seen["millpond_pools_left_out"]
    assert {"pool0", "pool1", "pool2"} == set(seen.by("millpond_pool_limit", "pool"))
    assert {"pool0": 1, "pool1": 1, "pool2": 1, OTHER: 2} == seen.by(
        "millpond_submitted_tasks_total", "pool"
    )


async def test_a_batch_counts_for_each_of_its_tasks() -> None:
    """Each waited, each ran for as long as the call, each ended in its own way."""
    mp = Millpond()
    mail = mp.pool("mail", max_concurrent=4, retry=Retry.never())
    collector = Collector(mp)

    @mail.batch_task(size=4)
    async def send(items: list[int]) -> list[int | Failed]:
        await asyncio.sleep(2)
        return [Failed("no") if item == 3 else item for item in items]

    async with mp:
        await mail.submit_many(send.each(range(4)))
        await mail.drain()
        seen = await scraped(collector)
    assert {"completed": 3, "failed": 1} == seen.by("millpond_attempts_total", "outcome")
    assert (4, 8) == (
        seen["millpond_task_run_seconds_count"],
        round(seen["millpond_task_run_seconds_sum"], 9),
    )


async def test_lost_leases_and_late_settles_are_counted_where_they_happen() -> None:
    """The process that lost them counts the leases, the store the settlements it refused."""
    mp = Fleet().millpond(work=True)
    mail = mp.pool("mail", retry=Retry.constant(0.0))
    collector = Collector(mp)
    first = asyncio.Event()

    @mail.task
    async def send() -> None:
        if not first.is_set():
            first.set()
            (worker,) = internals_of(mp).runtime.workers
            await internals_of(mp).runtime.store.control(DeclareDead(worker.name))
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                return

    async with mp:
        assert 0 == (await scraped(collector))["millpond_lost_leases_total", {"pool": "mail"}]
        await (await send.submit())
        seen = await scraped(collector)
    assert 1 == seen["millpond_lost_leases_total", {"pool": "mail"}]
    assert 1 == seen["millpond_pool_stale_settles_total", {"pool": "mail"}]
    assert {"stale": 1, "completed": 1} == seen.by("millpond_attempts_total", "outcome")


async def test_what_dead_workers_left_is_counted_by_who_takes_it_up() -> None:
    """A lease that ran out: the dead worker cannot count it."""
    fleet = Fleet()
    victim, other = (fleet.millpond(work=True, lease=3.0) for _ in "12")
    collector = Collector(other)
    for mp in (victim, other):
        mp.pool("mail", retry=Retry.constant(0.0)).task(name="hang")(_hang)
    await victim.__aenter__()
    await victim.tasks["hang"].submit()
    await asyncio.sleep(1)
    await fleet.crash(victim, found_dead=False)
    async with other:
        assert 0 == (await scraped(collector))["millpond_recovered_tasks_total"]
        await asyncio.sleep(60)
        assert 1 == (await scraped(collector))["millpond_recovered_tasks_total"]


async def _nothing() -> None: ...


async def _hang() -> None:
    await asyncio.sleep(3600)


async def test_troubles_are_counted_too() -> None:
    """What `mp.counts` has, each by its name."""
    mp = Millpond()
    mail = mp.pool("mail", on_empty=lambda _: 1 / 0)
    collector = Collector(mp)
    async with mp:
        await (await mail.submit(_nothing))
        seen = (await scraped(collector)).by("millpond_troubles_total", "kind")
    assert {"hook_errors"} == {kind for kind, count in seen.items() if count}
    assert set(vars(mp.counts)) - {"leases_lost", "stale_settles"} == seen.keys()


# Who asks


@pytest.mark.real_loop
async def test_it_is_read_over_http_from_a_thread(tmp_path: Path) -> None:
    """As Prometheus does, while the loop goes on."""
    mp = Millpond(f"sqlite:///{tmp_path}/work.db", work=True)
    mail = mp.pool("mail")
    registry = CollectorRegistry(auto_describe=True)
    registry.register(Collector(mp))
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    url = f"http://127.0.0.1:{server.server_port}/metrics"
    try:
        async with mp:
            await (await mail.submit(time.time))
            seen = Scraped(await asyncio.to_thread(_get, url))
            assert (1, 1) == (
                seen["millpond_up"],
                seen.by("millpond_pool_ended_tasks_total", "status")["completed"],
            )
        # Closed, it still exports its counts.
        seen = Scraped(await asyncio.to_thread(_get, url))
        assert (0, 1) == (seen["millpond_up"], seen["millpond_submitted_tasks_total"])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - loopback
        found: bytes = answer.read()
    return found


@pytest.mark.real_loop
async def test_a_store_that_does_not_answer_leaves_out_its_part(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The scrape comes back in time, says so, and is logged once."""
    mp = Millpond()
    mail = mp.pool("mail")
    registry = CollectorRegistry()
    collector = Collector(mp, timeout=0.05)
    registry.register(collector)
    async with mp:
        await (await mail.submit(time.time))
        view: Any = internals_of(mp).runtime.view
        internals_of(mp).runtime.view = _Away()  # type: ignore[assignment]
        texts = [await asyncio.to_thread(generate_latest, registry), await collector.text()]
        texts.append(await asyncio.to_thread(generate_latest, registry))
        internals_of(mp).runtime.view = view
    for seen in map(Scraped, texts):
        assert (0, 1) == (seen["millpond_up"], seen["millpond_submitted_tasks_total"])
        assert {} == seen.by("millpond_pool_tasks", "pool")
    answer = [record for record in caplog.records if "could not be read" in record.getMessage()]
    assert 1 == len(answer)


class _Away:
    """A view that never answers."""

    async def pool(self, *_: object, **__: object) -> None:
        await asyncio.sleep(3600)


async def test_on_the_loop_itself_it_says_what_to_do_instead() -> None:
    """Waiting there for the loop would never end."""
    mp = Millpond()
    collector = Collector(mp)
    async with mp:
        with pytest.raises(RuntimeError, match=r"await collector.text\(\)"):
            collector.collect()


def test_a_second_collector_in_one_registry_is_refused() -> None:
    """Prometheus itself says so; nothing is read for that."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(Collector(Millpond()))
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(Collector(Millpond()))


@pytest.mark.parametrize("options", [{"max_pools": 0}, {"max_functions": 0}, {"timeout": 0}])
def test_limits_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    """By the name of the option."""
    with pytest.raises(ConfigError, match=next(iter(options))):
        Collector(Millpond(), **options)


@pytest.mark.real_loop
async def test_counting_and_reading_go_on_beside_each_other() -> None:
    """Threads submit and scrape at once; nothing is counted twice or lost."""
    mp = Millpond()
    mail = mp.pool("mail", max_concurrent=8)
    registry = CollectorRegistry()
    registry.register(Collector(mp))

    def submits() -> None:
        for _ in range(50):
            mail.sync.submit(time.time)

    async with mp:
        submitters = [asyncio.to_thread(submits) for _ in range(4)]
        scrapes: Iterable[Any] = [asyncio.to_thread(generate_latest, registry) for _ in range(20)]
        await asyncio.gather(*submitters, *scrapes)
        await mail.drain()
        seen = Scraped(await asyncio.to_thread(generate_latest, registry))
    assert 200 == seen["millpond_submitted_tasks_total"]
    assert {"completed": 200} == seen.by("millpond_attempts_total", "outcome")
    assert threading.active_count() < 50
