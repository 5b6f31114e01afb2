"""The show as one value: what `--json` prints."""

from __future__ import annotations

import msgspec

from millpond.demo import bulkhead_act, pool_act
from millpond.demo.story import Act, Promise, Scene


class Report(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The figures of both acts and the promises they were held against.

    Times are virtual seconds. The same seed gives the same report, byte for byte.
    """

    shape: int
    """1; a field that goes away or changes its meaning makes it 2."""
    seed: int
    kept: bool
    """Whether every promise was kept: the exit code in a word."""
    promises: tuple[Promise, ...]
    bulkhead: bulkhead_act.Figures
    pool: pool_act.Figures


class Show(msgspec.Struct, frozen=True, kw_only=True):
    """Both acts, run and not yet drawn."""

    seed: int
    bulkhead: Act[bulkhead_act.Figures]
    pool: Act[pool_act.Figures]

    @property
    def promises(self) -> tuple[Promise, ...]:
        """What both acts claim, in the order in which it was shown."""
        return self.bulkhead.promises + self.pool.promises

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return all(promise.kept for promise in self.promises)

    @property
    def acts(self) -> tuple[tuple[str, tuple[Scene, ...]], ...]:
        """The title and the scenes of each act."""
        return tuple((act.title, act.scenes) for act in (self.bulkhead, self.pool))

    def report(self) -> Report:
        """Return the figures without the pictures."""
        return Report(
            shape=1,
            seed=self.seed,
            kept=self.kept,
            promises=self.promises,
            bulkhead=self.bulkhead.figures,
            pool=self.pool.figures,
        )


def rehearse(seed: int) -> Show:
    """Run both acts on virtual time; takes about a second and draws nothing."""
    return Show(seed=seed, bulkhead=bulkhead_act.play(seed), pool=pool_act.play(seed))
