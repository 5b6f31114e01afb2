"""Handlers for the tests of the process executor, which child processes import."""

import atexit
import collections
import contextlib
import ctypes
import itertools
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from tests.waiting import for_ever

from millpond.runtime.executors.processes import frames
from millpond.runtime.executors.processes.child import Channel


class SendingPids:
    """A handler that starts a process, sends both pids, and runs the deed."""

    def __init__(
        self, deed: Callable[[], object], *, before: Callable[[], object] = lambda: None
    ) -> None:
        self._before = before
        self._deed = deed

    def _run_encoded(self, payload: bytes, context: bytes, channel: Channel) -> bytes:
        self._before()
        grandchild = subprocess.Popen(["/bin/sleep", "3600"])
        self.send_pids_and_run(lambda: channel.send(f"{os.getpid()} {grandchild.pid}".encode()))
        return b"survived"

    def send_pids_and_run(self, send_pids: Callable[[], object]) -> None:
        send_pids()
        self._deed()


class Holding(SendingPids):
    """A handler that then loops in C: no other thread and no Python signal handler runs again."""

    def __init__(self) -> None:
        super().__init__(lambda: None)

    def send_pids_and_run(self, send_pids: Callable[[], object]) -> None:
        # The loop itself sends the pids, so it is already running when they arrive.
        sending = (send_pids() for _ in range(1))
        collections.deque(itertools.chain(sending, itertools.repeat(None)), maxlen=0)


def _spin() -> NoReturn:
    while True:
        pass


def _sleep() -> None:
    for_ever()


def _ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for_ever()


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _without_the_kernel() -> None:
    """Undo the kernel's help, so that only the thread that listens to the parent can end it."""
    import fcntl

    for number in _open_descriptors(stat.S_ISFIFO):
        flags = fcntl.fcntl(number, fcntl.F_GETFL)
        fcntl.fcntl(number, fcntl.F_SETFL, flags & ~os.O_ASYNC)
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)


sleeping = SendingPids(_sleep)
spinning = SendingPids(_spin)
holding = Holding()
ignoring_sigterm = SendingPids(_ignore_sigterm)
stopped = SendingPids(_stop)
spinning_without_the_kernel = SendingPids(_spin, before=_without_the_kernel)
leaving_a_grandchild = SendingPids(lambda: os._exit(3))
returning = SendingPids(lambda: None)


def echo(payload: bytes) -> bytes:
    return payload


def pid(_payload: bytes) -> bytes:
    return str(os.getpid()).encode()


def session(_payload: bytes) -> bytes:
    return f"{os.getsid(0)} {os.getpgrp()} {os.getpid()}".encode()


def read_standard_input(_payload: bytes) -> bytes:
    return sys.stdin.buffer.read()


def write_at_exit(payload: bytes) -> bytes:
    atexit.register(Path(payload.decode()).write_text, "left through the door")
    return b""


# Ways to end one's own process.


def exit_at_once(_payload: bytes) -> bytes:
    os._exit(3)


def kill_itself(_payload: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b"survived"


def crash(_payload: bytes) -> bytes:
    return ctypes.string_at(0)


def exit_politely(_payload: bytes) -> bytes:
    sys.exit(4)


def interrupt_itself(_payload: bytes) -> bytes:
    raise KeyboardInterrupt


def exit_in_a_thread(_payload: bytes) -> bytes:
    threading.Thread(target=os._exit, args=(5,)).start()
    for_ever()
    return b"survived"


def terminate_itself(_payload: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGTERM)
    for_ever()
    return b"survived"


# Descriptors that are not the handler's.


def _open_descriptors(is_wanted: Callable[[int], bool]) -> Iterator[int]:
    for number in range(3, 256):
        with contextlib.suppress(OSError):
            if is_wanted(os.fstat(number).st_mode):
                yield number


def write_everywhere(payload: bytes) -> bytes:
    for number in _open_descriptors(stat.S_ISSOCK):
        os.write(number, payload)
    return b"answered"


def forge(_payload: bytes) -> bytes:
    return write_everywhere(frames.packed(frames.DONE, os.urandom(16), b"forged"))


def close_everything(_payload: bytes) -> bytes:
    os.closerange(3, 256)
    return b"answered"


def put_a_file_in_its_place(payload: bytes) -> bytes:
    for number in _open_descriptors(stat.S_ISSOCK):
        file = os.open(payload.decode(), os.O_RDWR | os.O_CREAT)
        os.dup2(file, number)
    return b"answered"


def fork_and_return(_payload: bytes) -> bytes:
    """Both the process and its fork return from here."""
    return b"the fork" if os.fork() == 0 else b"the child"


def fork_and_exit(_payload: bytes) -> bytes:
    """The fork holds the child's end of the socket after the child is gone."""
    if os.fork() == 0:
        for_ever()
    os._exit(3)


def large(payload: bytes) -> bytes:
    return bytes(int(payload))


# Errors.


class Wishing(Exception):
    def __millpond_wish__(self) -> bytes:
        return b"in a minute"


class WishingByAttribute(Exception):
    __millpond_wish__ = b"at noon"


class Unwilling(Exception):
    """An error whose str() and repr() fail."""

    __millpond_wish__ = 3

    def __str__(self) -> str:
        raise ValueError("no text")

    def __repr__(self) -> str:
        sys.exit("no picture")


def wish(_payload: bytes) -> bytes:
    raise Wishing("not now")


def wish_by_attribute(_payload: bytes) -> bytes:
    raise WishingByAttribute


def be_unwilling(_payload: bytes) -> bytes:
    raise Unwilling


def fail_at_length(_payload: bytes) -> bytes:
    raise ValueError("ä\udc80" * 100_000)


def return_text(_payload: bytes) -> str:
    return "text"


nothing_to_call = 7


# Messages.


class Talking:
    """A handler that answers each message, and returns when it is cancelled."""

    def _run_encoded(self, payload: bytes, context: bytes, channel: Channel) -> bytes:
        channel.send(payload + context)
        while not channel.cancelled.is_set():
            with contextlib.suppress(TimeoutError):
                channel.send(channel.receive(timeout=0.01).upper())
        return b"cancelled"


class Waiting:
    """A handler that returns the first message it gets."""

    def _run_encoded(self, payload: bytes, context: bytes, channel: Channel) -> bytes:
        channel.send(b"begun")
        return channel.receive()


class Late:
    """A handler whose thread sends messages after the handler has returned."""

    def _run_encoded(self, payload: bytes, context: bytes, channel: Channel) -> bytes:
        def talk() -> None:
            while True:
                channel.send(b"still here")

        threading.Thread(target=talk, daemon=True).start()
        return b"done"


class CleaningUp:
    """A handler that writes a note however it ends."""

    def _run_encoded(self, payload: bytes, context: bytes, channel: Channel) -> bytes:
        try:
            channel.send(b"begun")
            for_ever()
        finally:
            Path(payload.decode()).write_text("cleaned up")
        return b"survived"


class AnsweringAndExiting:
    """A handler whose thread ends the process as soon as the answer is sent."""

    def _run_encoded(self, payload: bytes, context: bytes, channel: Channel) -> bytes:
        def leave() -> None:
            while channel._open:
                time.sleep(0)
            with channel._lock:
                os._exit(0)

        threading.Thread(target=leave).start()
        return b"answered"


answering_and_exiting = AnsweringAndExiting()
cleaning_up = CleaningUp()
talking = Talking()
waiting = Waiting()
late = Late()
