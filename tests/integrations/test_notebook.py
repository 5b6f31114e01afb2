"""The recipe for a notebook: IPython runs cells on an event loop that runs already."""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from tests.integrations.serving import EXAMPLES

pytestmark = [
    pytest.mark.real_loop,
    # IPython's history wants its thread and its file, and warns of what it cannot have.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def cells() -> list[str]:
    """The example, as cells: what it declares, and each step."""
    example = (EXAMPLES / "in_a_notebook.py").read_text("utf-8")
    declared, _, rest = example.partition("async def cells")
    steps = rest.partition('"""\n')[2].partition("asyncio.run")[0]
    return [declared, *re.split(r"\n\n", textwrap.dedent(steps).strip())]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InteractiveShell:
    """What a kernel of Jupyter runs its cells in."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    InteractiveShell.clear_instance()
    shell: InteractiveShell = InteractiveShell.instance()
    shell.history_manager.enabled = False  # type: ignore[union-attr]
    return shell


async def run(shell: InteractiveShell, cell: str) -> object:
    """Run a cell as ipykernel does, on the loop that runs."""
    untyped: Any = shell
    done = await untyped.run_cell_async(cell, transformed_cell=untyped.transform_cell(cell))
    done.raise_error()
    return done.result


async def test_the_cells_of_the_example_run(shell: InteractiveShell) -> None:
    """And the one that opens it runs again, as cells do."""
    declares, opens, uses, closes = cells()
    await run(shell, declares)
    await run(shell, opens)
    await run(shell, opens)
    await run(shell, uses)
    await run(shell, uses)
    await run(shell, closes)
    await run(shell, closes)


async def test_cells_without_await_use_a_thread(shell: InteractiveShell) -> None:
    """mp.sync has a loop of its own, so it works where a loop runs."""
    declares = cells()[0]
    await run(shell, declares)
    await run(shell, "mp.sync.open()")
    await run(shell, "mp.sync.open()")
    assert [0, 1, 4] == await run(shell, "pool.sync.map(square, range(3)).get()")
    await run(shell, "mp.sync.close()")
