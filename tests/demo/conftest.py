"""One show, given once with all its processes, and a way to play it again without them."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from millpond.demo import fleet_act
from millpond.demo.fleet_act import Figures
from millpond.demo.report import Show, give
from millpond.demo.scenes import Camera, Ending, Scene


@pytest.fixture(scope="session")
def show(tmp_path_factory: pytest.TempPathFactory) -> Show:
    """The demo with seed 1, played without a viewer."""
    return give(Scene(seed=1, file=tmp_path_factory.mktemp("demo") / "work.db"))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """The settings of an act."""
    return Scene(seed=1, file=tmp_path / "work.db")


@pytest.fixture
def replayed(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the act of real processes be played again as it was, in virtual time."""

    async def play(camera: Camera, _: Scene) -> Ending[Figures]:
        frames = show.fleet.frames
        camera.take(frames[0].rows)
        for before, frame in pairwise(frames):
            await asyncio.sleep(frame.at - before.at)
            camera.take(frame.rows)
        return show.fleet.ending

    monkeypatch.setattr(fleet_act.PIECE, "_play", play)
    monkeypatch.setattr(fleet_act.PIECE, "real", False)
