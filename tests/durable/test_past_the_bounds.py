"""Values past every check: the store refuses them or sets them aside, and neighbours complete."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from millpond import Millpond, fair_round_robin
from millpond.core.lifecycle import Transition
from millpond.core.settle import Settled, Settlement
from millpond.core.task import Call, Fence, NewTask
from millpond.pool.internals import internals_of
from millpond.pool.new_task import new_task
from millpond.store.postgres.quoting import qualified
from millpond.store.postgres.url import address_of
from millpond.store.protocol import Batch

pytestmark = [pytest.mark.real_loop, pytest.mark.rows("TR-02", "TR-03")]

WITHIN = 60.0
DICE = random.Random(7)


def cjk(length: int) -> str:
    """Return text that no database can compress."""
    return "".join(chr(DICE.randrange(0x4E00, 0x9FFF)) for _ in range(length))


POISONS: dict[str, dict[str, Any]] = {
    "key and share": {"key": cjk(512), "share": cjk(512)},
    "wider still": {"key": cjk(2_000), "share": cjk(2_000)},
    "function": {"call": Call(cjk(2_800), b"{}")},
    "surrogate in a key": {"key": "\ud800"},
    "surrogate in a share": {"share": "\udfff"},
    "surrogate in submitted_by": {"submitted_by": "\ud800"},
    "surrogate in a label": {"labels": {"a": "\ud800"}},
    "surrogate in a function": {"call": Call("\ud800", b"{}")},
    "NUL in a key": {"key": "a\0b", "share": "a\0b"},
    "NUL in an idempotency key": {"idempotency_key": "a\0b"},
    "delay": {"delay": 1e305},
    "run_at": {"run_at": 1e305},
    "run_at not a number": {"run_at": float("nan")},
    "expires_in": {"expires_in": 1e305},
    "priority": {"priority": 10**30},
    "weight": {"weight": 10**30},
    "attempts": {"attempts": 10**30},
    "idempotency key": {"idempotency_key": cjk(3_000)},
}


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the URL of a durable store of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/work.db"
    given: str = request.getfixturevalue("postgres_url")
    return given


def poisoned(new: NewTask, name: str) -> NewTask:
    """Return a task with values that no check has seen."""
    made = msgspec.structs.replace(new)
    for option, value in POISONS[name].items():
        msgspec.structs.force_setattr(made, option, value)
    return made


def app(where: str) -> tuple[Millpond, Any]:
    """Return a process with a fair pool, and its task."""
    mp = Millpond(where)
    pool = mp.pool("items", max_concurrent=4, queue=fair_round_robin(), max_per_key=2)

    @pool.task
    async def item(n: int) -> int:
        return n

    return mp, item


async def all_end(mp: Millpond, good: list[int], bad: int) -> None:
    """Check that the good tasks complete and that the bad one ends or is parked."""
    async with mp.worker(), asyncio.timeout(WITHIN):
        assert list(range(len(good))) == [await (await mp.handle(one)) for one in good]
        while (await mp.status([bad]))[0] in {"queued", "running"}:
            record = await internals_of(mp).runtime.view.task(bad)
            assert record is not None
            if record.parked or record.due > internals_of(mp).runtime.clock() + 3_600:
                break
            await asyncio.sleep(0.05)  # the store is asked, which gives no event


@pytest.mark.parametrize("name", POISONS)
async def test_a_submit_past_the_bounds_harms_no_neighbour(where: str, name: str) -> None:
    """Submits that go to the store at once: each is a caller's own, and so is its error."""
    mp, item = app(where)
    async with mp:
        pool, store = mp.get_pool("items"), internals_of(mp).runtime.store
        await pool.submit(item.bind(99), delay=3_000.0)
        made = [
            new_task(internals_of(pool), internals_of(item.bind(n)), {"key": f"k{n % 2}"})
            for n in range(6)
        ]
        bad = poisoned(new_task(internals_of(pool), internals_of(item.bind(7)), {}), name)
        sent = [*made[:3], bad, *made[3:]]
        answers = await asyncio.gather(
            *(store.submit([Batch(tasks=(new,))]) for new in sent), return_exceptions=True
        )
        refused = [n for n, one in enumerate(answers) if isinstance(one, BaseException)]
        assert refused in ([], [3])
        await all_end(mp, [new.id for new in made], bad.id)


@pytest.mark.parametrize("name", POISONS)
async def test_a_follow_up_past_the_bounds_harms_no_neighbour(where: str, name: str) -> None:
    """It goes to the store with the end of its own task, next to the ends of others."""
    mp, item = app(where)
    async with mp:
        pool = mp.get_pool("items")
        bad = poisoned(new_task(internals_of(pool), internals_of(item.bind(7)), {}), name)
        store: Any = internals_of(mp).runtime.store
        settle, spoilt = store.settle, set()

        async def spoiling(ends: Any, **options: Any) -> Any:
            sent = []
            for end in ends:
                found = end
                if end.result == b"3" and end.event is Transition.COMPLETE:
                    spoilt.add(end.fence.task)
                    found = msgspec.structs.replace(end, follow_ups=(bad,))
                sent.append(found)
            return await settle(sent, **options)

        store.settle = spoiling
        handles = [await item.submit(n) for n in range(6)]
        async with mp.worker(), asyncio.timeout(WITHIN):
            ends = [await one.wait() for one in handles]
        statuses = ["completed" if n != 3 else ends[3].status for n in range(6)]
        assert statuses == [one.status for one in ends]
        assert ends[3].status in {"completed", "failed"}
        assert spoilt


WORDS: dict[str, Any] = {
    "arguments": {"n": 7},
    "key": None,
    "idempotency_key": None,
    "delay": 0,
    "priority": 0,
    "run_at": None,
    "expires_in": None,
    "timeout": None,
    "attempts": 3,
    "weight": 1,
    "labels": {},
    "dedupe": "forever",
    "submitted_by": "sql",
}
SAID: dict[str, dict[str, Any]] = {
    "key": {"key": cjk(600), "labels": {"key": cjk(2_000)}},
    "function": {"function": cjk(2_800)},
    "surrogate": {"submitted_by": "\ud800"},
    "surrogate in arguments": {"arguments": {"n": "\ud800"}},
    "NUL": {"labels": {"a": "\0"}, "key": "k"},
    "delay": {"delay": 1e305},
    "run_at": {"run_at": 1e305},
    "expires_in": {"expires_in": 1e305},
    "priority": {"priority": 10**30},
    "weight": {"weight": -1},
    "nothing": {"arguments": None, "labels": None},
}


@pytest.mark.parametrize("name", SAID)
async def test_a_row_of_the_inbox_past_the_bounds_harms_no_neighbour(
    postgres_url: str, name: str
) -> None:
    """It was written into the table by hand: what came before and after it is run."""
    mp, item = app(postgres_url)
    address = address_of(postgres_url)
    async with mp:
        pool = mp.get_pool("items")
        await pool.submit(item.bind(99), delay=3_000.0)
        said = {"function": "item", **WORDS, **SAID[name]}
        insert = qualified(
            "INSERT INTO millpond_inbox (id, pool, key, function, fingerprint, spoken, body) "
            "VALUES (%s, 'items', %s, %s, 0, 1, %s)",
            address.schema,
        ).encode()
        with psycopg.connect(address.conninfo, autocommit=True) as own:
            for number in (1, 5, 2):
                words = said if number == 5 else {"function": "item", **WORDS}
                if number != 5:
                    words = {**words, "arguments": {"n": number - 1}}
                row = [number, words["key"], words["function"], json.dumps(words).encode()]
                own.execute(insert, row)
        await all_end(mp, [1, 2], 5)


async def test_a_settlement_past_the_bounds_is_refused_alone(where: str) -> None:
    """A delay, an error and a fence that no date, text or number can hold."""
    mp, item = app(where)
    async with mp:
        store = internals_of(mp).runtime.store
        handle = await item.submit(0)
        for fields in ({"delay": 1e305}, {"delay": float("nan")}, {"weight": 10**30}):
            end = Settlement(fence=Fence(handle.id, 1, 1), event=Transition.RETRY)
            for option, value in fields.items():
                msgspec.structs.force_setattr(end, option, value)
            (answer,) = await asyncio.gather(store.settle([end]), return_exceptions=True)
            if not isinstance(answer, BaseException):
                assert (Settled.APPLIED,) != answer.settled
        await all_end(mp, [handle.id], handle.id)
