"""The child's side of the process executor: one job at a time, and no life after its parent's.

The main thread runs the handlers, so that signals work, and libraries that insist on it. A second
thread reads from the parent at all times. When the parent is gone it kills the process group, this
process included. On Linux the kernel does the same (see `_die_with`), also while a handler keeps
the interpreter to itself.

Imports are few on purpose: each killed child is replaced by one that has to start.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
from queue import Empty, SimpleQueue

from millpond.core.type_names import qualified_name
from millpond.runtime.executors.processes import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType
    from typing import NoReturn

# How much of an error's message and traceback is sent.
_LONGEST_TEXT = 32 * 1024
_MAIN = "__mp_main__"
_SIGTERM_EXIT = 128 + signal.SIGTERM

# Whether the parent's main file is being run here, under another name. A pool used now is that of
# a script without `if __name__ == "__main__"`: its children would start children without end.
main_is_loading = False


def refuse_while_main_loads(deed: str) -> None:
    """Raise if the parent's main file is being run here: its work must not be done twice."""
    if main_is_loading:
        raise RuntimeError(
            f"this script {deed} while a child of it imports it; "
            'put what only the main process does under `if __name__ == "__main__":`'
        )


class Terminated(SystemExit):
    """The parent wants this process gone; raised in the handler so that it can clean up."""


class Channel:
    """What a handler has of its parent: messages both ways, and the wish that it stop.

    Safe to use from any thread. After the handler has returned, messages sent are dropped.
    """

    def __init__(self, nonce: bytes, write: Callable[[bytes], None]) -> None:
        self.cancelled = threading.Event()
        self.cancel_reason = ""
        self._nonce = nonce
        self._write = write
        self._lock = threading.Lock()
        self._open = True
        self._received: SimpleQueue[bytes] = SimpleQueue()

    def send(self, message: bytes) -> None:
        """Send a message up; blocks while the parent does not read."""
        frame = frames.packed(frames.MESSAGE, self._nonce, frames.fitting(message))
        with self._lock:
            if self._open:
                self._write(frame)

    def receive(self, timeout: float | None = None) -> bytes:
        """Return the next message from the parent; TimeoutError after `timeout` seconds."""
        try:
            return self._received.get(timeout=timeout)
        except Empty:
            raise TimeoutError from None

    def deliver(self, message: bytes) -> None:
        """Keep a message of the parent until the handler asks for it."""
        self._received.put(message)

    def is_for(self, nonce: bytes) -> bool:
        """Whether a frame with this nonce belongs to this job."""
        return nonce == self._nonce

    def answer(self, kind: int, *fields: bytes) -> None:
        """End the job: nothing is sent for it after its answer."""
        frame = frames.packed(kind, self._nonce, *fields)
        with self._lock:
            self._open = False
            self._write(frame)


class Wire:
    """The descriptor that leads to the parent.

    A handler may close it and open something else under its number. Nothing is written there: a
    frame in a user's file or database connection would be worse than a job without an answer.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._identity = self._identify()

    def write(self, data: bytes) -> None:
        """Write all bytes; OSError if the wire is gone."""
        if self._identify() != self._identity:
            raise OSError("the descriptor is not the wire any more")
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._number, rest) :]

    def read(self, size: int) -> bytes:
        """Read exactly `size` bytes; EOFError if the parent is gone."""
        parts = []
        while size:
            part = os.read(self._number, min(size, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _identify(self) -> tuple[int, int]:
        found = os.fstat(self._number)
        return found.st_dev, found.st_ino


class Child:
    """One child process: reads jobs, runs them one after another, answers each once."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._pid = os.getpid()
        self._terminated = False
        self._channel: Channel | None = None
        self._jobs: SimpleQueue[tuple[Channel, list[bytes]] | None] = SimpleQueue()

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """SIGTERM unwinds what the main thread does; SIGHUP says that the parent is dead."""
        if os.getpid() != self._pid:
            # A fork that the handler made: signals mean to it what they mean to any process.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if number == signal.SIGHUP:
            end_group()
        self._terminated = True
        raise Terminated(_SIGTERM_EXIT)

    def listen(self) -> None:
        """Read from the parent until it is gone; then end everything here."""
        try:
            while True:
                self._take_in()
        finally:
            end_group()

    def _take_in(self) -> None:
        length, nonce, kind = frames.HEADER.unpack(self._wire.read(frames.HEADER.size))
        fields = frames.unpacked(self._wire.read(length))
        channel = self._channel
        if kind == frames.RUN:
            self._channel = channel = Channel(nonce, self._wire.write)
            self._jobs.put((channel, fields))
        elif kind == frames.CLOSE:
            self._jobs.put(None)
        elif channel is None or not channel.is_for(nonce):
            pass  # The job it was meant for has ended in the meantime.
        elif kind == frames.CANCEL:
            channel.cancel_reason = fields[0].decode() if fields else ""
            channel.cancelled.set()
        elif kind == frames.MESSAGE:
            channel.deliver(fields[0])

    def work(self) -> None:
        """Run jobs until the parent closes it."""
        while (job := self._jobs.get()) is not None:
            channel, fields = job
            kind, answer = _attempt(channel, fields)
            # A fork inside the handler that found its way back here is not the one who answers.
            if os.getpid() != self._pid:
                os._exit(0)
            if self._terminated:
                raise Terminated(_SIGTERM_EXIT)
            _flush()
            channel.answer(kind, *answer)


def main(wire: int, lifeline: int, parent: int) -> None:
    """Serve the parent over the inherited descriptors until it closes or dies."""
    os.set_inheritable(wire, False)
    os.set_inheritable(lifeline, False)
    child = Child(Wire(wire))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, child.on_signal)
    # What the parent's thread had blocked is inherited.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM, signal.SIGHUP])
    _die_with(parent, lifeline)
    threading.Thread(target=child.listen, name="millpond-parent", daemon=True).start()
    child.work()


def end_group() -> NoReturn:
    """Kill this process and all that its handlers started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _die_with(parent: int, lifeline: int) -> None:
    """Ask the kernel to end this process group with the parent, where it can (Linux).

    Nothing is ever written to the lifeline, so the one thing that can happen to it is that its
    other end closes. The kernel then sends SIGKILL to the group, whatever runs here. A fork of the
    parent may hold that end, too; therefore the parent death signal beside it. That one is not
    SIGKILL, which would end this process alone and spare the rest of the group.
    """
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - not needed elsewhere, and not small
        import fcntl  # noqa: PLC0415

        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGHUP, 0, 0, 0)
    if os.getppid() != parent:
        end_group()


def _attempt(channel: Channel, fields: list[bytes]) -> tuple[int, tuple[bytes, ...]]:
    """Run one job and return its answer; whatever the handler raises is part of the answer."""
    module, qualname, payload, context, main_name, main_path = fields
    try:
        target = _find(
            module.decode(), qualname.decode(), main_name.decode(), os.fsdecode(main_path)
        )
    except BaseException as error:  # noqa: BLE001 - a module may raise anything
        return frames.BROKE, (*_described(error), b"")
    try:
        return frames.DONE, (_call(target, payload, context, channel),)
    except BaseException as error:  # noqa: BLE001 - so may a handler
        return frames.BROKE, (*_described(error), frames.LOADED)


def _call(target: object, payload: bytes, context: bytes, channel: Channel) -> bytes:
    run_encoded = getattr(target, "_run_encoded", None)
    if run_encoded is not None:
        value = run_encoded(payload, context, channel)
    elif callable(target):
        value = target(payload)
    else:
        raise TypeError(f"{target!r} is not a handler")
    if not isinstance(value, bytes):
        raise TypeError(f"a handler returns bytes, not {type(value).__name__}")
    return value


def _find(module: str, qualname: str, main_name: str, main_path: str) -> object:
    """Return the object of that name; ImportError whatever went wrong on the way."""
    try:
        found: object = (
            _load_main(main_name, main_path)
            if module == "__main__"
            else importlib.import_module(module)
        )
    except (ImportError, Terminated):
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {_text(error)}"
        raise ImportError(f"importing {module!r} failed: {reason}") from error
    try:
        for name in qualname.split("."):
            found = getattr(found, name)
    except AttributeError:
        raise ImportError(f"module {module!r} has no {qualname!r}") from None
    return found


def _load_main(name: str, path: str) -> ModuleType:
    """Run the parent's main module once, under another name, as multiprocessing's spawn does."""
    global main_is_loading  # noqa: PLW0603 - one process, one main module
    if _MAIN in sys.modules:
        return sys.modules[_MAIN]
    if name == "__main__" or name.endswith(".__main__"):
        raise ImportError(
            f"{name} cannot be run twice; put handlers for processes into a module of their own"
        )
    if not name and not path:
        raise ImportError("the main module has no file; put handlers for processes into a module")
    import runpy  # noqa: PLC0415 - only for handlers in a main module

    module = type(sys)(_MAIN)
    main_is_loading = True
    try:
        content = (
            runpy.run_module(name, run_name=_MAIN, alter_sys=True)
            if name
            else runpy.run_path(path, run_name=_MAIN)
        )
    finally:
        main_is_loading = False
    module.__dict__.update(content)
    sys.modules["__main__"] = sys.modules[_MAIN] = module
    return module


def _described(error: BaseException) -> tuple[bytes, bytes, bytes, bytes]:
    """Return kind, message, traceback and wish of an error; never raises."""
    return (
        _encoded(_kind(error), slice(_LONGEST_TEXT)),
        _encoded(_text(error), slice(_LONGEST_TEXT)),
        _encoded(_traceback(error), slice(-_LONGEST_TEXT, None)),
        _wish(error),
    )


def _encoded(text: str, part: slice) -> bytes:
    """Return that part of the text's bytes, less a character that is cut in two."""
    encoded = text[part].encode("utf-8", "backslashreplace")[part]
    return encoded.decode("utf-8", "ignore").encode()


def _kind(error: BaseException) -> str:
    return qualified_name(type(error))


def _text(error: BaseException) -> str:
    for describe in (str, repr):
        try:
            return describe(error)
        except BaseException:  # noqa: BLE001, S112 - one that cannot be described is one still
            continue
    return object.__repr__(error)


_CALLERS = "millpond.pool."
"""The package of the modules between this one and a handler."""


def _traceback(error: BaseException) -> str:
    """Return the traceback from the handler on; the frames below it are ours."""
    try:
        import traceback  # noqa: PLC0415 - needed when something broke, and not small

        trace = error.__traceback__
        while trace is not None and _is_ours(trace.tb_frame):
            trace = trace.tb_next
        return "".join(traceback.format_exception(type(error), error, trace))
    except BaseException:  # noqa: BLE001 - an error that cannot be described is still an error
        return ""


def _is_ours(frame: FrameType) -> bool:
    """Whether a frame is one that calls the handler, here or in the module that was named."""
    module = frame.f_globals.get("__name__", "")
    return frame.f_code.co_filename == __file__ or module.startswith(_CALLERS)


def _wish(error: BaseException) -> bytes:
    try:
        wish = getattr(error, "__millpond_wish__", b"")
        value = wish() if callable(wish) else wish
    except BaseException:  # noqa: BLE001 - as above
        return b""
    return value if isinstance(value, bytes) else b""


def _flush() -> None:
    """Let out what the handler printed: this process may be killed before it prints again."""
    for stream in (sys.stdout, sys.stderr):
        # Closed, replaced or gone: that was the handler's choice.
        with contextlib.suppress(Exception):
            stream.flush()
