"""On Windows and macOS by construction: modules import, and pools in memory and in a file run.

No such system is at hand. Millpond's modules find the standard library as it is there.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

POOL = """
import asyncio
from millpond import Millpond

mp = Millpond(*sys.argv[2:])
pool = mp.pool("work", max_concurrent=2)

@pool.task
async def double(n: int) -> int:
    return 2 * n

@pool.task
def triple(n: int) -> int:
    return 3 * n

async def main() -> None:
    async with mp, mp.worker():
        print([await (await fn.submit(2)) for fn in (double, triple)])

asyncio.run(main())
"""

MODULES = """
import importlib, pkgutil
import millpond

for found in pkgutil.walk_packages(millpond.__path__, "millpond."):
    # Programs, and modules that need a project of Django's.
    if not found.name.endswith(("__main__", "django.admin", "django.models")):
        importlib.import_module(found.name)
"""


DYING = """
import asyncio, os
from millpond import Millpond

mp = Millpond(sys.argv[2], lease=0.5)
pool = mp.pool("work", max_concurrent=1)

@pool.task
async def die_once() -> str:
    if sys.argv[3] == "dies":
        os._exit(0)
    return "done by another"

async def main() -> None:
    async with mp, mp.worker():
        print(await (await die_once.options(idempotency_key="one").submit()))

asyncio.run(main())
"""

COMMAND = """
from millpond.cli.main import main

sys.exit(main(sys.argv[2:]))
"""


def on(system: str, program: str, *arguments: str) -> tuple[str, str]:
    """Run a program as on another system; return its output."""
    head = "import sys\nfrom tests.pool.lifecycle.other_system import pretend\npretend(sys.argv[1])"
    ran = subprocess.run(
        [sys.executable, "-c", f"{head}\n{program}", system, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": ":".join([str(Path.cwd()), *sys.path])},
    )
    return ran.stdout, ran.stderr


@pytest.mark.parametrize("system", ["darwin", "win32"])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_pool_runs_on_another_system(system: str, store: str, tmp_path: Path) -> None:
    """A pool in memory or in a file needs nothing that the system lacks, and warns of nothing."""
    url = [] if store == "memory" else [f"sqlite:///{tmp_path / 'work.db'}"]
    assert ("[4, 6]\n", "") == on(system, POOL, *url)


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_every_module_can_be_imported_on_another_system(system: str) -> None:
    """No import needs a feature that the system lacks; a command that needs one says so."""
    assert ("", "") == on(system, MODULES)


def test_a_dead_worker_is_replaced_after_its_lease_without_lock_files(tmp_path: Path) -> None:
    """On Windows no lock file says that a worker died; its task runs again after its lease."""
    url = f"sqlite:///{tmp_path / 'work.db'}"
    assert ("", "") == on("win32", DYING, url, "dies")
    assert not list(tmp_path.glob("*-alive"))
    out, _ = on("win32", DYING, url, "lives")
    assert "done by another\n" == out


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (["run", "echo", "{}", ":::", "a"], "needs Linux, or macOS with Python 3.13 or newer"),
        (["worker", "docs.examples.mail_app:mp", "--processes", "2"], "need a POSIX system"),
    ],
)
def test_a_command_that_a_system_cannot_run_says_so(arguments: list[str], refusal: str) -> None:
    """It exits with one sentence that names the systems, not with a traceback."""
    out, err = on("win32", COMMAND, *arguments)
    assert (out, err.count("\n")) == ("", 1)
    assert refusal in err


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_the_command_works_on_a_file_of_another_system(system: str, tmp_path: Path) -> None:
    """It makes the tables and lists the tasks."""
    url = f"sqlite:///{tmp_path / 'work.db'}"
    assert on(system, COMMAND, "migrate", "--store", url)[0].startswith(f"{url}: schema")
    assert '"tasks": []' in on(system, COMMAND, "tasks", "--json", "--store", url)[0]
