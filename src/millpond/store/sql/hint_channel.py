"""Hints to and from other processes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.store.protocol import (
        Hint,
    )


class HintChannel(Protocol):
    """Sends hints to other processes and receives theirs."""

    def listen(self, on_hint: Callable[[Hint], object], loop: asyncio.AbstractEventLoop) -> None:
        """Call `on_hint` on this loop with the hints of other processes."""

    def receives_hints(self) -> bool:
        """Return whether hints of other processes arrive at the moment."""

    def send(self, hint: Hint | None) -> float | None:
        """Send a hint; return after how many seconds to be called again, if at all."""

    def close(self) -> None:
        """Stop sending and receiving."""
