"""The short form of `make torture`: real processes on a real store, killed and frozen."""

from pathlib import Path

import pytest

from millpond.testing.torture.course import SHORT, torture
from millpond.testing.torture.plan import Orders
from millpond.testing.torture.report import lines_of


@pytest.mark.rows("DE-18")
@pytest.mark.parametrize("seed", [1])
def test_a_fleet_that_is_killed_and_frozen_keeps_every_promise(tmp_path: Path, seed: int) -> None:
    """Nothing is lost, no zombie settles, every limit holds, and the dead are soon replaced."""
    url = f"sqlite:///{tmp_path}/work.db"
    orders = Orders(url=url, home=str(tmp_path), seed=seed, **SHORT)
    told = torture(orders, whole=False)
    assert told.clean, "\n".join(lines_of(told))
    for fact in ("processes killed", "processes frozen", "leases lost", "retries"):
        assert told.facts[fact] > 0, fact
