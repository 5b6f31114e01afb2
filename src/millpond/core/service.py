"""The base of services: objects made of what they need and of what they keep."""

from __future__ import annotations

import msgspec


class Service(msgspec.Struct, eq=False, dict=True, weakref=True):
    """A service: its fields are what it is made with and, with a default, what it keeps.

    It is a struct because Python defines one in a fiftieth of the time that a dataclass takes.
    """

    __repr__ = object.__repr__
