"""Events and triggers: what happened, and which pool it means work for.

An event is kept as a task of one pool of the system, and what a trigger makes of it as a task of
another: so both are durable, retried, paused, listed and forgotten as every task is.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millpond.core import validation as check
from millpond.core.bounds import MAX_COUNT, MAX_EVENT_ID, MIN_PRIORITY
from millpond.errors import ConfigError

SYSTEM = "~"
"""What the names of pools begin with that the system has for itself; no other name may."""

EVENTS = "~events"
"""The pool of all events of a store, whatever their names."""

TRIGGERS = "~trigger/"
"""What the names of the triggers' pools begin with; the id of the trigger follows."""

LONGEST_NUMBER = 200
"""How many characters a text may have that is read as a number."""

LONGEST_STEP = 10
"""How many digits a place in a list has, at most."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened: the name of its channel, its id there, and what is told of it."""

    name: str
    id: str
    payload: Any = None
    """Plain JSON data: whatever was emitted comes back as dicts, lists, texts and numbers."""

    @property
    def key(self) -> str:
        """What no other event of the store has: `#` is in no name."""
        return f"{self.name}#{self.id}"


class SentEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event on its way to the triggers: for the first time, or once more."""

    event: Event
    replay: str = ""
    """Told apart from the first time, and from every other replay; empty the first time."""

    @property
    def key(self) -> str:
        """What no other sending of any event has."""
        return f"{self.event.key}#{self.replay}" if self.replay else self.event.key


class TriggerSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a store must know about a trigger, so that every process can dispatch to it."""

    on: tuple[str, ...]
    """The events it is for, by name; none = it was removed."""
    into: str
    """The pool it submits to, as the store calls it."""
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
    """Return what a dotted path leads to, from the event on; None where it leads nowhere."""
    first, *rest = path.split(".")
    if first not in ("name", "id", "payload"):
        # A path may leave out where it must begin.
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
    """Return the whole number at a path, "7" being 7; None where there is none that can be."""
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
    """Return the text at a path, a number as its digits; None where there is neither."""
    found = None if path is None else value_at(event, path)
    if isinstance(found, bool) or not isinstance(found, (str, int, float)):
        return None
    if isinstance(found, int) and not check.is_finite(found):
        # Python refuses to write down a number of 5,000 digits.
        return None
    text = str(found)
    return text if check.fits(text, MAX_EVENT_ID) else None
