"""The short form of `make torture`: real processes on a real store, killed and frozen."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from verify.torture.course import SHORT, torture
from verify.torture.place import Place, on, place_of
from verify.torture.plan import Orders
from verify.torture.report import lines_of


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Give a new store; one on the server that the other tests have, too."""
    if request.param == "sqlite":
        opened = place_of("sqlite", None, tmp_path)
    else:
        opened = on(request.getfixturevalue("postgres"))
    with opened as place:
        yield place


@pytest.mark.rows("DE-18")
@pytest.mark.parametrize("seed", [1])
def test_a_fleet_that_is_killed_and_frozen_keeps_every_promise(
    tmp_path: Path, place: Place, seed: int
) -> None:
    """Nothing is lost, no zombie settles, every limit holds, and the dead are soon replaced."""
    orders = Orders(home=str(tmp_path), seed=seed, **{**place.orders, **SHORT})
    told = torture(orders, whole=False)
    assert told.clean, "\n".join(lines_of(told))
    for fact in ("processes killed", "processes frozen", "leases lost", "retries"):
        assert told.facts[fact] > 0, fact
    assert told.facts["tasks cancelled while they ran"] > 0
