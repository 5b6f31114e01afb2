"""Wakes: hints cross a real server, and no trouble with them reaches a caller."""

import asyncio
import json
import logging
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import IO, Any
from urllib.parse import quote

import psycopg
import pytest
from tests.waiting import eventually
from verify.servers.postgres import OwnServer

from millpond.core.plan import Wake
from millpond.store.postgres import listen as listen_module
from millpond.store.postgres import notify as wake_module
from millpond.store.postgres.connect import Connection, connect
from millpond.store.postgres.notify import PostgresHintChannel, channel_of, messages
from millpond.store.postgres.url import address_of
from millpond.store.protocol import Hint

pytestmark = pytest.mark.real_loop

ENDED = Hint(ended=(1,))
LOOK = Hint(more=True)


class Process:
    """What one process has of the wakes: a connection that writes, and an ear."""

    def __init__(self, url: str, owner: str) -> None:
        self.address = address_of(url)
        self.writer: Connection | None = connect(self.address)
        self.wakes = PostgresHintChannel(self.address, owner, lambda: self.writer)
        self.hints: asyncio.Queue[Hint] = asyncio.Queue()

    async def listening(self) -> "Process":
        """Begin to listen, and wait until it does."""
        self.wakes.listen(self.hints.put_nowait, asyncio.get_running_loop())
        assert LOOK == await self.next()
        return self

    async def next(self) -> Hint:
        """The next hint."""
        async with asyncio.timeout(20):
            return await self.hints.get()

    async def heard(self, hint: Hint) -> None:
        """Wait for a certain hint."""
        while await self.next() != hint:
            continue

    def session(self) -> int:
        """The number of the server's process that its ear is connected to."""
        listener = self.wakes._listener
        assert listener is not None
        assert listener._connection is not None
        return listener._connection.info.backend_pid

    def hang_up(self) -> None:
        """Have no connection that writes."""
        if self.writer is not None:
            self.writer.close()
        self.writer = None

    def reconnect(self) -> None:
        """Have a new one."""
        self.hang_up()
        self.writer = connect(self.address)

    def close(self) -> None:
        """Leave."""
        self.wakes.close()
        self.hang_up()


Opening = Callable[..., Process]


@pytest.fixture
def opened(postgres_url: str) -> Iterator[Opening]:
    """Opens processes, and closes them when the test is over."""
    made: list[Process] = []

    def opening(owner: str, *, url: str = postgres_url) -> Process:
        made.append(Process(url, owner))
        return made[-1]

    yield opening
    for process in made:
        process.close()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hints are sent at once, and lost connections come back at once, unless a test is about it."""
    monkeypatch.setattr(wake_module, "PAUSE", 0.0)
    monkeypatch.setattr(wake_module, "BULK_PAUSE", 0.0)
    monkeypatch.setattr(wake_module, "SHARE", math.inf)
    monkeypatch.setattr(listen_module, "FIRST_PAUSE", 0.02)


# --- hearing -------------------------------------------------------------------------------------


async def test_a_hint_reaches_all_processes_but_its_sender(opened: Opening) -> None:
    """As it was sent."""
    first, second, third = [await opened(owner).listening() for owner in ("a", "b", "c")]
    hint = Hint(
        wakes=(Wake("mail", 12.5), Wake('crawl "ü"', 0.0)),
        ended=(7, 8),
        finished_runs=(9,),
        cancelled=(2**63 - 1,),
        interrupted=(2**63 - 1,),
    )
    assert first.wakes.send(hint) is None
    assert hint == await second.next()
    assert hint == await third.next()
    await eventually(first.wakes.receives_hints)
    assert first.hints.empty()


async def test_stores_of_one_database_do_not_hear_each_other(
    opened: Opening, postgres_url: str
) -> None:
    """Each schema is a store; also those whose names begin with the same 63 bytes less a few."""
    mark = "&" if "?" in postgres_url else "?"
    urls = [f"{postgres_url}{mark}schema={quote('ü' * 30 + end)}" for end in ("a", "b")]
    ear, other = [await opened("ear", url=url).listening() for url in urls]
    opened("b", url=urls[1]).wakes.send(Hint(ended=(2,)))
    opened("a", url=urls[0]).wakes.send(ENDED)
    assert ENDED == await ear.next()
    assert Hint(ended=(2,)) == await other.next()
    assert ear.hints.empty()


def test_every_schema_has_a_channel_with_a_name_of_its_own() -> None:
    """PostgreSQL refuses names of more than 63 bytes."""
    names = ["millpond", "Millpond", 'a"b', "x" * 63, "x" * 62, "ü" * 31]
    channels = {channel_of(name) for name in names}
    assert len(names) == len(channels)
    assert all(len(channel.encode()) <= 63 for channel in channels)
    assert "millpond:millpond" == channel_of("millpond")


async def test_hints_that_arrive_together_are_one_call(opened: Opening) -> None:
    """It has the earliest wake of each pool, and each task once."""
    ear, speaker = await opened("a").listening(), opened("b")
    for hint in (
        Hint(wakes=(Wake("mail", 2.0),), ended=(1, 2)),
        Hint(wakes=(Wake("mail", 1.0),), ended=(2, 3)),
        Hint(wakes=(Wake("mail", 3.0),)),
    ):
        speaker.wakes.send(hint)  # the loop does not run meanwhile
    # The server may take its time between two of them; what is there is heard in one call.
    heard = [await ear.next()]
    while 3 not in heard[-1].ended:
        heard.append(await ear.next())
    assert len(heard) <= 2
    assert Wake("mail", 1.0) in heard[-1].wakes
    assert {1, 2, 3} == {task for hint in heard for task in hint.ended}


async def test_nonsense_is_passed_over(opened: Opening, postgres_url: str) -> None:
    """Any client may notify nonsense; the listener still gets the next hint."""
    ear, speaker = await opened("a").listening(), opened("b")
    channel = channel_of(ear.address.schema)
    with psycopg.connect(postgres_url, autocommit=True) as stranger:
        for text in ("", "nonsense", "- {", '- {"ended": ["x"]}', "- " + "[" * 7000, "- [] x"):
            stranger.execute("SELECT pg_notify(%s, %s)", [channel, text])
        stranger.execute(
            "SELECT pg_notify(%s, %s)", [channel, '- {"wakes":[{"pool":"a","at":1e999}]}']
        )
    speaker.wakes.send(ENDED)
    assert ENDED == await ear.next()


async def test_a_moment_that_is_none_is_passed_over(opened: Opening) -> None:
    """JSON has no word for it, so the whole wake is lost; the others are not."""
    ear, speaker = await opened("a").listening(), opened("b")
    speaker.wakes.send(Hint(wakes=(Wake("b", math.inf),)))
    speaker.wakes.send(ENDED)
    assert ENDED == await ear.next()


# --- sending -------------------------------------------------------------------------------------


async def test_hints_in_quick_succession_go_together(
    opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first at once, the others soon, in one message; the answer says when to ask again."""
    ear, speaker = await opened("a").listening(), opened("b")
    monkeypatch.setattr(wake_module, "PAUSE", 0.05)
    assert speaker.wakes.send(ENDED) is None
    assert ENDED == await ear.next()
    waits = [speaker.wakes.send(Hint(ended=(number,))) for number in (2, 3)]
    assert all(wait is not None and 0 < wait <= 0.05 for wait in waits)
    await asyncio.sleep(0.05)  # the pause that is tested
    assert speaker.wakes.send() is None
    assert Hint(ended=(2, 3)) == await ear.next()


async def test_a_slow_network_has_fewer_messages(
    opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer spends a small part of its time on them, however long each takes."""
    speaker = opened("b")
    monkeypatch.setattr(wake_module, "SHARE", 0.05)
    moments = iter([0.0, 0.002, 0.003])
    monkeypatch.setattr(wake_module, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    assert speaker.wakes.send(ENDED) is None
    assert pytest.approx(0.039) == speaker.wakes.send(ENDED)


def test_an_empty_hint_is_not_sent(opened: Opening) -> None:
    """It wakes no process, and costs no round trip."""
    speaker = opened("b")
    speaker.hang_up()
    assert speaker.wakes.send(Hint()) is None
    assert speaker.wakes.send() is None


def test_a_large_hint_is_split_and_a_huge_one_says_that_there_is_more() -> None:
    """PostgreSQL takes messages of less than 8000 bytes."""
    few = Hint(ended=(1, 2), more=True)
    assert ['- {"ended":[1,2],"more":true}'] == messages(few)
    big = 2**62
    many = Hint(ended=tuple(range(big, big + 1200)), cancelled=(5,), wakes=(Wake("ü", 1.0),))
    parts = messages(many, "me")
    contents = [json.loads(part.partition(" ")[2]) for part in parts]
    assert 1 < len(parts) <= 4
    assert list(many.ended) == [task for part in contents for task in part.get("ended", ())]
    assert [5] == [task for part in contents for task in part.get("cancelled", ())]
    assert not any("more" in part for part in contents)
    huge = Hint(ended=tuple(range(big, big + 100_000)))
    long = Hint(wakes=(Wake("x" * 9000, 0.0),), cancelled=(5,))
    for hint in (huge, long):
        assert any(part.endswith('{"more":true}') for part in messages(hint))
        assert 4 >= len(messages(hint))
    everything = (few, many, huge, long)
    assert all(len(part.encode()) < 8000 for hint in everything for part in messages(hint))


async def test_a_split_hint_arrives_complete(opened: Opening) -> None:
    """In the order in which it was split."""
    ear, speaker = await opened("a").listening(), opened("b")
    hint = Hint(ended=tuple(range(2**62, 2**62 + 1200)))
    speaker.wakes.send(hint)
    heard: list[int] = []
    while len(heard) < 1200:
        heard += (await ear.next()).ended
    assert list(hint.ended) == heard


async def test_inside_a_transaction_the_commit_notifies(opened: Opening, postgres_url: str) -> None:
    """And not at all if that is undone."""
    ear = await opened("a").listening()
    with psycopg.connect(postgres_url) as caller:
        channel = channel_of(ear.address.schema)
        caller.execute(wake_module.NOTIFY, [channel, messages(Hint(ended=(3,)))])
        caller.rollback()
        caller.execute(wake_module.NOTIFY, [channel, messages(ENDED)])
        await asyncio.sleep(0.05)  # a message that comes too early would have come
        assert ear.hints.empty()
        caller.commit()
    assert ENDED == await ear.next()


async def test_a_hint_that_could_not_be_sent_is_sent_later(opened: Opening) -> None:
    """The writer has lost its connection; it sends the hint with the next one."""
    ear, speaker = await opened("a").listening(), opened("b")
    assert speaker.writer is not None
    with connect(speaker.address) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", [speaker.writer.info.backend_pid])
    assert wake_module.TRY_AGAIN == speaker.wakes.send(ENDED)
    speaker.hang_up()
    assert wake_module.TRY_AGAIN == speaker.wakes.send(Hint(ended=(2,)))
    speaker.reconnect()
    assert speaker.wakes.send() is None
    assert Hint(ended=(1, 2)) == await ear.next()


# --- the ear --------------------------------------------------------------------------------------


async def test_hints_count_as_received_once_a_sent_one_came_back(opened: Opening) -> None:
    """An empty message is sent for that, when there is an occasion."""
    process = await opened("a").listening()
    assert not process.wakes.receives_hints()
    assert process.wakes.send(Hint()) is None
    await eventually(process.wakes.receives_hints)
    other = opened("b")
    other.wakes.send(ENDED)
    assert ENDED == await process.next()
    assert not other.wakes.receives_hints()


async def test_notifications_that_do_not_arrive_are_logged_once(
    opened: Opening, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pooler accepts LISTEN and delivers nothing; the process then polls."""
    process = await opened("a").listening()
    listener = process.wakes._listener
    assert listener is not None
    assert listener._connection is not None
    listener._connection.execute("UNLISTEN *")
    process.wakes.send(ENDED)
    assert not process.wakes.receives_hints()  # not before something came back
    assert "" == caplog.text
    monkeypatch.setattr(wake_module, "ECHO_WITHIN", 0.0)
    assert not process.wakes.receives_hints()
    assert not process.wakes.receives_hints()
    assert 1 == caplog.text.count("do not arrive")


async def test_a_terminated_listener_reconnects(
    opened: Opening, caplog: pytest.LogCaptureFixture
) -> None:
    """It then polls every pool. One line of the log has the loss, one the return."""
    caplog.set_level(logging.INFO, "millpond.postgres")
    ear, speaker = await opened("a").listening(), opened("b")
    for _ in range(2):
        ear.wakes.send(Hint())
        await eventually(ear.wakes.receives_hints)
        with connect(ear.address) as other:
            other.execute("SELECT pg_terminate_backend(%s)", [ear.session()])
        speaker.wakes.send(ENDED)
        await ear.heard(LOOK)
        assert not ear.wakes.receives_hints()  # not before something came back
        speaker.wakes.send(Hint(ended=(2,)))
        assert Hint(ended=(2,)) == await ear.next()
    assert 2 == caplog.text.count("retrying, polling every second")
    assert 2 == caplog.text.count(" is back")
    assert 4 == len(caplog.records)


@pytest.fixture
def spare(own: OwnServer) -> Iterator[OwnServer]:
    """Give a server to stop: other tests have connections to the one they share."""
    with OwnServer(own.programs) as server:
        yield server


async def test_a_listener_survives_a_restart_of_the_server(
    spare: OwnServer, opened: Opening, caplog: pytest.LogCaptureFixture
) -> None:
    """The listener tries to reconnect while it is away, and logs that once."""
    caplog.set_level(logging.INFO, "millpond.postgres")
    ear, speaker = await opened("a", url=spare.url).listening(), opened("b", url=spare.url)
    await asyncio.to_thread(spare.crash)
    try:
        await eventually(lambda: not ear.wakes.receives_hints() and caplog.records)
        listener = ear.wakes._listener
        assert listener is not None
        await eventually(lambda: listener._pause >= 0.2)  # it failed a few times
    finally:
        await asyncio.to_thread(spare.start)
    assert LOOK == await ear.next()
    speaker.reconnect()
    speaker.wakes.send(ENDED)
    assert ENDED == await ear.next()
    lines = [record.message for record in caplog.records]
    assert ["retrying, polling", " is back"] == [
        next(words for words in ("retrying, polling", " is back") if words in line)
        for line in lines
    ]


async def test_a_server_that_is_away_at_first_is_waited_for(
    spare: OwnServer, opened: Opening
) -> None:
    """The pauses grow, and have an end."""
    process = opened("a", url=spare.url)
    await asyncio.to_thread(spare.stop)
    try:
        process.wakes.listen(process.hints.put_nowait, asyncio.get_running_loop())
        listener = process.wakes._listener
        assert listener is not None
        await eventually(lambda: listener._pause >= 0.2)
        assert not process.wakes.receives_hints()
    finally:
        await asyncio.to_thread(spare.start)
    assert LOOK == await process.next()


def test_pauses_double_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """They start from the shortest after a connection that lasted."""
    waits: list[float] = []
    now = [0.0]

    class Loop:
        def call_later(self, delay: float, _call: object) -> None:
            waits.append(delay)

        def time(self) -> float:
            return now[0]

    monkeypatch.setattr(listen_module, "FIRST_PAUSE", 0.1)
    monkeypatch.setattr(listen_module.Listener, "_open", lambda _: None)
    monkeypatch.setattr(listen_module, "random", SimpleNamespace(random=lambda: 1.0))
    loop: Any = Loop()
    address = address_of("postgresql://host/db")
    listener = listen_module.Listener(address, "c", loop, heard=print, back=print)
    for _ in range(12):
        listener._failed(OSError("away"))
    assert [0.1, 0.2, 0.4] == waits[:3]
    assert 30.0 == waits[-1] == max(waits)
    for lasted, wait in ((1.0, 30.0), (31.0, 0.1)):
        now[0] += 100.0
        listener._connected_at = now[0] - lasted
        listener._failed(OSError("away"))
        assert wait == waits[-1]


@pytest.mark.parametrize("how", ["off", "pooler"])
async def test_a_process_that_does_not_listen_still_notifies_others(
    opened: Opening, postgres_url: str, how: str
) -> None:
    """It gets no hints itself."""
    mark = "&" if "?" in postgres_url else "?"
    option = "listen=off" if how == "off" else "pooler=1"
    deaf, ear = opened("a", url=f"{postgres_url}{mark}{option}"), await opened("b").listening()
    deaf.wakes.listen(deaf.hints.put_nowait, asyncio.get_running_loop())
    deaf.wakes.send(ENDED)
    assert ENDED == await ear.next()
    ear.wakes.send(ENDED)
    await eventually(ear.wakes.receives_hints)
    assert deaf.hints.empty()
    assert not deaf.wakes.receives_hints()


async def test_a_listener_may_use_another_address(
    own: OwnServer, own_url: str, opened: Opening
) -> None:
    """Behind a pooler it has an address of its own, with a password of its own."""
    ear_url = quote(own.tcp(own_url), safe="")
    url = f"{own_url}&pooler=1&listen={ear_url}"
    ear, speaker = await opened("a", url=url).listening(), opened("b", url=own_url)
    speaker.wakes.send(ENDED)
    assert ENDED == await ear.next()
    ear.wakes.send(Hint())
    await eventually(ear.wakes.receives_hints)


async def test_a_closed_listener_gets_no_hint(opened: Opening) -> None:
    """Closing twice, or while it connects, is harmless."""
    process, early = await opened("a").listening(), opened("b")
    early.wakes.listen(early.hints.put_nowait, asyncio.get_running_loop())
    early.wakes.close()
    await eventually(lambda: "millpond-listener" not in {t.name for t in threading.enumerate()})
    process.wakes.close()
    process.wakes.close()
    assert process.wakes.send(ENDED) is None
    assert not process.wakes.receives_hints()
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'millpond listener'"
    assert process.writer is not None
    writer = process.writer
    await eventually(
        lambda: writer.execute(f"{query} AND datname = current_database()").fetchone() == (0,)
    )
    assert early.hints.empty()


async def test_a_loop_that_cannot_hear_is_no_trouble(
    opened: Opening, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Windows has such loops."""

    def refuse(*_: object) -> None:
        raise NotImplementedError

    process = opened("a")
    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", refuse)
    process.wakes.listen(process.hints.put_nowait, asyncio.get_running_loop())
    await eventually(lambda: caplog.records)
    assert "cannot watch the socket" in caplog.text
    assert not process.wakes.receives_hints()


def test_a_loop_that_is_closed_meanwhile_is_no_trouble(opened: Opening) -> None:
    """The thread that connects for it closes the connection again."""
    process = opened("a")
    loop = asyncio.new_event_loop()
    loop.close()
    listener = listen_module.Listener.__new__(listen_module.Listener)
    listener._address, listener._channel, listener._loop = process.address, "c", loop
    listener._connect()


async def test_a_forked_child_leaves_the_connection_to_its_parent(opened: Opening) -> None:
    """It neither hears for it nor ends it."""
    ear, speaker = await opened("a").listening(), opened("b")
    child = os.fork()
    if child == 0:
        ear.wakes.close()
        os._exit(0 if not ear.wakes.receives_hints() else 1)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert 0 == os.waitstatus_to_exitcode(status)
    speaker.wakes.send(ENDED)
    assert ENDED == await ear.next()


# --- over processes ----------------------------------------------------------------------------

ECHO = """
import asyncio, sys
from millpond.store.postgres.connect import connect
from millpond.store.postgres.url import address_of
from millpond.store.postgres.notify import PostgresHintChannel

async def main():
    address = address_of(sys.argv[1])
    writer = connect(address)
    wakes = PostgresHintChannel(address, "echo", lambda: writer)
    over = asyncio.Event()
    def heard(hint):
        if hint.more:
            print("here", flush=True)
        elif hint.finished_runs:
            over.set()
        else:
            say(hint)
    def say(hint=None):
        wait = wakes.send(hint)
        if wait is not None:
            asyncio.get_running_loop().call_later(wait, say)
    wakes.listen(heard, asyncio.get_running_loop())
    await over.wait()
    wakes.close()

asyncio.run(main())
"""


async def test_a_hint_crosses_from_process_to_process_and_back(
    opened: Opening, postgres_url: str
) -> None:
    """Well within the time that the poll floor would take."""
    ear = await opened("a").listening()
    process = subprocess.Popen(  # noqa: ASYNC220 - the loop can wait
        [sys.executable, "-c", ECHO, postgres_url],
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
        await asyncio.sleep(0.006)  # past the pause of the other process
    ear.wakes.send(Hint(finished_runs=(1,)))
    await asyncio.to_thread(process.communicate)
    assert sorted(taken)[25] < 0.1


async def test_the_message_of_a_submit_may_go_along_with_it(
    opened: Opening, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does that of the first after a pause; the next ones are gathered as before."""
    monkeypatch.setattr(wake_module, "PAUSE", 60.0)
    ear, speaker = await opened("a").listening(), opened("b")
    along = speaker.wakes.along("mail")
    assert along is not None
    assert speaker.wakes.along("mail") is None
    with psycopg.connect(postgres_url, autocommit=True) as stranger:
        stranger.execute("SELECT pg_notify(%s, %s)", along)
    assert Hint(wakes=(Wake("mail", 0.0),)) == await ear.next()
    speaker.wakes.close()
    assert speaker.wakes.along("mail") is None


async def test_the_ends_of_many_tasks_are_sent_together(
    opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They can wait a little; a task to start, or a few ends that a caller awaits, cannot."""
    monkeypatch.setattr(wake_module, "BULK_PAUSE", 60.0)
    ear, speaker = await opened("a").listening(), opened("b")
    many = Hint(ended=tuple(range(1, 50)))
    assert speaker.wakes.send(many) is None
    assert many == await ear.next()
    again = speaker.wakes.send(many)
    assert again is not None
    assert again > 50.0
    assert speaker.wakes.send(Hint(wakes=(Wake("mail", 1.0),))) is None
    assert Hint(wakes=(Wake("mail", 1.0),), ended=many.ended) == await ear.next()
