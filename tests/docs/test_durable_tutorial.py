"""The third tutorial, followed: submit, look, work, kill -9, dead letters, redrive."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 30.0
"""Seconds for anything that is waited for: a machine that does much else is slow."""


class Reader:
    """A reader who follows the page in their own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = (ROOT / "docs/examples/orders_app.py").read_text("utf-8")
        hurried = program.replace("sleep(8)", "sleep(2)").replace("initial=1.0", "initial=0.1")
        assert program != hurried
        (folder / "orders_app.py").write_text(hurried, "utf-8")
        self._environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}

    def say(self, *words: str) -> list[str]:
        """Run the program, and return the lines it prints."""
        answer = subprocess.run(
            [sys.executable, "orders_app.py", *words],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (0, "") == (answer.returncode, answer.stderr)
        return answer.stdout.splitlines()

    def until(self, there: Callable[[list[str]], bool]) -> list[str]:
        """Look until it is as it should be."""
        over = time.monotonic() + PATIENCE
        while not there(seen := self.say("look")):
            assert time.monotonic() < over, seen
        return seen

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[bytes]]:
        """Start a worker, and see to it that it does not stay."""
        command = [sys.executable, "-m", "millpond", "worker", "orders_app:mp"]
        with subprocess.Popen(
            command, cwd=self.folder, env=self._environment, stderr=subprocess.DEVNULL
        ) as running:
            try:
                yield running
            finally:
                running.kill()


def statuses(lines: list[str]) -> list[str]:
    return [line.split()[1] for line in lines]


def test_the_tutorial_ends_as_it_says(tmp_path: Path) -> None:
    """A killed worker's tasks are done by the next one, and a dead letter when it is sent again."""
    reader = Reader(tmp_path)
    assert ["8 stored"] == reader.say()
    assert ["0 stored"] == reader.say("submit")
    assert [f"{number} queued 0 " for number in range(10, 18)] == reader.say("look")
    with reader.worker() as first:
        reader.until(lambda seen: "running" in statuses(seen))
        first.send_signal(signal.SIGKILL)
        first.wait(PATIENCE)
    with reader.worker() as second:
        seen = reader.until(lambda seen: {*statuses(seen)} == {"completed", "failed"})
        assert "13 failed 3 LookupError: out of stock" in seen
        assert any(line.endswith(" completed 2 ") for line in seen), seen
        (tmp_path / "stock.txt").touch()
        assert ["order 13 packed in attempt 1"] == reader.say("redrive")
        second.send_signal(signal.SIGTERM)
        assert 0 == second.wait(PATIENCE)
    assert ["completed"] * 8 == statuses(reader.say("look"))
