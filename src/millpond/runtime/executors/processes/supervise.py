"""One child process as its parent sees it, from its start until it is reaped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

from millpond.core.log_fields import about
from millpond.runtime.executors.processes import frames
from millpond.runtime.executors.processes.protocol import (
    Answer,
    Broke,
    Died,
    Done,
    Errand,
    OnMessage,
)

_log = logging.getLogger("millpond.processes")

# How long a child may take to be gone after SIGKILL before it is left to the kernel, in seconds.
UNKILLABLE = 1.0
# Seconds in which a child that closed its socket may exit: its exit status says why.
_HUNG_UP = 0.1
_CHUNK = 256 * 1024
# What a dead child can have left in its socket's buffer, in chunks: more than any kernel keeps.
_LAST_WORDS = 256
# The child looks for modules exactly where we do, beginning with its own.
_START = (
    "import sys; wire, lifeline, parent, paths = map(int, sys.argv[1:5]); "
    "sys.path[:] = sys.argv[5 : 5 + paths]; sys.argv[:] = sys.argv[5 + paths :]; "
    "from millpond.runtime.executors.processes.child import main; main(wire, lifeline, parent)"
)


class Supervised:
    """A child process: takes one job at a time, and is not used again once it is asked to end.

    Everything here runs in callbacks of the loop, so that no task can be cancelled halfway through
    an ending. `gone` is done when the process is reaped and nothing of it is left here.
    """

    def __init__(self, grace: float, on_gone: Callable[[Supervised], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._grace = grace
        self._on_gone = on_gone
        self._process, self._socket, self._lifeline = _start()
        self._nonce = frames.NO_NONCE
        self._answer: asyncio.Future[Answer] | None = None
        self._on_message: OnMessage | None = None
        self._received = bytearray()
        self._unsent = bytearray()
        self._is_ending = False
        # The answer to its job when it is gone, if not the exit status.
        self._verdict: Answer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._socket, self._read)
        self._stop_watching = _watch(self._loop, self._process, self._exited)

    @property
    def pid(self) -> int:
        """The number of the process, and of the group it leads."""
        return self._process.pid

    # Jobs.

    def is_fit(self) -> bool:
        """Whether it can take a job: alive, not on its way out, and silent."""
        return not self._is_ending and self._answer is None and not self._received

    def begin(self, job: Errand, on_message: OnMessage | None) -> asyncio.Future[Answer] | None:
        """Send the job; None if the child cannot take it any more, so that it has not begun."""
        if not self.is_fit():
            return None
        self._nonce = secrets.token_bytes(len(frames.NO_NONCE))
        name, path = _main_module() if job.module == "__main__" else ("", "")
        names = (job.module.encode(), job.qualname.encode())
        main = (name.encode(), os.fsencode(path))
        if not self.post(frames.RUN, *names, job.payload, job.context, *main):
            return None
        self._on_message = on_message
        self._answer = self._loop.create_future()
        return self._answer

    def post(self, kind: int, *fields: bytes) -> bool:
        """Send a frame of the job under way; False if the child does not read it."""
        if self.gone.done():
            return False
        self._unsent += frames.packed(kind, self._nonce, *fields)
        return self._write()

    def _write(self) -> bool:
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent[:_CHUNK])]
        except BlockingIOError:
            self._loop.add_writer(self._socket, self._write)
            return True
        except OSError:
            # It does not read any more. Its exit status says how it ended.
            self._unsent.clear()
            self._loop.remove_writer(self._socket)
            return False
        self._loop.remove_writer(self._socket)
        return True

    def _read(self) -> bool:
        """Take in what the child sent; False if nothing is there."""
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._hung_up()
            return False
        self._received += data
        try:
            self._parse()
        except ValueError as error:
            self._condemn(f"protocol: {error}")
        return True

    def _parse(self) -> None:
        """Hear every whole frame received; ValueError for what is none."""
        while len(self._received) >= frames.HEADER.size:
            length, nonce, kind = frames.HEADER.unpack_from(self._received)
            # Only the handler of the job under way knows the nonce.
            if self._answer is None or nonce != self._nonce:
                raise ValueError("the child sent what is no frame of its job")
            if length > frames.LARGEST:
                raise ValueError(f"an answer of {length} bytes is larger than 64 MiB")
            end = frames.HEADER.size + length
            if len(self._received) < end:
                return
            body = bytes(self._received[frames.HEADER.size : end])
            del self._received[:end]
            self._hear(kind, frames.unpacked(body))

    def _hear(self, kind: int, fields: list[bytes]) -> None:
        match kind, fields:
            case frames.MESSAGE, [message]:
                self._report(message)
            case frames.DONE, [value]:
                self._settle(Done(value=value))
            case frames.BROKE, [kind_of_error, message, traceback, data, loaded]:
                broke = Broke(
                    kind=_decoded(kind_of_error),
                    message=_decoded(message),
                    traceback=_decoded(traceback),
                    data=data,
                    loaded=loaded == frames.LOADED,
                )
                self._settle(broke)
            case _:
                raise ValueError(f"the child sent a frame of unknown kind {kind}")

    def _report(self, message: bytes) -> None:
        if self._on_message is None:
            return
        try:
            self._on_message(message)
        except Exception as error:  # noqa: BLE001 - the listener's fault is not the child's
            context = {"message": "on_message of a process job raised", "exception": error}
            self._loop.call_exception_handler(context)

    def _settle(self, answer: Answer) -> None:
        """End the job under way, if there is one."""
        future, self._answer, self._on_message = self._answer, None, None
        if future is not None and not future.done():
            future.set_result(answer)

    # Endings.

    def kill(self, verdict: Answer | None) -> None:
        """End it by SIGTERM and after the grace by SIGKILL; the answer to its job is `verdict`."""
        if not self._is_ending:
            self._on_message = None
            self._verdict = verdict
            self._signal(signal.SIGTERM)
            self._end_after(self._grace)

    def retire(self) -> None:
        """Ask an idle child to leave; it has the grace for it."""
        if not self._is_ending:
            self.post(frames.CLOSE)
            self._end_after(self._grace)

    def _condemn(self, reason: str) -> None:
        """Kill it now: what it says cannot be trusted."""
        self._received.clear()
        self._loop.remove_reader(self._socket)
        self._verdict = self._verdict or Died(reason=reason)
        self._end_after(0)

    def _hung_up(self) -> None:
        """It is about to exit, or its handler closed a descriptor of ours."""
        self._loop.remove_reader(self._socket)
        if not self._is_ending:
            self._is_ending = True
            self._timer = self._loop.call_later(_HUNG_UP, self._condemn, "protocol: it hung up")

    def _end_after(self, seconds: float) -> None:
        self._is_ending = True
        self._stop_timer()
        if seconds > 0:
            self._timer = self._loop.call_later(seconds, self._kill_group)
        else:
            self._kill_group()

    def _kill_group(self) -> None:
        self._signal(signal.SIGKILL)
        self._timer = self._loop.call_later(UNKILLABLE, self._complain)

    def _complain(self) -> None:
        _log.warning(
            "child process %d does not end after SIGKILL",
            self.pid,
            extra=about("process.unkillable", reason=str(self.pid)),
        )

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _signal(self, number: int) -> None:
        """Signal the whole group; the child is not reaped yet, so the number is still its own."""
        # macOS answers "not permitted" where all members only wait to be reaped.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _exited(self) -> None:
        """Hear its last words, end what is left of its group, reap it, let go of everything."""
        self._stop_watching()
        if self._answer is not None and not self._is_ending:
            # All it ever sent is in the socket's buffer now. Only a fork of it could send more.
            for _ in range(_LAST_WORDS):
                if not self._read():
                    break
        self._is_ending = True
        self._stop_timer()
        self._signal(signal.SIGKILL)
        status = self._process.poll()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        os.close(self._lifeline)
        self.gone.set_result(None)
        self._settle(self._verdict or Died(reason=_in_words(status)))
        self._on_gone(self)


def _start() -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """Start a child; return it, our end of its socket and our end of its lifeline."""
    ours, theirs = socket.socketpair()
    their_lifeline, our_lifeline = os.pipe()
    passed = (theirs.fileno(), their_lifeline)
    numbers = (*passed, os.getpid(), len(sys.path))
    # -P: nothing is put in front of the path that we hand over.
    command = [sys.executable, *_options(), "-P", "-c", _START]
    try:
        ours.setblocking(False)
        process = subprocess.Popen(  # noqa: S603 - our own interpreter on our own module
            [*command, *map(str, numbers), *map(str, sys.path), *map(str, sys.argv)],
            stdin=subprocess.DEVNULL,
            pass_fds=passed,
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        os.close(our_lifeline)
        raise
    finally:
        theirs.close()
        os.close(their_lifeline)
    return process, ours, our_lifeline


def _options() -> list[str]:
    """Return the options of this interpreter (-O, -W, -X ...) for a child to have the same."""
    found = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # noqa: SLF001 - what multiprocessing does
    return list(found)


def _watch(
    loop: asyncio.AbstractEventLoop,
    process: subprocess.Popen[bytes],
    callback: Callable[[], None],
) -> Callable[[], None]:
    """Call back on the loop once the process has ended but is not reaped; returns how to stop."""
    try:
        descriptor = _pidfd(process.pid)
    except (OSError, AttributeError):  # an old kernel or a sandbox; an interpreter built without
        _watch_in_a_thread(loop, process, callback)
        return lambda: None

    def stop() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)

    loop.add_reader(descriptor, callback)
    return stop


def _pidfd(pid: int) -> int:
    """Return a descriptor that is readable when the process has ended; OSError without support."""
    if sys.platform == "linux":
        return os.pidfd_open(pid)
    raise OSError("no process descriptors on this system")


def _watch_in_a_thread(
    loop: asyncio.AbstractEventLoop,
    process: subprocess.Popen[bytes],
    callback: Callable[[], None],
) -> None:
    """Do the same with a thread that waits; on macOS it also reaps, as there is no other wait."""

    def wait() -> None:
        if sys.platform == "darwin":
            process.wait()
        else:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        # The loop may be closed by now, and with it all who wanted to know.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(callback)

    threading.Thread(target=wait, name=f"millpond-child-{process.pid}", daemon=True).start()


def _main_module() -> tuple[str, str]:
    """Return the name of our main module if it was run by -m, else the path of its file."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return spec.name, ""
    path = getattr(main, "__file__", None)
    return "", os.path.abspath(path) if path else ""  # noqa: PTH100 - it goes over a wire


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _in_words(status: int | None) -> str:
    """Say how a process ended, from its return code."""
    if status is None:
        return "it ended, and how is not known"
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
