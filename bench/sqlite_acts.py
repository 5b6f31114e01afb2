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
from collections.abc import Callable
from pathlib import Path

from acting import Answer, Stage
from sqlite_contenders import CONTENDERS


def main() -> None:
    """Do what the arguments say."""
    name, act, path, given = sys.argv[1:5]
    contender = CONTENDERS[name]
    module = "ours" if contender.kind == "millpond" else "sqlite_peers"
    stage = Stage(contender, path, json.loads(given))
    stage.path.parent.mkdir(parents=True, exist_ok=True)
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
