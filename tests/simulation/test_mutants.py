"""The simulation is good enough: it finds known mistakes without a scenario for them."""

import pytest
from verify.mutants import MUTANTS, hunt

from millpond.testing.simulation.seeded import simulate


@pytest.mark.parametrize("name", [mutant.__name__ for mutant in MUTANTS])
def test_the_simulation_finds_the_mutant(name: str) -> None:
    """A mistake that another library made is found within a few histories."""
    assert hunt(name, most=200).found is not None


@pytest.mark.parametrize("name", [mutant.__name__ for mutant in MUTANTS])
def test_a_mutant_leaves_nothing_behind(name: str) -> None:
    """After the hunt the code is whole again."""
    hunt(name, most=1)
    assert simulate(0).verbs > 0
