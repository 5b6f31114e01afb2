"""Checks of options: what passes, what is refused, and who is blamed."""

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.core import validation as check
from millpond.errors import ConfigError

GOOD_NAMES = ["a", "pr-review", "A.b_c:d@e/f+g", "0", "x" * check.LONGEST_NAME]
BAD_NAMES = [
    "",
    "../x",
    "a/../b",
    "a..b",
    "x" * 200,
    "a\n",
    "\n",
    "a b",
    "a'b",
    'a"b',
    "a;b",
    "a~b",
    "~callbacks",
    "-a",
    ".a",
    "/etc",
    "é",
    "名前",
    "a\u200bb",
    "a\x00",
    None,
    7,
    b"bytes",
]


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_a_plain_name_passes_unchanged(name: str) -> None:
    """Letters, digits and a few marks, up to the longest length."""
    assert name == check.name("name", name)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_any_other_name_is_refused_and_blamed(name: object) -> None:
    """No path, no quote, no control character, no ~ and nothing beyond ASCII is a name."""
    with pytest.raises(ConfigError) as refused:
        check.name("pool.name", name)
    assert refused.value.message.startswith("pool.name=")
    assert ("pool.name", name) == (refused.value.option, refused.value.value)


ALPHABET = "ab0Z._:@/+-~ '\"\\\n\t\x00;$*\u00e9\u0661\uff41"


@given(st.text(ALPHABET, max_size=12))
def test_a_name_is_safe_or_refused(text: str) -> None:
    """Whatever passes is short, ASCII, printable and free of quotes, spaces, ~ and dot-dot."""
    try:
        name = check.name("name", text)
    except ConfigError:
        return
    assert name.isascii()
    assert name.isprintable()
    assert 1 <= len(name) <= check.LONGEST_NAME
    assert not set(name) & set(" '\"`~;\\$%&|<>(){}[]*?!#=,^")
    assert ".." not in name


@pytest.mark.parametrize("value", [True, 1.0, "1", None, -1, 11])
def test_a_whole_number_is_an_int_within_bounds(value: object) -> None:
    """Bools, floats, strings and what lies outside the bounds are refused by name."""
    assert 10 == check.integer("n", 10, least=0, most=10)
    with pytest.raises(ConfigError, match=r"^MILL-003 n="):
        check.integer("n", value, least=0, most=10)


@pytest.mark.parametrize("value", [True, "1", None, math.nan, math.inf, -math.inf, -0.5, 0])
def test_a_number_is_finite_and_within_bounds(value: object) -> None:
    """A number that never ends, is no number or is too small is refused by name."""
    assert 2.0 == check.number("seconds", 2, above=0.0)
    with pytest.raises(ConfigError, match=r"^MILL-003 seconds="):
        check.number("seconds", value, above=0.0)


def test_a_least_number_may_be_reached() -> None:
    """`least` is inclusive where `above` is not."""
    assert 0.0 == check.number("seconds", 0)
    with pytest.raises(ConfigError, match="at least 1"):
        check.number("factor", 0.9, least=1.0)


@pytest.mark.parametrize("value", [90, 90.0, timedelta(minutes=1.5)])
def test_a_duration_is_seconds_or_a_timedelta(value: float | timedelta) -> None:
    """Both ways to say it give the same seconds."""
    assert 90.0 == check.seconds("timeout", value)


@pytest.mark.parametrize("value", [True, "1", math.nan, math.inf, -1, timedelta(days=-1)])
def test_a_duration_that_is_none_is_refused_by_name(value: object) -> None:
    """What is no number, never ends or runs backwards is no duration."""
    with pytest.raises(ConfigError, match=r"^MILL-003 timeout="):
        check.seconds("timeout", value)


def test_a_duration_keeps_its_bounds_as_a_timedelta() -> None:
    """The bounds of a number hold however it was given."""
    with pytest.raises(ConfigError, match="greater than 0"):
        check.seconds("lease", timedelta(0), above=0.0)


@pytest.mark.parametrize("value", ["c", None, 1, ["a"]])
def test_a_choice_is_one_of_the_choices(value: object) -> None:
    """The refusal lists what could have been said."""
    assert "a" == check.one_of("mode", "a", ("a", "b"))
    with pytest.raises(ConfigError, match="must be one of a, b"):
        check.one_of("mode", value, ("a", "b"))
