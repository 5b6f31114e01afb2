"""Quantiles: numbers that were really measured."""

from millpond.core.quantiles import Quantiles, quantiles


def test_quantiles_of_nothing_are_zero() -> None:
    """Without samples every figure is zero and says of how many."""
    assert Quantiles(p50=0.0, p90=0.0, p99=0.0, samples=0) == quantiles([])


def test_one_number_is_every_quantile() -> None:
    """There is nothing between a number and itself."""
    assert Quantiles(p50=7.0, p90=7.0, p99=7.0, samples=1) == quantiles([7.0])


def test_quantiles_are_nearest_ranks() -> None:
    """Of the numbers 1 to 100 in any order, the 50th, the 90th and the 99th."""
    numbers = [float(n) for n in range(100, 0, -1)]
    assert Quantiles(p50=50.0, p90=90.0, p99=99.0, samples=100) == quantiles(numbers)
