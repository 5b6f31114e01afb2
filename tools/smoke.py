"""What a new user does first, with an installed package: `python smoke.py bare` or `smoke.py all`.

`bare` is the package without extras. Run it in an empty folder, by the interpreter of an
environment that has the wheel and not the repository. It exits with 1 if something does not work.
"""

import asyncio
import importlib
import importlib.metadata
import importlib.util
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import millpond
from millpond import Bulkhead, Millpond, MillpondError, fair_round_robin

APP = """
from millpond import Millpond

mp = Millpond("sqlite:///smoke.db")
pool = mp.pool("smoke", max_concurrent=2)


@pool.task
async def double(number: int) -> int:
    return 2 * number
"""

EXTRAS = ("click", "rich", "psycopg", "cronsim", "opentelemetry", "prometheus_client")
"""A package of each extra."""


def command(*words: str) -> str:
    """Run the installed command `millpond`; return what it printed."""
    program = Path(sys.executable).with_name("millpond")
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"millpond {' '.join(words)} exited with {done.returncode}:\n{done.stderr}")
    return done.stdout


def check(truth: object, what: str) -> None:
    """Print a line for a check; exit if it failed."""
    print("ok " if truth else "NOT", what)
    if not truth:
        sys.exit(1)


def installed() -> None:
    """Check that this is the wheel, whole, and not the repository."""
    home = Path(millpond.__file__).resolve().parent
    check(home.is_relative_to(Path(sys.prefix).resolve()), f"millpond is imported from {home}")
    version = importlib.metadata.version("millpond")
    check(version == millpond.__version__, f"version {version}")
    check((home / "py.typed").exists(), "it is typed")
    check(all(getattr(millpond, name) for name in millpond.__all__), "every public name is there")


async def in_memory() -> None:
    """Use a bulkhead and a pool in this process."""
    mp, bulkhead = Millpond(), Bulkhead("smoke", 1)
    pool = mp.pool("smoke", max_concurrent=2, queue=fair_round_robin("tenant"))

    @pool.task
    async def double(number: int, tenant: str) -> str:
        async with bulkhead:
            return f"{tenant} {2 * number}"

    async with mp:
        handles = [await double.submit(n, "acme") for n in (1, 2)]
        check([await handle for handle in handles] == ["acme 2", "acme 4"], "a pool in memory")


def on_disk() -> None:
    """Submit to a file in one process, work in another, read the result in the first."""
    Path("smoke_app.py").write_text(APP, "utf-8")
    os.environ["PYTHONPATH"] = "."
    sys.path.insert(0, ".")
    app = importlib.import_module("smoke_app")

    async def submit() -> int:
        async with app.mp:
            return int((await app.double.submit(21)).id)

    async def result(task: int) -> int:
        async with app.mp:
            return int(await (await app.mp.handle(task, of=app.double)))

    task = asyncio.run(submit())
    command("worker", "smoke_app:mp", "--once")
    check(asyncio.run(result(task)) == 42, "a pool on SQLite, and `millpond worker`")
    check(json.loads(command("doctor", "sqlite:///smoke.db", "--json")), "millpond doctor")


def without_extras() -> None:
    """Check that what needs an extra names it."""
    missing = [name for name in EXTRAS if importlib.util.find_spec(name) is None]
    check(list(EXTRAS) == missing, "no extra is installed")
    try:
        asyncio.run(_open("postgresql://127.0.0.1:1/nowhere"))
    except MillpondError as error:
        check("millpond[postgres]" in str(error), f"without its driver: {error}")
    else:
        check(truth=False, what="a server without its driver is an error")


async def _open(url: str) -> None:
    async with Millpond(url):
        pass


def with_extras() -> None:
    """Import every module, use the commands of the extra `cli` and a crontab line."""
    names = [each.name for each in pkgutil.walk_packages(millpond.__path__, "millpond.")]
    # Importing a `__main__` runs it; below the others lies what needs pytest or a web framework.
    others = ("__main__", ".testing.", ".integrations.")
    names = [name for name in names if not any(other in name for other in others)]
    for name in names:
        importlib.import_module(name)
    check(names, f"{len(names)} modules can be imported")
    check("smoke" in command("pools", "--store", "sqlite:///smoke.db"), "millpond pools")

    mp = Millpond()
    pool = mp.pool("smoke", max_concurrent=1)

    @pool.task
    async def report() -> None:
        pass

    mp.cron("daily", "0 9 * * mon-fri", tz="Europe/Berlin", task=report)
    check(mp, "a crontab line")


PARTS: dict[str, Callable[[], None]] = {"bare": without_extras, "all": with_extras}


def main(kind: str) -> None:
    """Try it all."""
    installed()
    asyncio.run(in_memory())
    on_disk()
    explained()
    PARTS[kind]()


def explained() -> None:
    """Follow the address that an error names, and find a page by a word."""
    error = MillpondError("an example")
    error_docs = error.docs.split()
    check(error_docs[0] == "millpond", f"error.docs is {error.docs!r}")
    check("`MillpondError`" in command(*error_docs[1:]), "the command explains the error")
    check(command("docs", "rate", "limit").startswith("# Rate limits"), "millpond docs rate limit")


if __name__ == "__main__":
    main(sys.argv[1])
