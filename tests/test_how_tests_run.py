"""What this suite promises to its own tests."""

import ast
import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st


async def test_an_hour_on_virtual_time_is_an_hour_that_costs_nothing() -> None:
    """The loop's clock moves by exactly the time of the sleep; the test's timeout is 20 s."""
    loop = asyncio.get_running_loop()
    before = loop.time()
    await asyncio.sleep(3600)
    assert 3600 == pytest.approx(loop.time() - before)


@given(st.integers(min_value=1, max_value=1000))
async def test_every_example_of_a_property_has_its_own_loop(seconds: int) -> None:
    """Hypothesis can drive `async def` tests, on virtual time too."""
    before = asyncio.get_running_loop().time()
    await asyncio.sleep(seconds)
    assert seconds == pytest.approx(asyncio.get_running_loop().time() - before)


@pytest.mark.real_loop
async def test_a_test_may_ask_for_a_real_loop() -> None:
    """The marker gives asyncio's own loop."""
    assert type(asyncio.get_running_loop()).__module__.startswith("asyncio")


def run_of_tests(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run some tests as CI does; return what came out."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *words],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "CI": "true", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_the_machine_lacks_is_left_out_aloud() -> None:
    """Tests that need an absent program are deselected, and the report says which and why."""
    done = run_of_tests(
        "tests/store/postgres/test_pgbouncer.py", MILLPOND_TEST_PGBOUNCER="/there/is/none"
    )
    assert pytest.ExitCode.NO_TESTS_COLLECTED == done.returncode
    assert "pgbouncer: ABSENT, tests/store/postgres/test_pgbouncer.py is left out" in done.stdout


def test_a_skip_is_a_failure_in_ci() -> None:
    """A machine without a server does not look as if all was well."""
    done = run_of_tests(
        "tests/store/postgres/test_renewer.py",
        MILLPOND_TEST_POSTGRES="",
        MILLPOND_TEST_POSTGRES_BIN="/there/is/none",
    )
    assert pytest.ExitCode.TESTS_FAILED == done.returncode
    assert "CI=true allows no skips" in done.stdout


TESTS = Path(__file__).parent


def real_sleeps(node: ast.AST, *, real: bool) -> Iterator[ast.Call]:
    """Yield the calls that take real time: of threads, and of coroutines on a real loop."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        real = real or any("real_loop" in ast.unparse(mark) for mark in node.decorator_list)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        called = ast.unparse(node.func) if node.func.attr == "sleep" else ""
        sleeps = called == "time.sleep" or (real and called == "asyncio.sleep")
        if sleeps and ast.unparse(node.args[0]) != "0":
            yield node
    for child in ast.iter_child_nodes(node):
        yield from real_sleeps(child, real=real)


def without_a_reason(file: Path) -> Iterator[str]:
    """Yield where a file sleeps with no comment on that line or on the one above."""
    text = file.read_text("utf-8")
    lines, tree = text.splitlines(), ast.parse(text)
    marks = [ast.unparse(one) for one in tree.body if isinstance(one, ast.Assign)]
    real = any(line.startswith("pytestmark") and "real_loop" in line for line in marks)
    for call in real_sleeps(tree, real=real):
        above = lines[call.lineno - 2].strip()
        if "#" not in lines[call.lineno - 1] and not above.startswith("#"):
            yield f"{file.relative_to(TESTS)}:{call.lineno}"


def test_a_real_sleep_has_its_reason_beside_it() -> None:
    """Time that passes for real is waited for by an event, or a comment says why it cannot be."""
    found = [place for file in sorted(TESTS.rglob("*.py")) for place in without_a_reason(file)]
    assert [] == found, "wait for the event (tests/waiting.py), or say why that is not possible"
