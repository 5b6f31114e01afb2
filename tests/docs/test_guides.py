"""The guides for users of other queues: our side runs here, both run in `make guides`."""

from pathlib import Path

import pytest
from verify.guides import GUIDES, PROGRAMS, Guide, Side, run


def peer(guide: Guide) -> str:
    return guide.peer


@pytest.mark.parametrize("guide", GUIDES, ids=peer)
def test_our_program_prints_what_the_page_says(guide: Guide, tmp_path: Path) -> None:
    """A reader who starts the worker and runs the program sees the lines of the page."""
    assert guide.printed_by(guide.after) == run(guide.after, tmp_path)


@pytest.mark.parametrize("guide", GUIDES, ids=peer)
def test_the_page_shows_how_to_start_each_worker(guide: Guide) -> None:
    """The commands that `make guides` runs stand in the page."""
    page = " ".join(guide.page.split())
    sides = [side for side in (guide.before, guide.after, guide.bridge) if side]
    assert [] == [each for side in sides for each in side.workers if f"`{each}`" not in page]


def test_every_program_belongs_to_a_guide() -> None:
    """No program lies in the folder that neither the suite nor `make guides` runs."""

    def sides(guide: Guide) -> list[Side]:
        return [side for side in (guide.before, guide.after, guide.bridge) if side]

    known = {side.program for guide in GUIDES for side in sides(guide)}
    assert known == {path.name for path in PROGRAMS.glob("*.py")}
