"""Differences between a value and its decoded copy."""

from collections import Counter
from typing import Any

import pytest

from millpond.pool.payload.difference import difference

CASES: list[tuple[Any, Any, str | None]] = [
    (1, 1, None),
    (1, True, "int would come back as bool"),
    (1, 2, "would come back changed"),
    (1, 1.0, None),
    ([1, 2], [1], "would come back changed"),
    ([1, [2, 3]], [1, [2, 4]], "[1][1] would come back changed"),
    ([1, True], [1, 1], "[1] bool would come back as int"),
    ({1: "a"}, {True: "a"}, "key int would come back as bool"),
    ({"a": 1}, {"b": 1}, "has a key of type str that would come back changed"),
    ({"a": 1, "b": (2,)}, {"b": (2,), "a": 1}, None),
    ({1}, {2}, "would come back changed"),
    ({1}, {True}, "member int would come back as bool"),
    ({(1, 2)}, {(1, 2)}, None),
]


@pytest.mark.parametrize(("given", "back", "lost"), CASES)
def test_types_and_values_count_at_every_level(given: Any, back: Any, lost: str | None) -> None:
    """The answer names the place and the difference."""
    assert lost == difference(given, back, exact=True)


def test_a_plainer_base_will_do_unless_it_must_be_exact() -> None:
    """A Counter may come back as a dict where a dict was asked for, not where anything was."""
    assert difference(Counter(a=1), {"a": 1}, exact=False) is None
    assert "Counter would come back as dict" == difference(Counter(a=1), {"a": 1}, exact=True)


def test_the_order_of_a_dict_is_no_part_of_it() -> None:
    """As in Python, where equal dicts may have been filled in any order."""
    assert difference({"a": 1, "b": 2}, {"b": 2, "a": 1}, exact=True) is None
