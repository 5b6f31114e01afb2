"""A call by name: a function that this process does not know, with arguments as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from millpond.core import validation as check
from millpond.core.task import Call
from millpond.errors import BadPayload
from millpond.pool.payload.codec import plain_json

_decode = msgspec.json.Decoder().decode


class NamedCall:
    """The name of a function, and its arguments by name."""

    __slots__ = ("_arguments", "_function", "_largest")

    def __init__(self, function: str, arguments: Mapping[str, Any], largest: int) -> None:
        self._function = check.name("function", function)
        check.instance("arguments", arguments, Mapping, 'a mapping, such as {"to": "ada"}')
        for one in arguments:
            check.text("arguments", one)
        self._arguments = dict(arguments)
        self._largest = largest

    def encode(self) -> Call:
        """Return the call as data; BadPayload for arguments that cannot be stored."""
        try:
            payload = plain_json(self._arguments)
        except RecursionError as error:
            raise self._bad("they are nested too deeply") from error
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise self._bad(str(error)) from error
        if len(payload) > self._largest:
            raise self._bad(f"they have {len(payload)} bytes, the limit is {self._largest}")
        return Call(self._function, payload)

    def argument(self, name: str) -> Any:  # noqa: ANN401 - an argument of any type
        """Return the argument of a name, or None."""
        return self._arguments.get(name)

    def _bad(self, reason: str) -> BadPayload:
        return BadPayload(
            f"the arguments of {self._function} cannot be stored: {reason}",
            task=self._function,
            parameter=None,
            reason=reason,
        )

    def __repr__(self) -> str:
        return f"{self._function}({', '.join(f'{k}={v!r}' for k, v in self._arguments.items())})"


def decode_plain(stored: bytes) -> Any:  # noqa: ANN401 - whatever JSON can say
    """Return a result as plain data: its type is not known here."""
    return _decode(stored)
