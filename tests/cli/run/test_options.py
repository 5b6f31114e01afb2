"""Options of `millpond run`: what their words mean, and what is not one."""

import argparse
import os
from collections.abc import Callable

import pytest

from millpond.cli.run import options
from millpond.cli.run.options import Halt
from millpond.core.rate import Rate

CORES = os.cpu_count() or 1


@pytest.mark.parametrize(
    ("meaning", "word", "expected"),
    [
        (options.jobs, "8", 8),
        (options.jobs, "200%", CORES * 2),
        (options.jobs, "1%", 1),
        (options.jobs, "+2", CORES + 2),
        (options.jobs, "0", options.MOST_JOBS),
        (options.seconds, "30", 30.0),
        (options.seconds, "1.5", 1.5),
        (options.seconds, "5m", 300.0),
        (options.seconds, "2h", 7200.0),
        (options.pause, "0", 0.0),
        (options.rate, "10/s", Rate(10, 1.0, burst=1)),
        (options.rate, "1/30s", Rate(1, 30.0, burst=1)),
        (options.rate, "100/m", Rate(100, 60.0, burst=1)),
        (options.halt, "never", None),
        (options.halt, "now,fail=1", Halt("now", "fail", 1)),
        (options.halt, "soon,success=20%", Halt("soon", "success", 20, percent=True)),
        (options.delimiter, ",", b","),
        (options.delimiter, r"\0", b"\0"),
        (options.delimiter, r"\t", b"\t"),
    ],
)
def test_option_values_mean_what_they_do_in_gnu_parallel(
    meaning: Callable[[str], object], word: str, expected: object
) -> None:
    """Numbers, times, rates and conditions as GNU parallel and xargs write them."""
    assert expected == meaning(word)


@pytest.mark.parametrize(
    ("meaning", "word"),
    [
        (options.jobs, "-1"),
        (options.jobs, "+50%"),
        (options.jobs, "many"),
        (options.seconds, "0"),
        (options.seconds, "5 m"),
        (options.seconds, "nan"),
        (options.rate, "10"),
        (options.rate, "0/s"),
        (options.rate, "10/y"),
        (options.halt, "fail=1"),
        (options.halt, "now,fail=0"),
        (options.delimiter, "ab"),
        (options.delimiter, ""),
        (options.pattern, "(["),
        (options.count, "0"),
        (options.whole_number, "-1"),
    ],
)
def test_a_wrong_option_value_is_refused_with_an_example(
    meaning: Callable[[str], object], word: str
) -> None:
    """The message shows the given value."""
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        meaning(word)
    assert repr(word) in str(refused.value)


@pytest.mark.parametrize(
    ("halt", "failed", "succeeded", "total", "expected"),
    [
        (Halt("now", "fail", 2), 1, 9, 20, False),
        (Halt("now", "fail", 2), 2, 0, None, True),
        (Halt("soon", "success", 1), 5, 0, 20, False),
        (Halt("soon", "done", 3), 1, 2, None, True),
        (Halt("soon", "fail", 10, percent=True), 2, 0, None, False),
        (Halt("soon", "fail", 10, percent=True), 1, 0, 20, False),
        (Halt("soon", "fail", 10, percent=True), 2, 0, 20, True),
    ],
)
def test_a_halt_counts_what_it_says(
    *, halt: Halt, failed: int, succeeded: int, total: int | None, expected: bool
) -> None:
    """A percentage is of all items, and waits until their number is known."""
    assert expected == halt.is_met(failed=failed, succeeded=succeeded, total=total)
