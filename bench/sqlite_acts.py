"""One process of bench/sqlite.py: a submitter or a worker of one contender, on one file.

    python bench/sqlite_acts.py CONTENDER ACT PATH '{"count": 1000}'

It gets everything ready, says `ready`, waits for a line, does its act, and answers with one line
of JSON. Both sides of a comparison are made of the same acts:

fill      store `count` tasks as quickly as it can, and nothing is measured
submit    store `count` tasks one after another, each answered before the next
bulk      store `count` tasks in chunks of 1,000, where it has a way to
fan       store `count` tasks by `submitters` coroutines of this process (ours alone)
beat      store `count` tasks, one every 12 to 15 ms
work      be a worker until `count` tasks have started and nothing is left, or time is up; it also
          ends once it is idle and nothing is left, unless it is to `stay`
idle      be a worker with nothing to do until stdin ends
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlite_contenders import CONTENDERS, Contender

CHUNK = 1_000
GAP = (0.012, 0.015)
"""Seconds between two beats."""
PATIENCE = 0.05
"""Seconds without a start after which a worker asks whether anything is left."""

Answer = dict[str, Any]


class Stage:
    """What an act is given: who, where, how much."""

    def __init__(self, contender: Contender, path: Path, given: dict[str, Any]) -> None:
        self.contender = contender
        self.path = path
        self.given = given
        self.count: int = given.get("count", 0)

    def get(self, name: str, otherwise: Any = None) -> Any:
        """Return something given by name."""
        return self.given.get(name, otherwise)


def begin() -> None:
    """Tell that all is ready, and wait for the sign to begin."""
    print("ready", flush=True)
    sys.stdin.readline()


class Meter:
    """Notes when handlers start; calls `full` once as many have as are wanted."""

    def __init__(self, want: int, full: Callable[[], object]) -> None:
        self.want = want
        self.full = full
        self.starts: list[int] = []
        self.lags: list[int] = []
        self._cpu = 0.0

    def hit(self, sent: int) -> None:
        """Note a start; from any thread."""
        now = time.monotonic_ns()
        if not self.starts:
            self._cpu = time.process_time()
        self.starts.append(now)
        self.lags.append(now - sent)
        if len(self.starts) >= self.want:
            self.full()

    def answer(self, empty: int | None, *, lags: bool) -> Answer:
        """Return what was noted; `empty` is when nothing was left, if that was seen."""
        cpu = time.process_time() - self._cpu
        starts = sorted(self.starts[: self.want])
        return {
            "executed": len(self.starts),
            "counted": len(starts),
            "first": starts[0] if starts else None,
            "last": starts[-1] if starts else None,
            "empty": empty,
            "cpu": cpu / max(len(self.starts), 1),
            "lags": [lag / 1e9 for lag in self.lags] if lags else [],
        }


def main() -> None:
    """Do what the arguments say."""
    name, act, path, given = sys.argv[1:5]
    contender = CONTENDERS[name]
    module = "sqlite_ours" if contender.kind == "millpond" else "sqlite_peers"
    stage = Stage(contender, Path(path), json.loads(given))
    profiled = stage.get("profile")
    play: Callable[[Stage, str], Answer] = importlib.import_module(module).play
    if profiled is not None:
        play = importlib.import_module("profiled").profiling(play, Path(profiled))
    try:
        answer = play(stage, act)
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
        if stage.get("loud"):
            raise
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
