"""Every log call passes a stable event name, so that programs need not match on sentences."""

import re

from tools import log_events

PATTERN = re.compile(r"[a-z]+(_[a-z]+)*(\.[a-z]+(_[a-z]+)*)+")

MODULE = """
log = logging.getLogger("millpond.store")
LOST = "lost %s"


def lose():
    log.warning(LOST, 1, extra=about("lease.lost", task=1))
    log.exception("broke", extra=about("store.failed") | {"pool": "mail"})
    log.log(logging.DEBUG if quiet else logging.WARNING, "jumped", extra=about(name))
    log.info(f"{sentence}", extra={"pool": "mail"})
    other.info("of another library")
"""


def test_no_logger_has_more_calls_without_an_event() -> None:
    """Nor fewer than `tools/log_events.toml` says: a number that can be lowered is lowered."""
    calls = log_events.log_calls()
    listed = "\n".join(str(call) for call in calls if not call.event)
    assert log_events.allowed() == log_events.without_event(calls), (
        f"pass extra=about(...), or run `python -m tools.log_events --lower`:\n{listed}"
    )


def test_every_event_is_a_dotted_name() -> None:
    """Lower case, at least two parts, such as `lease.lost`."""
    wrong = [
        call for call in log_events.log_calls() if call.event and not PATTERN.fullmatch(call.event)
    ]
    assert [] == wrong


def test_the_reader_finds_the_calls_of_a_module() -> None:
    """It resolves constants, and an event that is computed does not count as one."""
    found = list(log_events.calls_of_module("a.py", MODULE))
    assert [
        ("warning", "lost %s", "lease.lost"),
        ("error", "broke", "store.failed"),
        ("debug or warning", "jumped", None),
        ("info", "(f'{sentence}')", None),
    ] == [(call.level, call.sentence, call.event) for call in found]
    assert {"millpond.store": 2} == log_events.without_event(found)


def test_the_table_has_a_line_for_each_event() -> None:
    """Sorted by event; the same event with the same sentence is one line."""
    found = list(log_events.calls_of_module("a.py", MODULE))
    assert [
        "| `lease.lost` | warning | `millpond.store` | lost %s |",
        "| `store.failed` | error | `millpond.store` | broke |",
    ] == list(log_events.table([*found, *found]))
