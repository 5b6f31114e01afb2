"""The show as one value: what `--json` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from millpond.demo import bulkhead_act, flood_act, pressure_act, run_act
from millpond.demo.story import Act, Promise

if TYPE_CHECKING:
    from millpond.demo.story import Piece

F = TypeVar("F")

PIECES: tuple[Piece[Any], ...] = (
    flood_act.PIECE,
    pressure_act.PIECE,
    run_act.PIECE,
    bulkhead_act.PIECE,
)


class Report(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The figures of all acts and the promises they were held against.

    Times are seconds of the acts' own clock. The same seed gives the same report, byte for byte.
    """

    shape: int
    """2; a field that goes away or changes its meaning makes it 3."""
    seed: int
    kept: bool
    """Whether every promise was kept: the exit code in a word."""
    promises: tuple[Promise, ...]
    flood: flood_act.Figures
    pressure: pressure_act.Figures
    run: run_act.Figures
    bulkhead: bulkhead_act.Figures


class Show(msgspec.Struct, frozen=True, kw_only=True):
    """All acts, as they were played."""

    seed: int
    flood: Act[flood_act.Figures]
    pressure: Act[pressure_act.Figures]
    run: Act[run_act.Figures]
    bulkhead: Act[bulkhead_act.Figures]

    @property
    def acts(self) -> tuple[Act[Any], ...]:
        """The acts in their order."""
        return (self.flood, self.pressure, self.run, self.bulkhead)

    @property
    def promises(self) -> tuple[Promise, ...]:
        """What the acts claim, in the order in which it was shown."""
        return tuple(promise for act in self.acts for promise in act.ending.promises)

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return all(promise.kept for promise in self.promises)

    @property
    def headline(self) -> str:
        """The number to remember, in a sentence."""
        return flood_act.headline(self.flood.ending.figures)

    def report(self) -> Report:
        """Return the figures without the pictures."""
        return Report(
            shape=2,
            seed=self.seed,
            kept=self.kept,
            promises=self.promises,
            flood=self.flood.ending.figures,
            pressure=self.pressure.ending.figures,
            run=self.run.ending.figures,
            bulkhead=self.bulkhead.ending.figures,
        )


class Perform(Protocol):
    """How an act is played: in no time, or before somebody's eyes."""

    def __call__(self, piece: Piece[F], seed: int, /) -> Act[F]:
        """Play it to its end."""
        ...


def in_no_time(piece: Piece[F], seed: int, /) -> Act[F]:
    """Play an act as fast as the machine can."""
    return piece.perform(seed)


def give(seed: int, perform: Perform = in_no_time) -> Show:
    """Play every act; what comes of it depends on the seed alone, not on the way it is played."""
    return Show(
        seed=seed,
        flood=perform(flood_act.PIECE, seed),
        pressure=perform(pressure_act.PIECE, seed),
        run=perform(run_act.PIECE, seed),
        bulkhead=perform(bulkhead_act.PIECE, seed),
    )
