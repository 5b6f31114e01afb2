"""Where bench/fleet.py has its contenders act: a server with a slow disk, many processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from actors import Answer
from contender import Contender
from postgres_stage import Actor, Stage
from verify.servers.postgres import OwnServer

FLUSH = 0.002
"""Seconds that a flush of the log takes longer: an ordinary disk of a cloud."""


@dataclass
class FleetStage(Stage):
    """A server with a slow disk, and one with the disk as it is where a row asks for it."""

    ordinary: Callable[[], OwnServer] | None = None

    @contextmanager
    def on_ordinary_disk(self) -> Iterator[FleetStage]:
        """Give a stage on a server with the disk of this machine."""
        assert self.ordinary is not None
        with self.ordinary() as server:
            yield replace(self, server=server, _filled={})

    def seconds(self) -> float:
        """Return for how long each contender acts."""
        return 3.0 if self.quick else 6.0


def together(
    contender: Contender, act: str, url: str, each: Sequence[dict[str, object]]
) -> list[Answer]:
    """Have processes begin an act at the same moment, and return the answer of each."""
    with ExitStack() as stack:
        team = [stack.enter_context(Actor(contender, act, url, **given)) for given in each]
        for actor in team:
            actor.ready()
        for actor in team:
            actor.go()
        return [actor.answer() for actor in team]
