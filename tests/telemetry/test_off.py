"""Without telemetry nothing of it is there; and without its packages it says what to install."""

import subprocess
import sys

import pytest

USE = """
import asyncio, sys
from millpond import Millpond
from millpond.pool.internals import internals_of

async def main():
    async with mp:
        await (await mp.get_pool("mail").submit(mp.tasks["send"].bind()))
        (task,) = (await internals_of(mp).runtime.view.tasks("mail")).tasks
        assert task.new.options == b"", task.new.options

mp = Millpond()
mail = mp.pool("mail")

@mail.task
async def send(): ...

asyncio.run(main())
there = [name for name in sys.modules if name.startswith(("opentelemetry", "prometheus_client"))]
there += [name for name in sys.modules if name.startswith("millpond.telemetry")]
assert not there, there
"""

MISSING = """
import sys
sys.modules["{package}"] = None
from millpond.errors import DriverMissing
try:
    import millpond.telemetry.{module}
except DriverMissing as error:
    assert error.extra == "{module}", error.extra
    assert "pip install 'millpond[{module}]'" in str(error), error
else:
    raise SystemExit("it was imported")
"""


def run(program: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=30
    )
    assert (0, "") == (answer.returncode, answer.stderr)


def test_who_does_not_ask_for_it_imports_nothing_of_it() -> None:
    """A pool is used, a task runs: no module of theirs or of ours, and nothing on the task."""
    run(USE)


@pytest.mark.parametrize(
    ("module", "package"), [("otel", "opentelemetry"), ("prometheus", "prometheus_client")]
)
def test_what_is_not_installed_is_named(module: str, package: str) -> None:
    """With the command that installs it."""
    run(MISSING.format(module=module, package=package))
