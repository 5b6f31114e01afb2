"""Profiles every thread of a process, and says for each where its time went."""

from __future__ import annotations

import cProfile
import functools
import io
import pstats
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LINES = 35


def profiling(fn: Callable[P, T], path: Path) -> Callable[P, T]:
    """Return `fn` as it is, but what it and the threads it starts did is written to `path`."""

    @functools.wraps(fn)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        profiles: dict[str, cProfile.Profile] = {}
        lock = threading.Lock()

        def adopt(*_event: Any) -> None:
            # Called for the first event of a new thread: from there on the profiler takes over.
            sys.setprofile(None)
            profile = cProfile.Profile()
            with lock:
                profiles[f"{len(profiles)} {threading.current_thread().name}"] = profile
            profile.enable()

        threading.setprofile(adopt)
        own = profiles["0 main"] = cProfile.Profile()
        own.enable()
        try:
            return fn(*args, **kwargs)
        finally:
            own.disable()
            threading.setprofile(None)
            write(profiles, path)

    return run


def write(profiles: dict[str, cProfile.Profile], path: Path) -> None:
    """Write the functions of each thread that took the most time themselves."""
    out = io.StringIO()
    for name, profile in profiles.items():
        print(f"== thread {name}", file=out)
        try:
            stats = pstats.Stats(profile, stream=out)
        except TypeError:
            print("no samples", file=out)
            continue
        stats.sort_stats("tottime").print_stats(LINES)
        stats.sort_stats("cumtime").print_stats(LINES)
    path.write_text(out.getvalue())
