"""Events and triggers: what happened, and which pool gets a task for it.

An event is a task of one internal pool, and its delivery to a trigger a task of another: so both
are durable, retried, paused, listed and removed like every task.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millpond.core import validation as check
from millpond.core.bounds import MAX_COUNT, MAX_EVENT_ID, MIN_PRIORITY
from millpond.errors import ConfigError

SYSTEM = "~"
"""The first character of the names of internal pools; no other pool name may have it."""

EVENTS = "~events"
"""The pool of all events of a store, whatever their names."""

TRIGGERS = "~trigger/"
"""The prefix of the names of triggers' pools; the id of the trigger follows."""

LONGEST_NUMBER = 200
"""The longest text that is parsed as a number, in characters."""

LONGEST_STEP = 10
"""The most digits of an index into a list."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened: its name, its id among events of that name, and its payload."""

    name: str
    """Its name, which triggers listen to."""
    id: str
    """Its id, unique among the events of its name."""
    payload: Any = None
    """Plain JSON data: dicts, lists, texts and numbers."""

    @property
    def key(self) -> str:
        """A key that no other event of the store has: no name contains `#`."""
        return f"{self.name}#{self.id}"


class SentEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event on its way to the triggers: for the first time, or replayed."""

    event: Event
    replay: str = ""
    """Identifies the replay; empty the first time."""

    @property
    def key(self) -> str:
        """A key that no other sending of any event has."""
        return f"{self.event.key}#{self.replay}" if self.replay else self.event.key


class TriggerSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A trigger as stored, so that every process can dispatch to it."""

    on: tuple[str, ...]
    """The names of its events; none = the trigger was removed."""
    into: str
    """The stored name of the pool it submits to."""
    task: str | None = None
    """The task it submits; None = a function makes the call."""
    priority_from: str | None = None
    key_from: str | None = None
    weight_from: str | None = None
    attempts: int = 3
    """How often a delivery is tried before it is a dead letter."""

    def __post_init__(self) -> None:
        for name in self.on:
            check.name("on", name)
        for option in ("priority_from", "key_from", "weight_from"):
            path = getattr(self, option)
            if path is not None and not all(check.text(option, path).split(".")):
                raise ConfigError(option, path, "must be a path such as payload.urgency")


def pool_of_trigger(trigger: str) -> str:
    """Return the name of a trigger's own pool."""
    if len(check.name("id", trigger)) > check.LONGEST_NAME - len(TRIGGERS):
        most = check.LONGEST_NAME - len(TRIGGERS)
        raise ConfigError("id", trigger, f"must have at most {most} characters")
    return TRIGGERS + trigger


def value_at(event: Event, path: str) -> object:
    """Return the value at a dotted path into an event, or None."""
    first, *rest = path.split(".")
    if first not in ("name", "id", "payload"):
        # A path may omit the leading `payload`.
        first, rest = "payload", [first, *rest]
    found: object = getattr(event, first)
    for step in rest:
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list) and len(step) < LONGEST_STEP and _is_index(step):
            found = found[int(step)] if int(step) < len(found) else None
        else:
            return None
    return found


def _is_index(step: str) -> bool:
    return step.isascii() and step.isdecimal()


def integer_at(event: Event, path: str | None, least: int = MIN_PRIORITY) -> int | None:
    """Return the whole number at a path (the text "7" is 7), or None."""
    found = None if path is None else value_at(event, path)
    if isinstance(found, str):
        try:
            found = float(found) if len(found) <= LONGEST_NUMBER else None
        except ValueError:
            return None
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return None
    if not check.is_finite(found):
        # Also a whole number of 400 digits, which no float holds.
        return None
    number = int(found)
    return number if least <= number <= MAX_COUNT else None


def text_at(event: Event, path: str | None) -> str | None:
    """Return the text at a path, or the digits of a number, or None."""
    found = None if path is None else value_at(event, path)
    if isinstance(found, bool) or not isinstance(found, (str, int, float)):
        return None
    if isinstance(found, int) and not check.is_finite(found):
        # Python refuses to write down a number of 5,000 digits.
        return None
    text = str(found)
    return text if check.fits(text, MAX_EVENT_ID) else None
