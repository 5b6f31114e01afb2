"""The ledger: whole lines from many processes, whatever happens to them."""

import asyncio
import multiprocessing
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from verify.torture.ledger import (
    AttemptBegan,
    AttemptEnded,
    Ledger,
    ProcessEnded,
    StoreOpened,
    Tail,
    read,
)

from millpond.core.task import Fence

FENCE = Fence(1, 2, 3)


def write_many(path: Path, number: int) -> None:
    """Write lines as fast as can be."""
    ledger = Ledger(path)
    for n in range(500):
        ledger.write(StoreOpened, owner=f"{number}/{n}", role="worker" * 50, number=number)
    ledger.close()


def test_lines_of_many_processes_do_not_mix(tmp_path: Path) -> None:
    """Four processes write at once; every line arrives whole, and in each one's order."""
    path = tmp_path / "ledger"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many, args=(path, number)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    lines, torn = read(path)
    assert (2000, 0) == (len(lines), torn)
    for number in range(4):
        own = [
            line.owner for line in lines if isinstance(line, StoreOpened) and line.number == number
        ]
        assert [f"{number}/{n}" for n in range(500)] == own


def test_a_torn_line_is_counted_and_tears_no_other(tmp_path: Path) -> None:
    """A process that died in the middle of a write costs one line."""
    path = tmp_path / "ledger"
    ledger = Ledger(path)
    ledger.write(StoreOpened, owner="before", role="worker", number=0)
    with path.open("ab") as file:
        file.write(b'\n{"what":"storeopened","pid":1,"wa')
    ledger.write(StoreOpened, owner="after", role="worker", number=0)
    ledger.close()
    lines, torn = read(path)
    assert ["before", "after"] == [line.owner for line in lines if isinstance(line, StoreOpened)]
    assert 1 == torn


@pytest.mark.parametrize(
    ("error", "how"),
    [(None, "returned"), (ValueError(), "raised"), (asyncio.CancelledError(), "stopped")],
)
def test_an_attempt_is_written_down_with_its_end(
    tmp_path: Path, error: BaseException | None, how: str
) -> None:
    """Begun and ended under one fence, and how; an exception is raised again."""
    ledger = Ledger(tmp_path / "ledger")
    goes_on: Any = nullcontext() if error is None else pytest.raises(type(error))
    with goes_on, ledger.attempt(FENCE, "fair", "7"):
        if error is not None:
            raise error
    ledger.close()
    (began, ended), _ = read(tmp_path / "ledger")
    assert isinstance(began, AttemptBegan)
    assert isinstance(ended, AttemptEnded)
    assert ("7", "fair", FENCE) == (
        began.item,
        began.pool,
        Fence(began.task, began.attempt, began.token),
    )
    assert (how, FENCE) == (ended.how, Fence(ended.task, ended.attempt, ended.token))
    assert began.mono <= ended.mono


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    """Every fact of a line comes back as it was."""
    ledger = Ledger(tmp_path / "ledger")
    line = ledger.write(ProcessEnded, child=2**31, role="pulse", number=0, code=-9, expected=False)
    ledger.close()
    assert ([line], 0) == read(tmp_path / "ledger")


def test_the_tail_of_a_ledger_is_what_is_new(tmp_path: Path) -> None:
    """Each line is given once, and none before it is whole."""
    path = tmp_path / "ledger"
    ledger = Ledger(path)
    tail = Tail(path)
    assert [] == tail.read()
    first = ledger.write(StoreOpened, owner="first", role="worker", number=0)
    assert [first] == tail.read()
    second = ledger.write(StoreOpened, owner="second", role="worker", number=0)
    raw = path.read_bytes()
    path.write_bytes(raw[:-9])
    assert [] == tail.read()
    with path.open("ab") as file:
        file.write(raw[-9:])
    assert [second] == tail.read()
    ledger.close()
