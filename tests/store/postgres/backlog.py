"""A backlog that is filled in by the server itself: a million tasks in seconds.

The store takes in a thousand tasks of each pool; the server then copies their rows, many times, and
adds up what is counted. Copies stand behind what the store took in, so that what a short scenario
runs was really submitted. A copy has the body of its original with its own id in it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from psycopg import Connection

from millpond.core.rate import Rate
from millpond.core.spec import BudgetSpec, OrderKind, PoolSpec
from millpond.core.spec import Order as QueueOrder
from millpond.core.task import Call, NewTask
from millpond.store.protocol import Batch, Store

SEED = 1_000
"""How many tasks of each pool the store takes in itself."""
POOLS = (
    PoolSpec(name="fifo", max_concurrent=50, prefetch=20, order=QueueOrder(kind=OrderKind.FIFO)),
    PoolSpec(name="ranked", max_concurrent=50, order=QueueOrder(kind=OrderKind.PRIORITY)),
    PoolSpec(name="fair", max_concurrent=50, max_per_key=2, order=QueueOrder(kind=OrderKind.FAIR)),
    PoolSpec(
        name="flow",
        max_concurrent=50,
        max_per_key=2,
        order=QueueOrder(kind=OrderKind.FAIR),
        rates=(Rate(100_000, of="weight"),),
        rate_per_key=Rate(100_000),
        budgets=("wide",),
    ),
)
BUDGET = BudgetSpec(name="wide", max_concurrent=1_000, rates=(Rate(100_000, of="weight"),))

_IDS = 10**9
"""Copies of a task have ids that lie so far apart."""
_GROUPS = 10**6
_COPIED_BODY = (
    "substring(t.body FOR 6) || '\\xcf'::bytea || int8send({id}) || substring(t.body FROM "
    "CASE get_byte(t.body, 6) WHEN 205 THEN 10 WHEN 206 THEN 12 WHEN 207 THEN 16 END)"
)
"""A body is a MessagePack map that begins with the id, as a number of 2, 4 or 8 bytes."""
_KEY_COPIES = 9
"""So many more keys than the store was given share the copies."""


def new_task(pool: str, number: int, first: int) -> NewTask:
    """Return a task as each of these pools would have it."""
    key = f"tenant-{number}" if pool in ("fair", "flow") else None
    return NewTask(
        id=first + number,
        pool=pool,
        call=Call("work", b"\x91\x01"),
        key=key,
        share=key,
        priority=number % 2 if pool == "ranked" else 0,
        idempotency_key=f"order-{first + number}" if pool == "fifo" and number % 10 == 9 else None,
    )


async def seed(store: Store) -> None:
    """Submit the first tasks of each pool to the store."""
    for at, spec in enumerate(POOLS, start=1):
        tasks = tuple(new_task(spec.name, number, at * SEED * 10) for number in range(SEED))
        await store.submit([Batch(tasks=tasks)])


def multiply(connection: Connection, times: int) -> None:
    """Copy the tasks of each pool so many times, those that wait and those that have ended."""
    with connection.transaction(), without_indexes(connection, "live", "task", "ended", "key"):
        for name, grouped in connection.execute("SELECT name, grouped FROM millpond_pool"):
            _multiply(connection, name, times, keys=_KEY_COPIES if grouped else 0)


@contextmanager
def without_indexes(connection: Connection, *tables: str) -> Iterator[None]:
    """Let rows be stored without regard to indexes and constraints; they come back in the end."""
    laid_down = []
    for table in tables:
        name = f"millpond_{table}"
        for constraint, definition in connection.execute(
            "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE conrelid = %s::regclass AND contype <> 'n'",
            [name],
        ).fetchall():
            connection.execute(f'ALTER TABLE {name} DROP CONSTRAINT "{constraint}"')
            laid_down.append(f'ALTER TABLE {name} ADD CONSTRAINT "{constraint}" {definition}')
        for index, definition in connection.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = %s", [name]
        ).fetchall():
            connection.execute(f'DROP INDEX "{index}"')
            laid_down.append(definition)
    yield
    for statement in laid_down:
        connection.execute(statement)


def _multiply(connection: Connection, pool: str, times: int, *, keys: int) -> None:
    ((number, seeds),) = connection.execute(
        "SELECT id, next_seq FROM millpond_pool WHERE name = %s", [pool]
    )
    behind = f"+ k * {seeds}"
    another = f"k % {keys + 1}" if keys else "0"
    copy = _Copies(connection, times, number)
    apart = f" || CASE {another} WHEN 0 THEN '' ELSE '-' || {another} END"
    copied_id = f"t.id + k * {_IDS}"
    for table in ("live", "ended", "task"):
        copy(
            table,
            place=f"t.place {behind}",
            id=copied_id,
            body=_COPIED_BODY.format(id=copied_id),
            key="t.key" + apart,
            grp=f"t.grp + CASE WHEN t.grp > 0 THEN {another} * {_GROUPS} ELSE 0 END",
        )
    copy("key", key="t.key || '-' || k", task=f"t.task + k * {_IDS}")
    if keys:
        fewer = _Copies(connection, keys, number)
        added = " || '-' || k"
        fewer("group", id=f"t.id + k * {_GROUPS}", seq=f"t.seq {behind}", unit="t.unit" + added,
              share="t.share" + added)  # fmt: skip
        fewer("unit", unit="t.unit" + added)
        fewer("seat", share="t.share" + added, joined=f"t.joined {behind}")
        _count_groups(connection, number)
    connection.execute(
        "UPDATE millpond_pool SET next_seq = next_seq * %(n)s, joins = joins * %(n)s, "
        "live = live * %(n)s, fresh = fresh * %(n)s, ready = ready * %(n)s, later = later * %(n)s, "
        "kept = kept * %(n)s, resting = resting * %(keys)s, "
        "totals = jsonb_set(totals::jsonb, '{dead}', "
        "to_jsonb(coalesce((totals::jsonb ->> 'dead')::bigint, 0) * %(n)s))::text "
        "WHERE id = %(id)s",
        {"n": times + 1, "keys": keys + 1, "id": number},
    )


def _count_groups(connection: Connection, pool: int) -> None:
    connection.execute(
        "UPDATE millpond_group AS g SET tasks = c.tasks FROM (SELECT grp, count(*) AS tasks "
        "FROM millpond_live WHERE pool = %s AND grp > 0 GROUP BY grp) AS c WHERE c.grp = g.id",
        [pool],
    )
    connection.execute("UPDATE millpond_meta SET next_group = next_group + %s", [20 * _GROUPS])


class _Copies:
    """Copies the rows of a pool, with some columns changed: `t` is a row, `k` the number."""

    def __init__(self, connection: Connection, times: int, pool: int) -> None:
        self._connection = connection
        self._times = times
        self._pool = pool

    def __call__(self, table: str, **changed: str) -> None:
        name = f"millpond_{table}"
        columns = self._columns(name)
        values = [changed.get(column, f't."{column}"') for column in columns]
        of_pool = f"t.place >> 40 = {self._pool}" if table == "task" else f"t.pool = {self._pool}"
        self._connection.execute(
            f"CREATE TEMP TABLE seed AS SELECT * FROM {name} AS t WHERE {of_pool}"  # noqa: S608
        )
        listed = ", ".join(f'"{column}"' for column in columns)
        self._connection.execute(
            f"INSERT INTO {name} ({listed}) SELECT {', '.join(values)} "  # noqa: S608 - our names
            f"FROM generate_series(1::bigint, {self._times}) AS k CROSS JOIN seed AS t"
        )
        self._connection.execute("DROP TABLE seed")

    def _columns(self, table: str) -> Sequence[str]:
        found = self._connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
            "AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
            [table],
        )
        return [column for (column,) in found]
