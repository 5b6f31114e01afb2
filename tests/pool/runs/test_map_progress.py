"""`pool.map(..., progress=True)`: a bar of rich or tqdm, or a plain line."""

import sys
from types import ModuleType
from typing import Any

import pytest

from millpond import Millpond, Retry
from millpond.pool.map_progress import DRAW_EVERY, MapProgress


class Drawn:
    """A bar that keeps what it draws."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.closed = False

    def draw(self, done: int) -> None:
        self.counts.append(done)

    def close(self) -> None:
        self.closed = True


def without(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Let packages be missing."""
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)


async def double(number: int) -> int:
    return number * 2


async def test_a_map_draws_its_progress_with_rich(capsys: pytest.CaptureFixture[str]) -> None:
    """The number of items is known of a list."""
    mp = Millpond()
    pool = mp.pool("pages", max_concurrent=2)
    async with mp:
        assert [0, 2, 4] == await pool.map(double, [0, 1, 2], progress=True)
    drawn = capsys.readouterr().err
    assert "double" in drawn
    assert "3/3" in drawn


async def test_a_plain_line_where_nothing_is_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a generator the number of items is not known; iterating draws too."""
    without(monkeypatch, "rich.progress", "tqdm.auto")
    mp = Millpond()
    pool = mp.pool("pages", max_concurrent=2)
    async with mp:
        assert [0, 2] == await pool.map(double, (n for n in range(2)), progress=True)
        assert "double 2\n" == capsys.readouterr().err
        found = [one async for one in pool.map(double, [1], progress=True)]
        assert ([2], "double 1/1\n") == (found, capsys.readouterr().err)
        await pool.map(double, [1])
        assert "" == capsys.readouterr().err


async def test_tqdm_is_used_where_rich_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the total and the name of the function."""
    without(monkeypatch, "rich.progress")
    made: list[Any] = []

    class Tqdm:
        def __init__(self, **options: Any) -> None:
            self.options, self.n, self.closed = options, 0, False
            made.append(self)

        def update(self, more: int) -> None:
            self.n += more

        def close(self) -> None:
            self.closed = True

    module = ModuleType("tqdm.auto")
    module.tqdm = Tqdm  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tqdm", ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", module)
    mp = Millpond()
    pool = mp.pool("pages", max_concurrent=2)
    async with mp:
        await pool.map(double, range(5), progress=True)
    (bar,) = made
    assert (5, 5, True, "double") == (bar.n, bar.options["total"], bar.closed, bar.options["desc"])


def test_threads_see_progress_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The items that a thread reads have a number, if their source has one."""
    without(monkeypatch, "rich.progress", "tqdm.auto")
    mp = Millpond()
    pool = mp.pool("pages", max_concurrent=2)
    with mp.sync:
        assert [2, 4] == pool.sync.map(double, [1, 2], progress=True).get()
    assert "double 2/2\n" == capsys.readouterr().err


async def test_a_map_that_fails_leaves_its_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised below it."""
    without(monkeypatch, "rich.progress", "tqdm.auto")
    mp = Millpond()
    pool = mp.pool("pages")

    async def broken(number: int) -> int:
        return 1 // number

    async with mp:
        with pytest.raises(Exception, match="division"):
            await pool.map(broken, [1, 0], progress=True, retry=Retry.never())
    assert "broken 1/2\n" == capsys.readouterr().err


def test_a_fast_map_draws_now_and_then() -> None:
    """A million results must not draw a million times; the last count is always drawn."""
    now, bar = [0.0], Drawn()
    progress = MapProgress(bar, clock=lambda: now[0])
    for _ in range(1000):
        progress.advance()
        now[0] += DRAW_EVERY / 100
    assert 10 <= len(bar.counts) <= 12
    progress.close()
    assert (1000, True) == (bar.counts[-1], bar.closed)
