"""The demo's results as one value, for `--json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from millpond.demo import bulkhead_act, fleet_act, flood_act
from millpond.demo.scenes import Act, Promise

if TYPE_CHECKING:
    from millpond.demo.scenes import Piece, Scene

F = TypeVar("F")

PIECES: tuple[Piece[Any], ...] = (
    bulkhead_act.PIECE,
    flood_act.PIECE,
    fleet_act.PIECE,
)


class Report(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The figures of all acts and the promises they were compared with.

    Times are seconds of the acts' own clock. The same seed gives the same `bulkhead` and `flood`;
    `fleet` is played by real processes, of which no two shows are alike.
    """

    shape: int
    """Version of this document: 3. It grows when a field is removed or changes its meaning."""
    seed: int
    kept: bool
    """Whether every promise was kept."""
    promises: tuple[Promise, ...]
    bulkhead: bulkhead_act.Figures
    flood: flood_act.Figures
    fleet: fleet_act.Figures


class Show(msgspec.Struct, frozen=True, kw_only=True):
    """All acts with their frames."""

    seed: int
    bulkhead: Act[bulkhead_act.Figures]
    flood: Act[flood_act.Figures]
    fleet: Act[fleet_act.Figures]

    @property
    def acts(self) -> tuple[Act[Any], ...]:
        """The acts in their order."""
        return (self.bulkhead, self.flood, self.fleet)

    @property
    def promises(self) -> tuple[Promise, ...]:
        """The promises of all acts, in order."""
        return tuple(promise for act in self.acts for promise in act.ending.promises)

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return all(promise.kept for promise in self.promises)

    @property
    def headline(self) -> str:
        """The key figure in a sentence."""
        return fleet_act.headline(self.fleet.ending.figures)

    def report(self) -> Report:
        """Return the figures without the pictures."""
        return Report(
            shape=3,
            seed=self.seed,
            kept=self.kept,
            promises=self.promises,
            bulkhead=self.bulkhead.ending.figures,
            flood=self.flood.ending.figures,
            fleet=self.fleet.ending.figures,
        )


class Perform(Protocol):
    """Plays an act: at once, or for a viewer."""

    def __call__(self, piece: Piece[F], scene: Scene, /) -> Act[F]:
        """Play it to its end."""


def unseen(piece: Piece[F], scene: Scene, /) -> Act[F]:
    """Play an act without a viewer, as fast as possible."""
    return piece.perform(scene)


def give(scene: Scene, perform: Perform = unseen) -> Show:
    """Play every act."""
    return Show(
        seed=scene.seed,
        bulkhead=perform(bulkhead_act.PIECE, scene),
        flood=perform(flood_act.PIECE, scene),
        fleet=perform(fleet_act.PIECE, scene),
    )
