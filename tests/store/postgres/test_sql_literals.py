"""What the SQL says in numbers and names is what Python means by them."""

import re
from importlib.resources import files

import pytest

from millpond.core.admit import Reason
from millpond.core.bounds import MAX_PAYLOAD
from millpond.core.bucket import LOWS_KEPT
from millpond.core.lifecycle import Status, Transition
from millpond.core.order.ring import PLACES_KEPT
from millpond.core.spec import ONE_TURN, OnFull, OrderKind
from millpond.core.task import CALLBACKS, Dedupe
from millpond.core.ticks import MICROSECONDS
from millpond.store.postgres.literals import (
    BANDS,
    LEASES_LOOKED_AT,
    MOSTLY_DEAD,
    TURN_BITS,
    WALKED_PAST,
)
from millpond.store.postgres.lock import POOLS
from millpond.store.postgres.migrate import known_migrations
from millpond.store.postgres.server_functions import sources
from millpond.store.postgres.unit_of_work import FIRST_GROUP
from millpond.store.sql.codec import SEQ_BITS
from millpond.store.verbs.tables import MEASURED

_COMMENT = re.compile(r"--[^\n]*")


def _texts() -> dict[str, str]:
    """Return all SQL of the PostgreSQL store, without comments, by file."""
    found = {one.name: one.text for one in known_migrations()} | sources()
    for path in files("millpond.store.postgres").joinpath("queries").iterdir():
        found[path.name] = path.read_text("utf-8")
    return {name: _COMMENT.sub("", text) for name, text in found.items()}


TEXTS = _texts()
ALL = "\n".join(TEXTS.values())
FUNCTIONS = "\n".join(sources().values())

NUMBERS = {
    "place of a task": (r"<< (\d+)\) (?:- 1|\+ last_seq)|\(p\.id << (\d+)\)", SEQ_BITS, 5),
    "turn of a row": (r"\(\w*\.?(?:version|writes) \+ 1\) >> (\d+)", TURN_BITS, 10),
    "leases looked at": (r"s\.leases - s\.first_lease >= (\d+)\b", LEASES_LOOKED_AT, 1),
    "leases renumbered": (r"\blast - (5\d\d)\b", LEASES_LOOKED_AT // 2, 3),
    "locks of pools": (r"CASE the_pool & (\d+)", len(POOLS) - 1, 1),
    "ranks with a place": (
        r"cardinality\((?:bands|b\.ranks)\)(?:, 0\))? (?:>|<=) (\d+)",
        BANDS,
        2,
    ),
    "walked past": (r"u\.found - (\d+) > u\.known", WALKED_PAST, 1),
    "low points": (r"cardinality\(moments\) > (\d+)", LOWS_KEPT, 1),
    "stride of the ring": (r"round\((\d+) / \(weights|\)::bigint, (\d{2,})\)", ONE_TURN, 2),
    "one turn": (r"turn \+ (\d{6}6)\b|& -(\d{7})\b|stride = (\d{7})\b", ONE_TURN, 7),
    "rest of a turn": (r"turn (?:\+|&) (\d{6}5)\b", ONE_TURN - 1, 3),
    "places kept": (r"p\.resting > (\d{2,})", PLACES_KEPT, 1),
    "mostly dead": (r"\b(1\d00) \* (?:pg_stat_get_live_tuples|rows_now)", MOSTLY_DEAD, 2),
    "microseconds": (r"[*/] (1000000)\b", MICROSECONDS, 6),
    "measured": (r"\bmeasured % (\d+)", MEASURED, 1),
    "measured before": (r"upto <= measured - (\d+)", 2 * MEASURED, 1),
    "measured at most": (r"\bmeasured - (4\d{3})", 4 * MEASURED, 2),
    "suffix of callbacks": (r"right\(asked_pool, (\d+)\)", len(CALLBACKS), 1),
    "first group": (
        r"coalesce\(\(SELECT max\(id\) \+ 1 FROM millpond_group WHERE [^)]*\), (\d+)\)",
        FIRST_GROUP,
        1,
    ),
}


@pytest.mark.rows("TR-01")
@pytest.mark.parametrize("what", NUMBERS)
def test_a_number_in_the_sql_is_the_constant_of_its_name(what: str) -> None:
    """A constant that changes in Python alone would part the two ways to do a step."""
    pattern, constant, least = NUMBERS[what]
    found = [next(filter(None, one.groups())) for one in re.finditer(pattern, ALL)]
    assert len(found) >= least, f"{what} is said {len(found)} times"
    assert {str(constant)} == set(found)


def crc_step(bits: int) -> int:
    """Return what four bits at the end of a CRC-32 do to the others."""
    for _ in range(4):
        bits = bits >> 1 ^ (0xEDB88320 if bits & 1 else 0)
    return bits


CRC_STEPS = [crc_step(bits) for bits in range(16)]

OF_STEPS = sorted(sources().keys() - {"inbox.sql", "public.sql"})
"""The files whose numbers are those of a step; the bounds of the others have their own test."""

KNOWN = {
    *(
        SEQ_BITS,
        LEASES_LOOKED_AT,
        LEASES_LOOKED_AT // 2,
        ONE_TURN,
        ONE_TURN - 1,
        FIRST_GROUP,
        MOSTLY_DEAD,
    ),
    *CRC_STEPS,
    *(PLACES_KEPT, MICROSECONDS, MEASURED, 2 * MEASURED, 4 * MEASURED, MAX_PAYLOAD),
    (1 << 63) - 1,  # behind every rank
    (1 << 32) - 1,  # all bits of a CRC-32
    1 << 63,  # as a negative number: before every rank
}


@pytest.mark.rows("TR-01")
def test_the_checksum_of_a_key_has_the_table_of_crc32() -> None:
    """Otherwise the server and the verbs would choose different lanes for a key."""
    (table,) = re.findall(r"steps constant bigint\[\] := '\{([^}]*)\}'", TEXTS["lanes.sql"])
    assert CRC_STEPS == [int(one) for one in table.split(",")]


@pytest.mark.rows("TR-01")
@pytest.mark.parametrize("name", [*OF_STEPS, "own.sql"])
def test_no_other_large_number_is_said(name: str) -> None:
    """A number without a name is not tied to anything."""
    said = {int(one) for one in re.findall(r"(?<![\w.'])\d{3,}(?![\w.'])", TEXTS[name])}
    assert set() == said - KNOWN


def words(pattern: str) -> set[str]:
    """Return the quoted words in what a pattern finds."""
    found = re.findall(pattern, FUNCTIONS, re.DOTALL)
    assert found, pattern
    return {word for one in found for word in re.findall(r"'(\w+)'", one)}


@pytest.mark.rows("TR-01")
@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (r"'on_full' (?:IN \([^)]*\)|= '\w+')", [*OnFull, "on_full"]),
        (r"k\.status IN \([^)]*\)", [*Status]),
        (r"WHEN '(?:success|inflight)'", [*Dedupe]),
        (r"\bkind(?: =)? (?:WHEN )?'\w+'|WHEN 'lifo'", [*OrderKind]),
        (r"s\.at, NULL, '\w+',", [*Transition, "claim"]),
        (r"l\.pool, '\w+', 1", [*Status]),
    ],
)
def test_names_in_the_sql_are_those_of_python(pattern: str, names: list[str]) -> None:
    """A status, an event, an order or a policy that is renamed is renamed in both."""
    assert words(pattern) <= {str(name) for name in names}


@pytest.mark.rows("TR-01")
def test_the_inbox_refuses_with_reasons_that_python_knows() -> None:
    """The client makes a Reason of each refusal, except where it has an error of its own."""
    said = set(re.findall(r"'refused', '(\w+)'", FUNCTIONS))
    assert said >= {"unknown_pool", "queue_full", "no_capacity", "closed"}
    assert said <= {*map(str, Reason), "foreign", "read_only", "unknown_option", "per_lane"}


@pytest.mark.rows("TR-01")
def test_the_suffix_of_callbacks_is_the_same() -> None:
    """The server leaves the queues of callbacks to the verbs, by their names."""
    assert f"'{CALLBACKS}'" in FUNCTIONS
    assert {CALLBACKS} == set(re.findall(r"'(~\w+)'", FUNCTIONS))
