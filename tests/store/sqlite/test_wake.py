"""Wakes: hints reach the other processes, and no trouble with them reaches a caller."""

import asyncio
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest
from tests.store.sqlite.counting import table

from millpond.core.plan import Wake
from millpond.store.hints import PendingHint
from millpond.store.protocol import ControlAnswer, Hint
from millpond.store.sqlite import wake as wake_module
from millpond.store.sqlite.wake import SqliteHintChannel, packed

pytestmark = pytest.mark.real_loop


class Ear:
    """Hears what others send, on the running loop."""

    def __init__(self, wakes: SqliteHintChannel) -> None:
        self.wakes = wakes
        self.hints: asyncio.Queue[Hint] = asyncio.Queue()
        wakes.listen(self.hints.put_nowait, asyncio.get_running_loop())

    async def next(self) -> Hint:
        """The next hint."""
        async with asyncio.timeout(10):
            return await self.hints.get()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database."""
    return table(tmp_path / "work.db")


Opening = Callable[[str], SqliteHintChannel]


@pytest.fixture
def opened(path: Path) -> Iterator[Opening]:
    """Opens sockets, and closes them when the test is over."""
    made: list[SqliteHintChannel] = []

    def opening(owner: str) -> SqliteHintChannel:
        made.append(SqliteHintChannel(path, owner))
        return made[-1]

    yield opening
    for wakes in made:
        wakes.close()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hints are sent at once, unless a test is about that."""
    monkeypatch.setattr(wake_module, "PAUSE", 0.0)


def sockets(path: Path) -> list[str]:
    """The sockets beside the database."""
    return sorted(file.name for file in path.with_name("work.db-wake").iterdir())


ENDED = Hint(ended=(1,))


# --- hearing -------------------------------------------------------------------------------------


async def test_a_hint_reaches_all_processes_but_its_sender(opened: Opening) -> None:
    """As it was sent."""
    first, second, third = (Ear(opened(owner)) for owner in ("a", "b", "c"))
    hint = Hint(
        wakes=(Wake("mail", 12.5), Wake("crawl", 0.0)),
        ended=(7, 8),
        finished_runs=(9,),
        cancelled=(2**62, 6),
        interrupted=(6,),
    )
    assert first.wakes.send(hint) is None
    assert hint == await second.next()
    assert hint == await third.next()
    assert first.hints.empty()


async def test_a_process_that_needs_no_hints_rests_between_them(opened: Opening) -> None:
    """It reads those that come meanwhile together."""
    sender, resting = Ear(opened("a")), opened("b")
    heard: asyncio.Queue[Hint] = asyncio.Queue()

    def needless(hint: Hint) -> bool:
        heard.put_nowait(hint)
        return False

    resting.listen(needless, asyncio.get_running_loop())
    async with asyncio.timeout(10):
        sender.wakes.send(ENDED)
        assert ENDED == await heard.get()
        for task in (2, 3):
            sender.wakes.send(Hint(ended=(task,)))
            for _ in range(5):
                await asyncio.sleep(0)
            assert heard.empty()
        assert Hint(ended=(2, 3)) == await heard.get()


async def test_a_later_process_sends_and_receives_at_once(
    opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender reads the folder only after it changed."""
    monkeypatch.setattr(wake_module, "_LOOK_AGAIN", 3600.0)
    first = Ear(opened("a"))
    first.wakes.send(ENDED)  # no process is there to get it
    second = Ear(opened("b"))
    second.wakes.send(ENDED)
    assert ENDED == await first.next()
    first.wakes.send(ENDED)
    assert ENDED == await second.next()


async def test_two_processes_that_come_in_one_tick_of_the_clock_are_both_seen(
    path: Path, opened: Opening
) -> None:
    """The time of the folder's last change does not tell them apart."""
    folder, now = path.with_name("work.db-wake"), time.time()
    speaker, first = opened("a"), Ear(opened("b"))
    os.utime(folder, (now, now))
    speaker.send(ENDED)
    second = Ear(opened("c"))
    os.utime(folder, (now, now))
    speaker.send(ENDED)
    assert ENDED == await first.next()
    assert ENDED == await second.next()


async def test_hints_that_arrive_together_are_one_call(opened: Opening) -> None:
    """It has the earliest wake of each pool, and each task once."""
    speaker, ear = opened("a"), Ear(opened("b"))
    speaker.send(Hint(wakes=(Wake("mail", 2.0),), ended=(1, 2)))
    speaker.send(Hint(wakes=(Wake("mail", 1.0),), ended=(2, 3)))
    speaker.send(Hint(wakes=(Wake("mail", 3.0),)))
    heard = await ear.next()
    assert Hint(wakes=(Wake("mail", 1.0),), ended=(1, 2, 3)) == heard


async def test_nonsense_is_passed_over(
    path: Path, opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any process may send nonsense; the listener still gets the next hint."""
    ear = Ear(opened("a"))
    (name,) = sockets(path)
    monkeypatch.chdir(path.with_name("work.db-wake"))  # the whole path may be too long for a socket
    deep = b"\x81\xa1x" + b"\x91" * 16_000
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        for message in (b"nonsense", b"\x81\xa5ended\xa1x", deep, os.urandom(100)):
            stranger.sendto(message, name)
    opened("b").send(ENDED)
    assert ENDED == await ear.next()


async def test_a_moment_that_is_none_is_passed_over(path: Path, opened: Opening) -> None:
    """A timer for it would put all timers of the loop out of order."""
    ear = Ear(opened("a"))
    odd = (Wake("a", math.nan), Wake("b", math.inf), Wake("c", 1.0))
    opened("b").send(Hint(wakes=odd))
    assert Hint(wakes=(Wake("c", 1.0),)) == await ear.next()


# --- sending -------------------------------------------------------------------------------------


async def test_hints_in_quick_succession_go_together(
    opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first at once, the others soon, in one message; the answer says when to ask again."""
    monkeypatch.setattr(wake_module, "PAUSE", 0.02)
    ear, speaker = Ear(opened("a")), opened("b")
    assert speaker.send(ENDED) is None
    assert ENDED == await ear.next()
    waits = [speaker.send(Hint(ended=(number,))) for number in (2, 3)]
    assert all(wait is not None and 0 < wait <= 0.02 for wait in waits)
    await asyncio.sleep(0.02)  # the pause that is tested
    assert speaker.send() is None
    assert Hint(ended=(2, 3)) == await ear.next()


def test_an_empty_hint_is_not_sent(opened: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """It wakes no process."""
    looks: list[object] = []
    speaker = opened("b")
    monkeypatch.setattr(speaker, "_look", lambda: looks.append("looked"))
    speaker.send(Hint())
    assert speaker.send() is None
    assert [] == looks


def test_a_sender_without_other_processes_seldom_reads_the_folder(
    path: Path, opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the folder again when it changes, and once in a while."""
    speaker = opened("a")
    folder = path.with_name("work.db-wake")
    os.utime(folder, (0, 0))
    speaker.send(ENDED)
    looks: list[object] = []
    listdir = os.listdir

    def reading(*args: Any) -> list[str]:
        looks.append(args)
        return listdir(*args)

    monkeypatch.setattr(os, "listdir", reading)
    for number in range(50):
        assert speaker.send(Hint(ended=(number,))) is None
    assert 1 >= len(looks)  # if it took a second
    looks.clear()
    (folder / "other").touch()
    speaker.send(ENDED)
    assert 1 == len(looks)


def test_a_message_has_a_bounded_size() -> None:
    """A hint that does not fit is sent as `more`: then receivers poll every pool."""
    few = Hint(ended=tuple(range(wake_module.MOST_NAMED)))
    many = Hint(ended=tuple(range(100_000)), cancelled=(5,))
    long = Hint(wakes=tuple(Wake(f"{number}{'x' * 200}", 0.0) for number in range(250)))
    decode = msgspec.msgpack.Decoder(Hint).decode
    assert few == decode(packed(few))
    assert (wake_module.MOST_NAMED, (5,), True) == (
        len(decode(packed(many)).ended),
        decode(packed(many)).cancelled,
        decode(packed(many)).more,
    )
    assert Hint(more=True) == decode(packed(long))
    assert all(len(packed(hint)) < 20_000 for hint in (few, many, long))


async def test_a_slow_receiver_learns_that_it_missed_hints(opened: Opening) -> None:
    """Its queue is full, and no sender waits for it."""
    ear, speaker = Ear(opened("a")), opened("b")
    for number in range(2000):
        assert speaker.send(Hint(ended=(number,))) is None
    heard = await ear.next()
    assert not heard.more
    assert heard.ended[0] == 0
    assert 2000 > len(heard.ended)
    speaker.send(Hint(ended=(5000,)))
    assert Hint(ended=(5000,), more=True) == await ear.next()
    speaker.send(Hint(ended=(5001,)))
    assert Hint(ended=(5001,)) == await ear.next()


# --- processes that are gone ---------------------------------------------------------------------


async def test_a_closed_process_leaves_no_socket(path: Path, opened: Opening) -> None:
    """Closing twice is harmless."""
    wakes = Ear(opened("a")).wakes
    assert 1 == len(sockets(path))
    wakes.close()
    wakes.close()
    assert [] == sockets(path)
    assert wakes.send(ENDED) is None


async def test_closing_sends_the_hints_that_wait(
    opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends right after its commit still notifies others."""
    ear, speaker = Ear(opened("a")), opened("b")
    speaker.send(Hint(ended=(1,)))
    monkeypatch.setattr(wake_module, "PAUSE", 3600.0)
    assert speaker.send(Hint(ended=(2,)))
    speaker.close()
    heard = [*(await ear.next()).ended]
    while 2 not in heard:
        heard += (await ear.next()).ended
    assert [1, 2] == heard


def test_a_socket_without_a_listener_is_removed(path: Path, opened: Opening) -> None:
    """Its process was killed."""
    speaker = opened("a")
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    dead.bind(str(path.with_name("work.db-wake") / "dead.sock"))
    dead.close()
    assert ["dead.sock"] == sockets(path)
    speaker.send(ENDED)
    assert [] == sockets(path)


async def test_a_forked_child_does_not_hear_for_its_parent(opened: Opening) -> None:
    """Nor does it keep the socket alive."""
    ear, speaker = Ear(opened("a")), opened("b")
    child = os.fork()
    if child == 0:
        os._exit(0 if ear.wakes.send(ENDED) is None and not ear.wakes.open else 1)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert 0 == os.waitstatus_to_exitcode(status)
    speaker.send(ENDED)
    assert ENDED == await ear.next()


# --- places ---------------------------------------------------------------------------------------


async def test_a_long_path_is_no_hindrance_on_linux(tmp_path: Path) -> None:
    """The address of a socket is short; there is a way around it."""
    folder = tmp_path / ("long" * 30) / ("longer" * 20)
    folder.mkdir(parents=True)
    path = table(folder / "work.db")
    first, second = SqliteHintChannel(path, "a"), SqliteHintChannel(path, "b")
    if sys.platform == "linux":
        ear = Ear(first)
        assert [ear.wakes._name] == sockets(path)
        second.send(ENDED)
        assert ENDED == await ear.next()
    first.close()
    second.close()
    assert [] == sockets(path)


@pytest.mark.parametrize("trouble", ["no folder", "no socket"])
def test_a_process_without_a_socket_polls(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    trouble: str,
) -> None:
    """The log says so once; polling once a second is enough."""
    loop = asyncio.new_event_loop()
    if trouble == "no folder":
        path.with_name("work.db-wake").touch()
    else:
        monkeypatch.delattr(socket, "AF_UNIX")
    wakes = SqliteHintChannel(path, "a")
    assert not wakes.open
    assert wakes.send(ENDED) is None
    wakes.listen(print, loop)
    wakes.close()
    loop.close()
    assert 1 == len(caplog.records)


def test_a_loop_that_cannot_hear_is_no_trouble(
    opened: Opening, caplog: pytest.LogCaptureFixture
) -> None:
    """Windows has such loops."""

    class Deaf(asyncio.SelectorEventLoop):
        def add_reader(self, *args: object) -> None:
            raise NotImplementedError

    loop = Deaf()
    opened("a").listen(print, loop)
    loop.close()
    assert "no wake-ups between the processes" in caplog.text


def test_only_users_who_may_write_the_database_may_send(path: Path, opened: Opening) -> None:
    """The folder is closed to all other users, and so is the socket."""
    path.chmod(0o664)
    loop = asyncio.new_event_loop()
    opened("a").listen(print, loop)
    folder = path.with_name("work.db-wake")
    (name,) = sockets(path)
    assert (0o770, 0o660) == tuple(f.stat().st_mode & 0o777 for f in (folder, folder / name))
    loop.close()


# --- over processes ----------------------------------------------------------------------------

ECHO = """
import asyncio, sys
from pathlib import Path
from millpond.store.sqlite.wake import SqliteHintChannel

async def main():
    wakes = SqliteHintChannel(Path(sys.argv[1]), "echo")
    over = asyncio.Event()
    def heard(hint):
        wakes.send(hint)
        if hint.finished_runs:
            over.set()
    wakes.listen(heard, asyncio.get_running_loop())
    print("here", flush=True)
    await over.wait()
    wakes.close()

asyncio.run(main())
"""


async def test_a_hint_crosses_from_process_to_process_and_back(path: Path, opened: Opening) -> None:
    """Well within the time that the poll floor would take."""
    ear = Ear(opened("a"))
    process = subprocess.Popen(  # noqa: ASYNC220 - the loop can wait
        [sys.executable, "-c", ECHO, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    stdout: IO[str] | None = process.stdout
    assert stdout is not None
    await asyncio.to_thread(stdout.readline)
    loop = asyncio.get_running_loop()
    taken = []
    for number in range(50):
        begun = loop.time()
        ear.wakes.send(Hint(ended=(number,)))
        assert Hint(ended=(number,)) == await ear.next()
        taken.append(loop.time() - begun)
        await asyncio.sleep(wake_module.PAUSE + 0.006)  # past the pause of both processes
    ear.wakes.send(Hint(finished_runs=(1,)))
    await asyncio.to_thread(process.communicate)
    assert sorted(taken)[25] < 0.1


def test_hints_add_up() -> None:
    """Nothing is said twice, and an empty one is nothing."""
    pending = PendingHint()
    pending.add(Hint())
    assert not pending
    pending.add(Hint(cancelled=(1,), finished_runs=(2,)))
    pending.add(Hint(cancelled=(1, 3), interrupted=(1,), more=True))
    assert Hint(cancelled=(1, 3), interrupted=(1,), finished_runs=(2,), more=True) == pending.hint()


def test_a_hint_is_made_of_an_answer_that_has_another_page() -> None:
    """The next page of a command is no news for others; the ends beside it are."""
    pending = PendingHint()
    pending.add(ControlAnswer(ended=(1,)))
    pending.add(ControlAnswer(more=(1, 2), ended=(2,)))
    assert pending.hint() == Hint(ended=(1, 2))
