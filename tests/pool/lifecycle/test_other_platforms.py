"""Where a system has no fcntl, termios and the like: a pool in memory still runs."""

import os
import subprocess
import sys

PROGRAM = """
import sys
import asyncio, os

for name in ("fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None  # an import raises ImportError
for name in ("fork", "geteuid", "getuid", "killpg", "register_at_fork", "setsid"):
    delattr(os, name) if hasattr(os, name) else None

from millpond import Millpond
import millpond.cli.main

mp = Millpond()
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


def test_a_pool_runs_without_the_modules_of_posix() -> None:
    """The import of the library and its command needs none of them, nor does a pool in memory."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path)},
    )
    assert ("[4, 6]\n", "") == (ran.stdout, ran.stderr)
