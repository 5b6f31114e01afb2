"""Mutual exclusion for sections that take less time than a `threading.Lock` does."""

from __future__ import annotations

import time
from collections import deque

# The pauses double from a microsecond, so that all of them together take twice this, in seconds.
_LONGEST_PAUSE = 10e-3
# How often that is repeated before the key is taken for lost: about five seconds.
_PATIENCE = 250


class Lock:
    """One key in a deque: the thread that pops it is alone until it appends it again.

    `deque.pop` and `deque.append` are documented as thread-safe, so two threads never get the one
    key. Taking and returning it costs a third of what a `threading.Lock` costs, which is as much
    as the rest of an admission. In return it has no queue of its own: a thread that finds the key
    gone gives way until it is back. Its holder is inside a section that never waits, so all it
    needs in order to finish is the interpreter, which is what the others are giving up.

    Hot paths use `keys` directly, and `wait` where the pop fails; all others use `with`. An
    interrupt (KeyboardInterrupt) can strike as soon as the pop has returned, before the section is
    guarded: any error but IndexError there means that the key was taken, and puts it back.
    """

    __slots__ = ("keys",)

    def __init__(self) -> None:
        self.keys: deque[None] = deque([None])

    def __enter__(self) -> None:
        try:
            self.keys.pop()
        except IndexError:
            self.wait()
        except BaseException:
            self.keys.append(None)
            raise

    def __exit__(self, *_error: object) -> None:
        self.keys.append(None)

    def wait(self) -> None:
        """Give way until the key is back, and take it.

        A section takes microseconds. If its key is not back after seconds, the holder will never
        return it: it is this very thread, or an exception that can strike anywhere, such as
        KeyboardInterrupt, struck between taking the key and guarding it. Then say so.
        """
        for _ in range(_PATIENCE):
            if self.wait_briefly():
                return
        raise RuntimeError(
            "this bulkhead's lock is lost: it was used inside one of its own sections (a signal "
            "handler, a finalizer), or an interrupt struck there; make a new bulkhead"
        )

    def wait_briefly(self) -> bool:
        """Give way for some milliseconds at most; whether the key came back and was taken.

        It will not if this very thread has it: a signal handler or a finalizer can run in the
        middle of a section. Those may have to put off what they came for, but must not hang.
        """
        pause = 0.0
        while pause < _LONGEST_PAUSE:
            time.sleep(pause)
            try:
                self.keys.pop()
            except IndexError:
                pause = 2 * pause + 1e-6
            except BaseException:
                self.keys.append(None)
                raise
            else:
                return True
        return False

    def is_free(self) -> bool:
        """Whether the key is there at this instant; the one question that never waits."""
        return bool(self.keys)
