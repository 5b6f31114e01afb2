"""One process of bench/postgres.py: a submitter or a worker of one contender, on one database.

    python bench/postgres_acts.py CONTENDER ACT URL '{"count": 1000}'

The acts are those of bench/sqlite_acts.py; `fill` also makes the tables. What is written for Node
has the same acts in bench/node.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

from acting import Answer, Stage
from postgres_contenders import CONTENDERS


def main() -> None:
    """Do what the arguments say."""
    name, act, url, given = sys.argv[1:5]
    contender = CONTENDERS[name]
    stage = Stage(contender, url, json.loads(given))
    module = "ours" if contender.kind == "millpond" else "postgres_peers"
    play: Callable[[Stage, str], Answer] = importlib.import_module(module).play
    profiled = stage.get("profile")
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
