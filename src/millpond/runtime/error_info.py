"""Errors of handlers as data: what is stored with a task that failed."""

from __future__ import annotations

import traceback

import msgspec

from millpond.core import bounds
from millpond.core.type_names import public_name, qualified_name

LONGEST_TRACEBACK = bounds.MAX_TRACEBACK
LONGEST_MESSAGE = bounds.MAX_ERROR_MESSAGE

_OURS = ("millpond.runtime.", "millpond.pool.")


class ErrorInfo(msgspec.Struct, frozen=True):
    """An exception that can be stored: its type by name, its message, its traceback as text."""

    type: str
    """The name of its type, with its module but for builtins; of ours, as `millpond.GiveUp`."""
    message: str
    """Its message, at most 4,096 characters."""
    traceback: str = ""
    """Its traceback as text, the last 16,384 characters."""

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


def describe(error: BaseException) -> bytes:
    """Return an exception as bytes; never fails, whatever the exception's own methods do."""
    return msgspec.msgpack.encode(info_of(error))


def info_of(error: BaseException) -> ErrorInfo:
    """Return what is kept of an exception."""
    known = vars(error).get("info")
    if isinstance(known, ErrorInfo):
        # It was raised in another process, which has described it.
        return known
    kind = _storable(qualified_name(type(error))[: bounds.MAX_ERROR_TYPE])
    return ErrorInfo(kind, _message(error), _traceback(error))


def read(stored: bytes | None) -> ErrorInfo | None:
    """Return a stored error, or None where there is none."""
    if not stored:
        return None
    try:
        info = msgspec.msgpack.decode(stored, type=ErrorInfo)
    except msgspec.MsgspecError:
        return ErrorInfo("unknown", stored.decode("utf-8", "replace")[:LONGEST_MESSAGE])
    # Earlier versions stored module paths of this library.
    name = public_name(info.type)
    return info if name == info.type else msgspec.structs.replace(info, type=name)


def from_the_handler_on(error: BaseException) -> bool:
    """Cut our own frames off the top of a traceback; return whether a handler has frames in it.

    A traceback without frames of a handler keeps them, unless it came from another process.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(_OURS):
        trace = trace.tb_next
    if trace is not None or "info" in vars(error):
        error.__traceback__ = trace
    return trace is not None


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - a handler's exception may be as broken as it likes
        return "(its message could not be read)"
    return _storable(text[:LONGEST_MESSAGE])


def _traceback(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - see above
        return ""
    return _storable(text[-LONGEST_TRACEBACK:])


def _storable(text: str) -> str:
    """Return text that every store can keep: no lone surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8")
