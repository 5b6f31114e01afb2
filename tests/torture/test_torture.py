"""The short form of `make torture`: real processes on a real store, killed and frozen."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from verify.torture.plan import Settings
from verify.torture.report import lines_of
from verify.torture.run import SHORT, torture
from verify.torture.store_setup import StoreSetup, on, setup_for


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreSetup]:
    """Give a new store; one on the server that the other tests have, too."""
    if request.param == "sqlite":
        opened = setup_for("sqlite", None, tmp_path)
    else:
        opened = on(request.getfixturevalue("postgres"))
    with opened as place:
        yield place


@pytest.mark.rows("DE-18")
@pytest.mark.parametrize("seed", [1])
def test_a_fleet_that_is_killed_and_frozen_keeps_every_promise(
    tmp_path: Path, place: StoreSetup, seed: int
) -> None:
    """Nothing is lost, no zombie settles, every limit holds, and the dead are soon replaced."""
    settings = Settings(home=str(tmp_path), seed=seed, **{**place.settings, **SHORT})
    result = torture(settings, full=False)
    assert result.clean, "\n".join(lines_of(result))
    for fact in ("processes killed", "processes frozen", "leases lost", "retries"):
        assert result.facts[fact] > 0, fact
    assert result.facts["tasks cancelled while they ran"] > 0
