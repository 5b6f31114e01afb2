"""Pools on PostgreSQL: opened by a URL, shared by processes, and there when they are gone."""

import asyncio
import os
import subprocess
import sys

import psycopg
import pytest

from millpond import Context, Millpond, Retry, TaskFailed

pytestmark = pytest.mark.real_loop


def application(url: str, *, work: bool = True) -> Millpond:
    """The application of these tests."""
    mp = Millpond(url, work=work)
    pool = mp.pool("jobs", max_concurrent=4)

    @pool.task
    async def job(number: int) -> int:
        return number * 2

    return mp


async def test_a_process_runs_the_tasks_that_another_one_submits(postgres_url: str) -> None:
    """The process that submits gets the result."""
    script = (
        "import asyncio, sys\n"
        "from tests.durable.test_on_a_server import application\n"
        "async def main():\n"
        "    async with application(sys.argv[1]):\n"
        "        print('works', flush=True)\n"
        "        await asyncio.to_thread(sys.stdin.readline)\n"
        "asyncio.run(main())\n"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path)}
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, postgres_url),
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    assert b"works" in await worker.stdout.readline()
    async with application(postgres_url, work=False) as mp:
        for number in range(3):
            assert 2 * number == await (await mp.tasks["job"].submit(number))
    worker.stdin.close()
    assert 0 == await worker.wait()


async def test_a_handler_writes_in_the_transaction_of_its_completion(postgres_url: str) -> None:
    """In the database that its pool is in; what raises has written nothing."""
    mp = Millpond(postgres_url, work=True)
    pool = mp.pool("jobs", retry=Retry(attempts=1))

    @pool.task
    async def note(ctx: Context, number: int) -> None:
        async with ctx.transaction() as connection:
            connection.execute("INSERT INTO public.notes VALUES (%s)", [number])
            if number == 2:
                raise ValueError("not this one")

    with psycopg.connect(postgres_url, autocommit=True) as other:
        other.execute("CREATE TABLE public.notes (number bigint)")
        async with mp:
            await (await note.submit(1))
            with pytest.raises(TaskFailed, match="not this one"):
                await (await note.submit(2))
        assert [(1,)] == other.execute("SELECT number FROM public.notes").fetchall()
