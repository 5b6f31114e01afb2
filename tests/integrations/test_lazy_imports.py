"""No framework is imported before its own module is: `import millpond` stays cheap."""

import subprocess
import sys

import pytest

FRAMEWORKS = ("django", "fastapi", "flask", "httpx", "httpx2", "pytest", "starlette")

USES = {
    "the package": "from millpond import Millpond, Bulkhead; Millpond().sync",
    "the middleware": "import millpond.integrations.asgi",
    "the test kit": "import millpond.testing",
    "an open Millpond": (
        "from millpond import Millpond\n"
        "mp = Millpond()\n"
        "pool = mp.pool('work')\n"
        "mp.sync.open()\n"
        "pool.sync.submit(lambda: 7).get()"
    ),
}


@pytest.mark.parametrize("name", USES)
def test_no_framework_is_imported(name: str) -> None:
    """Each module of `millpond.integrations` imports its own, and only that one."""
    code = f"import sys\n{USES[name]}\nprint([f for f in {FRAMEWORKS} if f in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert "[]" == done.stdout.strip()


def test_the_package_imports_little() -> None:
    """What runs tasks, its stores, and slow modules of Python wait until a store is opened."""
    slow = ("email", "importlib.metadata", "pathlib", "psycopg", "random", "sqlite3", "zipfile")
    runs_tasks = ("runtime.runtime", "runtime.executors", "runtime.worker.worker", "store.memory")
    late = {*slow, *(f"millpond.{module}" for module in runs_tasks)}
    code = (
        "import asyncio, sys\nbefore = set(sys.modules)\nfrom millpond import Millpond\n"
        "mp = Millpond()\npool = mp.pool('work')\n@pool.task\ndef work(n: int) -> int: return n\n"
        "new = set(sys.modules) - before\nours = [m for m in new if m.startswith('millpond.')]\n"
        f"print(len(new) < 200, len(ours) < 140, sorted(new & {late}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert "True True []" == done.stdout.strip()
