"""Rolling figures of each pool, in memory: what sparklines and plots are drawn from."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from millpond.core.lifecycle import Status
from millpond.core.ticks import rounded
from millpond.server import contract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.core.quantiles import Quantiles
    from millpond.store.protocol import PoolView

SAMPLES = 900
"""How many samples of a pool are kept: fifteen minutes of seconds."""

POINTS = 60
"""Points of a sparkline."""

STEP = 5.0
"""Seconds between two points of a sparkline."""


class Sample(NamedTuple):
    """A pool at one moment."""

    at: float
    completed: int
    failed: int
    running: int
    limit: int
    queued: int
    dead: int
    oldest_age: float
    waits: Quantiles | None
    run_times: Quantiles | None


class History:
    """The samples of all pools."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[Sample]] = {}
        self._recent: dict[str, tuple[float, contract.Recent]] = {}

    def add(self, view: PoolView, now: float) -> None:
        """Note a pool as it is now; percentiles where they were measured."""
        samples = self._samples.setdefault(view.spec.name, deque(maxlen=SAMPLES))
        if samples and samples[-1].at >= now:
            return
        oldest = view.oldest_queued_at
        samples.append(
            Sample(
                now,
                view.totals.get(Status.COMPLETED, 0),
                view.totals.get(Status.FAILED, 0),
                view.running,
                view.spec.max_concurrent,
                view.queued,
                view.dead,
                0.0 if oldest is None else max(now - oldest, 0.0),
                view.waits if view.waits.samples else None,
                view.run_times if view.run_times.samples else None,
            )
        )

    def measure(self, view: PoolView, now: float) -> None:
        """Give the latest sample of a pool its percentiles, if it has none."""
        samples = self._samples.get(view.spec.name)
        if not samples:
            self.add(view, now)
        elif samples[-1].waits is None and view.waits.samples:
            samples[-1] = samples[-1]._replace(waits=view.waits, run_times=view.run_times)

    def recent(self, pool: str, now: float) -> contract.Recent:
        """Return what a pool did lately."""
        # Steps begin at whole multiples of their length: a point does not change once it is over.
        end = now // STEP * STEP
        known = self._recent.get(pool)
        if known is not None and known[0] == end:
            return known[1]
        samples = self._samples.get(pool, ())
        moments = [end - STEP * (POINTS - point) for point in range(POINTS + 1)]
        times = [sample.at for sample in samples]
        completed = _rates([(s.at, s.completed) for s in samples], times, moments)
        failed = _rates([(s.at, s.failed) for s in samples], times, moments)
        found = contract.Recent(
            throughput=completed[-1],
            failures=failed[-1],
            step=STEP,
            spark=completed,
            failed_spark=failed,
            unknown=_unknown(completed, failed, times, moments),
        )
        if samples and samples[-1].at >= end:
            # All that counts for these steps is known: they stay as they are until the next.
            self._recent[pool] = end, found
        return found

    def of(self, pool: str, since: float) -> contract.History:
        """Return the series of a pool from a moment on."""
        found = list(self._with_rates(pool, since))
        samples = [sample for sample, _, _ in found]
        waits = [sample.waits for sample in samples]
        runs = [sample.run_times for sample in samples]
        return contract.History(
            pool=pool,
            at=[sample.at for sample in samples],
            completed=[completed for _, completed, _ in found],
            failed=[failed for _, _, failed in found],
            running=[sample.running for sample in samples],
            limit=[sample.limit for sample in samples],
            queued=[sample.queued for sample in samples],
            dead=[sample.dead for sample in samples],
            oldest_age=[rounded(sample.oldest_age) for sample in samples],
            wait_p50=[None if one is None else one.p50 for one in waits],
            wait_p90=[None if one is None else one.p90 for one in waits],
            wait_p99=[None if one is None else one.p99 for one in waits],
            run_p50=[None if one is None else one.p50 for one in runs],
            run_p90=[None if one is None else one.p90 for one in runs],
            run_p99=[None if one is None else one.p99 for one in runs],
        )

    def _with_rates(self, pool: str, since: float) -> Iterator[tuple[Sample, float, float]]:
        before: Sample | None = None
        for sample in self._samples.get(pool, ()):
            if sample.at > since:
                yield sample, *_per_second(before, sample)
            before = sample


def _per_second(before: Sample | None, sample: Sample) -> tuple[float, float]:
    if before is None:
        return 0.0, 0.0
    length = sample.at - before.at
    # A pool that was repaired may count fewer than before.
    return (
        round(max(sample.completed - before.completed, 0) / length, 3),
        round(max(sample.failed - before.failed, 0) / length, 3),
    )


def _unknown(
    completed: list[float], failed: list[float], times: list[float], moments: list[float]
) -> int:
    """Return how many points are from before the first sample; 0 where all points are 0.

    So what is said of an idle pool stays the same, and live streams have nothing to send.
    """
    if not any(completed) and not any(failed):
        return 0
    return sum(one <= times[0] for one in moments[1:])


def _rates(
    counts: list[tuple[float, int]], times: list[float], moments: list[float]
) -> list[float]:
    """Return how fast a count grew between each moment and the next; 0 where that is unknown."""
    values = [_at(counts, times, moment) for moment in moments]
    return [
        0.0 if before is None or after is None else round(max(after - before, 0.0) / STEP, 3)
        for before, after in pairwise(values)
    ]


def _at(counts: list[tuple[float, int]], times: list[float], moment: float) -> float | None:
    """Return a count at a moment: on the line between the samples before and after it."""
    place = bisect_right(times, moment)
    if place == 0:
        return None
    at, count = counts[place - 1]
    if place == len(times):
        return count if moment - at < 1e-9 else None
    later_at, later = counts[place]
    return count + (later - count) * (moment - at) / (later_at - at)
