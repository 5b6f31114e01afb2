"""How signals are counted: to drain, to stop now, not to be waited for."""

import asyncio

import pytest

from millpond.cli import signals
from millpond.cli.exits import Exit
from millpond.cli.signals import ECHO, StopSignals


class Left(Exception):
    """The process would have ended here."""


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[Exit]:
    """The exit codes of those ends that were put off; one at once is an exception."""
    set_up: list[Exit] = []

    def at_once(code: Exit, _why: str) -> None:
        raise Left(code)

    def within(_seconds: float, code: Exit, _why: str) -> None:
        set_up.append(code)

    monkeypatch.setattr(signals, "exit_at_once", at_once)
    monkeypatch.setattr(signals, "exit_within", within)
    return set_up


async def after(*receive: tuple[str, float]) -> StopSignals:
    """Return the StopSignals after these signals at these times."""
    stop = StopSignals(asyncio.get_running_loop())
    for name, moment in receive:
        stop.receive(name, moment)
    await asyncio.sleep(0)
    return stop


async def test_one_signal_drains(limits: list[Exit]) -> None:
    """There is no limit but the grace period."""
    stop = await after(("SIGINT", 10.0))
    assert (True, False, "SIGINT", []) == (
        stop.drain.is_set(),
        stop.now.is_set(),
        stop.name,
        limits,
    )


async def test_two_signals_stop_it_now(limits: list[Exit]) -> None:
    """Of whatever kind; from then on it has some seconds."""
    stop = await after(("SIGINT", 10.0), ("SIGTERM", 10.0 + ECHO))
    assert (True, "SIGINT", [Exit.LOST]) == (stop.now.is_set(), stop.name, limits)


async def test_signals_within_a_moment_count_once(limits: list[Exit]) -> None:
    """Neither of the first signal nor of the second."""
    moments = [10.0, 10.0, 10.0 + ECHO * 0.9, 11.0, 11.0 + ECHO * 0.5]
    stop = await after(*(("SIGTERM", moment) for moment in moments))
    assert (True, [Exit.LOST]) == (stop.now.is_set(), limits)


async def test_a_hang_up_drains_and_never_does_more(limits: list[Exit]) -> None:
    """A terminal that closes may say so many times: the kernel does, and the shell."""
    stop = await after(("SIGHUP", 10.0), ("SIGHUP", 20.0), ("SIGHUP", 30.0))
    assert (True, False, "SIGHUP") == (stop.drain.is_set(), stop.now.is_set(), stop.name)


async def test_a_third_signal_exits_at_once(limits: list[Exit]) -> None:
    """Without the loop."""
    with pytest.raises(Left):
        await after(("SIGTERM", 10.0), ("SIGTERM", 11.0), ("SIGTERM", 12.0))


def test_a_signal_after_the_loop_is_closed_does_nothing(limits: list[Exit]) -> None:
    """The process is about to end, and a signal changes nothing."""
    loop = asyncio.new_event_loop()
    loop.close()
    StopSignals(loop).receive("SIGTERM", 10.0)
