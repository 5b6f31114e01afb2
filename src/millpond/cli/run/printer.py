"""Print the output of items, one after another, as they end or in order."""

from __future__ import annotations

import os
import select
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millpond.cli.run.output import Ended

CHUNK = 1 << 20


class Printer:
    """Writes output to stdout and stderr; raises OSError if it cannot."""

    def __init__(
        self, *, in_order: bool, tag: bool, before: Callable[[], None] = lambda: None
    ) -> None:
        self.in_order = in_order
        self._tag = tag
        self._before = before
        """Called before each write, to clear the progress line."""
        self._expected: deque[int] = deque()
        """With `in_order`: tasks whose output is still to be printed, in order."""
        self._held: dict[int, tuple[str, Ended] | None] = {}

    def expect(self, tasks: Iterable[int]) -> None:
        """Add the tasks that come next."""
        if self.in_order:
            self._expected.extend(tasks)
            # One of them may have ended already.
            self._print_what_is_due()

    def ended(self, task: int, item: str, ended: Ended | None) -> None:
        """Print the output of a task, now or when its turn comes."""
        if not self.in_order:
            if ended is not None:
                self._print(item, ended)
            return
        self._held[task] = None if ended is None else (item, ended)
        self._print_what_is_due()

    def _print_what_is_due(self) -> None:
        while self._expected and self._expected[0] in self._held:
            held = self._held.pop(self._expected.popleft())
            if held is not None:
                self._print(*held)

    def flush(self) -> None:
        """Print the output that is held back because an earlier item has not ended."""
        for task in self._expected:
            held = self._held.pop(task, None)
            if held is not None:
                self._print(*held)

    def _print(self, item: str, ended: Ended) -> None:
        if not (ended.out or ended.err):
            return
        self._before()
        mark = os.fsencode(item) + b"\t" if self._tag else b""
        write(1, ended.out, mark)
        write(2, ended.err, mark)


def write(descriptor: int, output: bytes | Path, mark: bytes = b"") -> None:
    """Write output, with a mark before each line."""
    if isinstance(output, bytes):
        _write(descriptor, _marked(output, mark))
        return
    with output.open("rb") as file:
        if mark:
            # By lines, so that a mark is never put into the middle of one.
            for line in file:
                _write(descriptor, mark + line)
            return
        while chunk := file.read(CHUNK):
            _write(descriptor, chunk)


def _marked(output: bytes, mark: bytes) -> bytes:
    if not mark or not output:
        return output
    return b"".join(mark + line for line in output.splitlines(keepends=True))


def _write(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            # Another process made the shared terminal or pipe non-blocking.
            select.select([], [descriptor], [])
