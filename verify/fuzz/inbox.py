"""The differential of the inbox: tasks that callers submit inside their own transactions.

Several connections put tasks (`millpond_put` by submit_within, and the SQL function `submit`), keep
their transactions open, commit in another order or roll back, while the stores do their verbs. The
model applies committed submits to memory, in the order of the inbox, once the server moved them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec
import psycopg

from millpond.errors import MillpondError
from millpond.store.postgres.inbox import Arrival
from millpond.store.protocol import Batch, SubmitAnswer
from millpond.store.verbs import api as steps
from verify.fuzz.differential import Differential, Played, Turn, answer_of
from verify.fuzz.kinds import POOL, spec_of
from verify.fuzz.player import Player
from verify.fuzz.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.task import NewTask
    from millpond.store.verbs.tables import Tables
    from millpond.testing.simulation.history import Verb
    from verify.servers.schemas import Schema

_ACTS = ("put", "put", "put in SQL", "commit", "commit", "roll back")
_CALLERS = 3


class InboxDifferential(Differential):
    """Carries out verbs on both sides while others submit in their own transactions."""

    def __init__(self, schema: Schema, stores: int) -> None:
        self.now = 0.0
        super().__init__(schema, stores, lambda: self.now)
        conninfo = schema.address.conninfo
        self.callers = [psycopg.connect(conninfo) for _ in range(_CALLERS)]
        self._looks = psycopg.connect(conninfo, autocommit=True)
        self._inbox = f'"{schema.address.schema}".millpond_inbox'

    def committed(self) -> list[Arrival]:
        """Return what is in the inbox, as far as it is committed, in its order."""
        # Its age is real time: no task here has anything that counts from it.
        columns = ", ".join("0.0" if name == "age" else name for name in Arrival._fields)
        ask = f"SELECT {columns} FROM {self._inbox} ORDER BY n"  # noqa: S608 - our own names
        return [Arrival(*row) for row in self._looks.execute(ask.encode()).fetchall()]

    async def do(self, turn: Turn) -> Any:  # noqa: ANN401 - each verb has its own answer
        """Carry out a verb on both sides; the model takes in what the server moved first."""
        self.now = turn.verb.now
        self.history.append(turn)
        waiting = self.committed()
        answer = await answer_of(self.stores[turn.store % len(self.stores)], turn.verb)
        left = {one.id for one in self.committed()}
        moved = [one for one in waiting if one.id not in left]
        if moved:
            self.memory.take_committed(moved, turn.verb.now)
        expected = await answer_of(self.memory, turn.verb)
        self.judge(turn, expected, answer)
        return expected

    async def close(self) -> None:
        """Close the connections and the stores."""
        for connection in (*self.callers, self._looks):
            connection.close()
        await super().close()


_take_committed = steps.take_committed


def _with_equal_ids(tables: Tables, tasks: Sequence[NewTask], now: float) -> SubmitAnswer:
    """Take in committed tasks; callbacks of evicted tasks get the same ids on both sides."""
    return _take_committed(tables, tasks, now, tasks[0].id if tasks else None)


@mock.patch.object(steps, "take_committed", _with_equal_ids)
async def play_inbox(schema: Schema, kind: str, seed: int, *, acts: int) -> Played:
    """Play the history of a seed while others submit; raise Diverged where it differs."""
    streams = Streams(kind, seed, "inbox")
    both = InboxDifferential(schema, streams.pick("how many stores", (1, 1, 2)))

    async def do(verb: Verb) -> Any:  # noqa: ANN401 - each verb has its own answer
        return await both.do(Turn(streams["store"].randrange(len(both.stores)), verb))

    player = Player(streams, spec_of(kind, streams), do)
    try:
        await player.begin()
        for _ in range(acts):
            if streams.chance("a caller acts", 0.5):
                _caller_acts(both, player, streams)
            else:
                await player.act()
        for caller in both.callers:
            caller.rollback()
        await player.settle_down()
        await both.compare((POOL, *player.spec.budgets), player.now)
    finally:
        await both.close()
    return Played(
        kind=kind,
        seed=seed,
        verbs=len(both.history),
        steps_taken=sum(store.taken for store in both.stores),
        steps_refused=sum(store.refused for store in both.stores),
    )


def _caller_acts(both: InboxDifferential, player: Player, streams: Streams) -> None:
    caller = streams.pick("caller", both.callers)
    act = streams.pick("caller's act", _ACTS)
    task = _plainer(player.task())
    match act:
        case "put":
            with contextlib.suppress(MillpondError):
                both.stores[0].submit_within(caller, (Batch(tasks=(task,)),))
        case "put in SQL":
            _submit_in_sql(both, caller, task)
        case "commit":
            caller.commit()
        case _:
            caller.rollback()


def _plainer(task: NewTask) -> NewTask:
    """Return a task without what counts from the real moment of its submit, or needs a process."""
    return msgspec.structs.replace(
        task, delay=0.0, expires_in=None, owner=None, on_complete=None, run=None
    )


def _submit_in_sql(both: InboxDifferential, caller: psycopg.Connection, task: NewTask) -> None:
    name = f'"{both.schema.address.schema}".submit'
    ask = (
        f"SELECT {name}(%s, %s, key => %s, idempotency_key => %s, priority => %s, attempts => %s, "
        "weight => %s, dedupe => %s)"
    )
    values = (
        *(task.pool, task.call.function, task.key, task.idempotency_key, task.priority),
        *(task.attempts, task.weight, str(task.dedupe)),
    )
    # What it refuses undoes this statement and not the whole transaction.
    with contextlib.suppress(psycopg.DatabaseError), caller.transaction():
        caller.execute(ask.encode(), values)
