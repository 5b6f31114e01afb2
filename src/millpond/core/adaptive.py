"""A limit that adapts: as high as possible before callers queue inside the server.

The method is the gradient of Netflix's concurrency-limits (`Gradient2Limit`; "Performance Under
Load", 2018) and Envoy's adaptive concurrency filter: from one window to the next

    limit <- limit * (latency without load / latency now) + a little headroom

so that it shrinks when an overloaded server's queue shows as latency, and grows when the server has
room. Three things are added. Until the first sign of load the limit doubles (slow start,
as in TCP). Latency without load is measured again and again at a slightly lowered limit (as BBR
does), because a minimum remembered for ever is a minimum of another day. Failures beyond
a tolerated share shrink the limit by that share (AIMD's multiplicative decrease).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from millpond.core import validation as check

# A window has this many samples for every slot, and never fewer than the second number.
_SAMPLES_PER_SLOT = 2
_FEWEST_SAMPLES = 10
# After a change the server needs this many latencies to show its effect.
_SETTLING = 1.5
# What is added beyond the gradient: a share of the limit, and at least half a slot.
_HEADROOM = 1 / 20
_LEAST_HEADROOM = 0.5
# One window may halve the limit or raise it by a tenth, and moves it half of the way.
_STEEPEST, _SHALLOWEST = 0.5, 1.1
_SMOOTHING = 0.5
# Below this gradient the server is loaded: slow start ends, and smoothing would only delay.
_SIGN_OF_LOAD = 0.75
# Latency without load is measured every so many windows, at so much of the limit.
_PROBE_EVERY = 15
_PROBE_AT = 0.8
_PROBE_WEIGHT = 0.3
# A larger share of failures shrinks the limit, and then it does not grow for so many windows.
_TOLERATED_FAILURES = 0.1
_CAUTION = 10


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Bounds for a limit that adapts; made by `adaptive(least, most)`."""

    least: int
    most: int
    initial: int


def adaptive(least: int, most: int, *, initial: int | None = None) -> Adaptive:
    """Let latency and failures choose the limit between `least` and `most`.

    It begins at `initial`, or at `least`, and doubles until the first sign of load.
    """
    check.integer("least", least, least=1)
    check.integer("most", most, least=least)
    if initial is None:
        return Adaptive(least, most, least)
    return Adaptive(least, most, check.integer("initial", initial, least=least, most=most))


class Limiter(msgspec.Struct, array_like=True):
    """The limit in force, and the window of samples that will decide the next one.

    `observe` takes one finished piece of work and answers the limit from now on. It decides at the
    end of each window and never in between, from the mean of the window: single samples are noise.
    It is all data: a store keeps it between two samples.
    """

    _options: Adaptive
    _exact: float = 0.0
    _unloaded: float | None = None
    _measured_at: float = 0.0
    _slow_start: bool = True
    _suspicion: bool = False
    _probing: bool = False
    _windows: int = 0
    _caution: int = 0
    _samples_without_load: int = 0
    # The window under way: when it opened, and what it has seen.
    _opens: float = 0.0
    _successes: int = 0
    _failures: int = 0
    _busiest: int = 0
    _time_working: float = 0.0
    _time_failing: float = 0.0

    def __post_init__(self) -> None:
        if not self._exact:
            self._exact = self._measured_at = float(self._options.initial)

    @property
    def options(self) -> Adaptive:
        """The bounds it moves between."""
        return self._options

    @property
    def limit(self) -> int:
        """The limit in force, a whole number."""
        exact = self._exact * _PROBE_AT if self._probing else self._exact
        return max(self._options.least, min(self._options.most, round(exact)))

    def observe(self, now: float, latency: float, *, in_flight: int, failed: bool) -> int:
        """Take one sample: how long it was inside, how many were inside as it came."""
        if now >= self._opens:
            self._busiest = max(self._busiest, in_flight)
            if failed:
                self._failures += 1
                self._time_failing += latency
            else:
                self._successes += 1
                self._time_working += latency
            if self._is_full(now):
                self._conclude(now)
        return self.limit

    def _is_full(self, now: float) -> bool:
        """Whether there are samples enough, and quick failures have not crowded out the rest."""
        wanted = max(_FEWEST_SAMPLES, _SAMPLES_PER_SLOT * self.limit)
        lasted = now - self._opens
        return self._successes + self._failures >= wanted and lasted >= (self._unloaded or 0.0)

    def _conclude(self, now: float) -> None:
        before, latency = self.limit, self._mean
        self._decide()
        settling = _SETTLING * max(latency, self._unloaded or 0.0)
        self._begin(now + settling if self.limit != before else now)

    def _begin(self, opens: float) -> None:
        self._opens = opens
        self._successes = self._failures = self._busiest = 0
        self._time_working = self._time_failing = 0.0

    @property
    def _mean(self) -> float:
        """The mean latency of the work that succeeded in this window."""
        return self._time_working / self._successes if self._successes else 0.0

    def _decide(self) -> None:
        """End a window: the failures decide if they are many, else the latency does."""
        self._windows += 1
        self._caution = max(0, self._caution - 1)
        if self._failures > _TOLERATED_FAILURES * (self._successes + self._failures):
            self._back_off()
        elif self._probing:
            self._probing = False
            self._learn(self._mean, _PROBE_WEIGHT)
        elif self._slow_start:
            self._double(self._mean)
        else:
            self._follow(self._mean)
            self._probing = self._windows % _PROBE_EVERY == 0

    def _back_off(self) -> None:
        """Give back the slots that were spent on failing: by time, as failing may be quick."""
        spent = self._time_working + self._time_failing
        share = self._time_failing / spent if spent else 1.0
        self._slow_start = self._probing = False
        self._caution = _CAUTION
        self._set(min(self._exact * max(_STEEPEST, 1 - share), self._exact - 1))

    def _double(self, latency: float) -> None:
        """Grow fast until the first sign of load; all windows until then measure no load."""
        if self._unloaded is not None and self._unloaded < _SIGN_OF_LOAD * latency:
            # One slow window may be chance; two are a sign.
            if self._suspicion:
                self._slow_start = False
                self._follow(latency)
            self._suspicion = True
            return
        self._suspicion = False
        self._samples_without_load += self._successes
        self._learn(latency, self._successes / self._samples_without_load)
        if self._busiest >= self.limit:
            self._set(self._exact * 2)

    def _follow(self, latency: float) -> None:
        """Move the limit along the gradient."""
        if self._unloaded is None or self._exact < _STEEPEST * self._measured_at:
            # So few inside and still this slow: the server itself has changed.
            self._learn(latency, 1.0)
        unloaded = self._unloaded or latency
        gradient = min(_SHALLOWEST, max(_STEEPEST, unloaded / latency)) if latency else 1.0
        target = self._exact * gradient + max(_LEAST_HEADROOM, self._exact * _HEADROOM)
        if gradient >= _SIGN_OF_LOAD:
            target = self._exact + _SMOOTHING * (target - self._exact)
        # A limit that is never reached says nothing about a higher one.
        if self._busiest < self.limit or self._caution:
            target = min(target, self._exact)
        self._set(target)

    def _learn(self, latency: float, weight: float) -> None:
        """Take `latency` as measured without load."""
        known = latency if self._unloaded is None else self._unloaded
        self._unloaded = known + weight * (latency - known)
        self._measured_at = self._exact

    def _set(self, exact: float) -> None:
        self._exact = max(float(self._options.least), min(float(self._options.most), exact))
