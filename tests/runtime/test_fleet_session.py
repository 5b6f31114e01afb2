"""The thread that keeps the session of a process survives errors."""

import asyncio
import errno
import logging
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from millpond.runtime.fleet import session as sessions
from millpond.runtime.fleet.session import SessionKeeper

pytestmark = pytest.mark.real_loop


class Session:
    """A session whose socket cannot be watched for a while: the process has no descriptor left."""

    mark = "~session"
    watches = False

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.confirmed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._ends = socket.socketpair()

    def open(self) -> None:
        """Succeed."""

    def fileno(self) -> int:
        """Fail as often as the test wants."""
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._ends[0].fileno()

    def confirm(self, *, watch: bool) -> None:
        """Note a call after the failures."""
        assert not watch
        if not self.failures:
            self._loop.call_soon_threadsafe(self.confirmed.set)

    def is_impossible(self, error: Exception) -> bool:
        """Give up for no error."""
        assert isinstance(error, OSError)
        return False

    def close(self) -> None:
        """Keep the sockets until the end of the test."""

    def end(self) -> None:
        """Close the sockets."""
        for one in self._ends:
            one.close()


async def test_a_session_that_cannot_be_watched_is_confirmed_at_intervals(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread goes on, logs the problem once, and watches again later."""
    monkeypatch.setattr(sessions, "LONGEST_PAUSE", 0.01)
    caplog.set_level(logging.WARNING, "millpond.session")
    session = Session(failures=3)
    env: Any = SimpleNamespace(
        loop=asyncio.get_running_loop(),
        owner="me",
        shared_store=SimpleNamespace(session=lambda _: session),
    )
    keeper = SessionKeeper(env, [], lambda: False, lambda: None, lambda _: None)
    try:
        await keeper.ready()
        await asyncio.wait_for(session.confirmed.wait(), 20)
        assert keeper.is_open
        assert 1 == caplog.text.count("cannot watch the session of this process")
    finally:
        await keeper.stop()
        session.end()
