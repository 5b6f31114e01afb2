"""Tracebacks of failures: the handler's own frames, and none of Millpond."""

import asyncio
import traceback
from collections.abc import Callable

import pytest
from tests.pool import process_tasks

from millpond import Millpond, Retry, TaskFailed


def fail() -> None:
    """Raise in a line that the traceback must show."""
    raise LookupError("no such page")


async def fail_later() -> None:
    """Raise after a wait."""
    await asyncio.sleep(0.001)
    fail()


def shown(error: BaseException | None) -> list[str]:
    """Return the function names in a printed traceback."""
    assert error is not None
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.real_loop
@pytest.mark.parametrize(
    ("handler", "frames"),
    [(fail, ["fail"]), (fail_later, ["fail_later", "fail"])],
    ids=["thread", "loop"],
)
@pytest.mark.parametrize("how", ["call", "closure"])
async def test_a_traceback_begins_with_the_handler(
    how: str, handler: Callable[[], object], frames: list[str]
) -> None:
    """The cause and the stored text have only its frames, in a thread and on the loop."""
    mp = Millpond()
    work = mp.pool("work", retry=Retry.never())
    task = work.task(handler)
    async with mp:
        with pytest.raises(TaskFailed) as caught:
            await (await work.submit(task.bind() if how == "call" else handler))
    assert frames == shown(caught.value.__cause__)
    assert "src/millpond" not in caught.value.traceback_text
    assert 'raise LookupError("no such page")' in caught.value.traceback_text


async def test_a_timed_out_attempt_has_the_traceback_of_where_it_was() -> None:
    """The cause is a TimeoutError, caused by the cancellation that the handler was stopped with."""
    mp = Millpond()
    work = mp.pool("work", retry=Retry.never())

    @work.task(timeout=5)
    async def hang() -> None:
        await asyncio.sleep(60)

    @work.batch_task(size=2, timeout=5)
    async def hang_together(items: list[int]) -> list[int]:
        await asyncio.sleep(60)
        return items

    async with mp:
        for handle in (await hang.submit(), await hang_together.submit(1)):
            with pytest.raises(TaskFailed) as caught:
                await handle
            late = caught.value.__cause__
            assert isinstance(late, TimeoutError)
            assert isinstance(late.__cause__, asyncio.CancelledError)
            assert shown(late.__cause__)[0] in ("hang", "hang_together")
            assert "await asyncio.sleep(60)" in caught.value.traceback_text


@pytest.mark.real_loop
async def test_an_error_of_another_process_is_printed_with_its_traceback() -> None:
    """The note of the cause has the frames of the handler, and none of Millpond."""
    async with process_tasks.mp:
        with pytest.raises(TaskFailed) as caught:
            await (await process_tasks.fail.submit("error"))
    cause = caught.value.__cause__
    printed = "".join(traceback.format_exception(cause))
    assert "FileNotFoundError: no such page" in printed
    assert "in fail\n" in printed
    assert "src/millpond" not in printed
