"""The one way past the public face of an object, for our own packages.

`dir()` of a Millpond, a pool, a handle or a task function shows what users are promised. What the
command line, telemetry, the test kit and the other modules here need beyond that is in an object
behind it: `internals_of(mp).runtime`. Nothing in there is promised to users.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


class HasInternals(Protocol[T_co]):
    """A public object with an internal one behind it."""

    @property
    def _internals(self) -> T_co: ...


def internals_of(public: HasInternals[T_co]) -> T_co:
    """Return the internal object behind a public one."""
    return public._internals  # noqa: SLF001 - the one place that may
