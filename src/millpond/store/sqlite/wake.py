"""Hints between the processes that share a file, over UNIX sockets.

Each open store has a datagram socket in a folder beside the database. After a commit a hint goes to
every other socket there. A hint may be lost: a process that hears nothing polls once a second.
So nothing here waits, nothing is tried again, and trouble is worth one line in the log.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import socket
import time
import weakref
from typing import TYPE_CHECKING

import msgspec

from millpond.core.log_fields import about
from millpond.store.hints import PendingHint, without_bad_moments
from millpond.store.protocol import Hint
from millpond.store.sqlite.sidecar_files import folder_beside, give

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger("millpond.sqlite")

PAUSE = 0.005
"""Seconds between two messages; hints in between are merged into the second."""

MOST_NAMED = 256
"""How many ids of a kind a message has; beyond, it says that there are more."""

_ENDING = ".sock"
_LARGEST = 16 * 1024
_LOOK_AGAIN, _TICK = 1.0, 0.05
_AT_ONCE = 64
_LONGEST_NAME = 100
"""The longest socket address that every system allows; Linux has 107."""

REST = 0.25
"""Seconds for which a process that runs and awaits nothing, as a dashboard, reads no hints.

Messages that come meanwhile are read then, as far as its queue holds them.
"""

_GONE = frozenset({errno.ECONNREFUSED, errno.ENOENT})

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Hint).decode


def packed(hint: Hint) -> bytes:
    """Return a message of bounded size; if the hint does not fit, it says that there is more."""
    lists = (hint.wakes, hint.ended, hint.finished_runs, hint.cancelled)
    if max(map(len, lists)) > MOST_NAMED:
        hint = Hint(
            wakes=hint.wakes[:MOST_NAMED],
            ended=hint.ended[:MOST_NAMED],
            finished_runs=hint.finished_runs[:MOST_NAMED],
            cancelled=hint.cancelled[:MOST_NAMED],
            interrupted=hint.interrupted[:MOST_NAMED],
            more=True,
        )
    message = _encode(hint)
    return message if len(message) <= _LARGEST else _encode(Hint(more=True))


class SqliteHintChannel:
    """The socket of one open store. `send` is for the writer's thread, the rest for the loop's."""

    def __init__(self, path: Path, owner: str) -> None:
        self._database = path
        self._name = f"{hashlib.sha256(owner.encode()).hexdigest()[:16]}{_ENDING}"
        self._pending = PendingHint()
        self._sent_at = 0.0
        self._peers: list[str] = []
        self._looked_at = self._changed_at = 0.0
        self._behind: set[str] = set()
        self._listening: asyncio.AbstractEventLoop | None = None
        self._folder_descriptor: int | None = None
        self._socket: socket.socket | None = None
        try:
            self._folder = folder_beside(path, "-wake")
            self._prefix = self._address_of_folder()
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        except (OSError, AttributeError) as error:
            self._do_without(error)
        _OPEN.add(self)

    def receives_hints(self) -> bool:
        """Always False: a process whose queue is full misses hints."""
        return False

    @property
    def open(self) -> bool:
        """Whether hints can be sent."""
        return self._socket is not None

    def listen(self, callback: Callable[[Hint], object], loop: asyncio.AbstractEventLoop) -> None:
        """Call back on the loop with the hints of other processes; False = rest for a while."""
        if self._socket is None:
            return
        try:
            self._socket.bind(self._prefix + self._name)
            give(self._folder / self._name, self._database)
            loop.add_reader(self._socket, self._heard, callback)
        except (OSError, NotImplementedError) as error:
            self._do_without(error)
        else:
            self._listening = loop

    def send(self, hint: Hint | None = None) -> float | None:
        """Send a hint, now or soon; return after how many seconds to call again, if at all."""
        if self._socket is None:
            return None
        if hint is not None:
            self._pending.add(hint)
        if not self._pending:
            return None
        now = time.monotonic()
        if (wait := self._sent_at + PAUSE - now) > 0:
            return wait
        self._sent_at = now
        self._flush()
        return None

    def close(self) -> None:
        """Send the pending hint, and close the socket; safe twice."""
        if self._socket is not None:
            if self._listening is not None:
                self._listening.remove_reader(self._socket)
            self._flush()
            self._socket.close()
            self._remove(self._name)
        if self._folder_descriptor is not None:
            os.close(self._folder_descriptor)
        self._socket = self._folder_descriptor = self._listening = None

    def _do_without(self, error: Exception) -> None:
        log.warning(
            "no wake-ups between the processes that share %s; polling every second: %r",
            self._database,
            error,
            extra=about("hints.unavailable", reason=repr(error)),
        )
        self.close()

    def _address_of_folder(self) -> str:
        """Return the prefix of a socket address; a long path goes through a file descriptor."""
        direct = f"{self._folder}{os.sep}"
        if len(os.fsencode(direct + self._name)) <= _LONGEST_NAME:
            return direct
        self._folder_descriptor = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        by_number = f"/proc/self/fd/{self._folder_descriptor}/"
        if not os.path.isdir(by_number):  # noqa: PTH112 - the slash at its end matters
            raise OSError(errno.ENAMETOOLONG, "the path is too long for a socket", direct)
        return by_number

    # --- sending ----------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read the list of sockets, if it may have changed."""
        now = time.monotonic()
        try:
            changed_at = os.stat(self._folder).st_mtime  # noqa: PTH116 - at each commit
            if changed_at == self._changed_at and now - self._looked_at < _LOOK_AGAIN:
                return
            # Of two changes in one tick of the clock, the second would look like the first.
            settled = abs(time.time() - changed_at) > _TICK
            self._changed_at = changed_at if settled else 0.0
            names = os.listdir(self._folder)  # noqa: PTH208 - names are all that is wanted
        except OSError:
            names = []
        self._looked_at = now
        self._peers = [name for name in names if name.endswith(_ENDING) and name != self._name]
        self._behind.intersection_update(self._peers)

    def _flush(self) -> None:
        pending, self._pending = self._pending, PendingHint()
        if not pending:
            return
        self._look()
        if not self._peers:
            return
        hint = pending.hint()
        message = packed(hint)
        for peer in list(self._peers):
            # A process that missed a hint checks everything.
            missed = peer in self._behind
            self._send_to(
                peer, packed(msgspec.structs.replace(hint, more=True)) if missed else message
            )

    def _send_to(self, peer: str, message: bytes) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(message, self._prefix + peer)
        except OSError as error:
            if error.errno in _GONE:
                self._remove(peer)
            else:  # too slow or too many: it will hear of it with the next one, or find it itself
                self._behind.add(peer)
        else:
            self._behind.discard(peer)

    def _remove(self, name: str) -> None:
        try:
            (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            log.debug(
                "cannot remove socket %s: %s",
                name,
                error,
                extra=about("socket.not_removed", reason=str(error)),
            )
        if name in self._peers:
            self._peers.remove(name)

    # --- hearing ----------------------------------------------------------------------------------

    def _heard(self, callback: Callable[[Hint], object]) -> None:
        """Read everything that has arrived, and call back once."""
        heard = PendingHint()
        for _ in range(_AT_ONCE):
            if self._socket is None:
                return
            try:
                message = self._socket.recv(2 * _LARGEST)
            except OSError:
                break
            try:
                heard.add(without_bad_moments(_decode(message)))
            except (msgspec.MsgspecError, RecursionError) as error:
                log.debug(
                    "ignoring a malformed hint in %s: %s",
                    self._folder,
                    error,
                    extra=about("hint.malformed", reason=str(error)),
                )
        if heard and callback(heard.hint()) is False and self._listening and self._socket:
            self._listening.remove_reader(self._socket)
            self._listening.call_later(REST, self._listen_again, callback)

    def _listen_again(self, callback: Callable[[Hint], object]) -> None:
        if self._listening is not None and self._socket is not None:
            self._listening.add_reader(self._socket, self._heard, callback)


_OPEN: weakref.WeakSet[SqliteHintChannel] = weakref.WeakSet()


def _let_go_after_fork() -> None:
    """Close the parent's socket in a forked child: it would make the parent look alive."""
    for wakes in list(_OPEN):
        if wakes._socket is not None:  # noqa: SLF001 - our own, in a child that may not use it
            wakes._socket.close()  # noqa: SLF001
            wakes._socket = None  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_after_fork)
