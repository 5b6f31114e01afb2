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
    """Its stores, and slow modules of the standard library, wait until they are used."""
    slow = ("email", "importlib.metadata", "psycopg", "sqlite3", "ssl", "zipfile")
    code = (
        "import asyncio, sys\nbefore = set(sys.modules)\nfrom millpond import Millpond\n"
        f"new = set(sys.modules) - before\nprint(len(new) < 320, sorted(new & {set(slow)}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert "True []" == done.stdout.strip()
