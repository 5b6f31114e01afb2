"""Every record says which pool and task it is about, or that it is about none."""

import asyncio
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import millpond
from millpond import Millpond, Observed, Retry
from millpond.runtime.observe.log_filters import OURS
from millpond.telemetry.logs import TaskFilter


class Lines(logging.Handler):
    """Keeps lines as a format makes them."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.setFormatter(logging.Formatter(form))
        self.addFilter(TaskFilter())

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.lines.append(self.format(record))


@pytest.fixture
def lines() -> Iterator[list[str]]:
    handler = Lines("%(name)s %(pool)s %(task)s %(function)s %(attempt)s: %(message)s")
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield handler.lines
    root.removeHandler(handler)
    root.setLevel(before)


async def test_what_a_handler_logs_says_which_task_it_is(lines: list[str]) -> None:
    """On the loop and in a thread, by any logger; and what is logged outside is about none."""
    mp = Millpond()
    mail = mp.pool("mail", max_concurrent=2)
    log = logging.getLogger("my.app")

    @mail.task
    async def send() -> None:
        await asyncio.sleep(1)
        log.info("on the loop")

    @mail.task
    def render() -> None:
        log.info("in a thread")

    async with mp:
        first, second = await send.submit(), await render.submit()
        await mail.drain()
        log.info("outside")
    answer = [line for line in lines if line.startswith("my.app")]
    assert sorted(
        [
            f"my.app mail {first.id} send 1: on the loop",
            f"my.app mail {second.id} render 1: in a thread",
            "my.app - - - -: outside",
        ]
    ) == sorted(answer)


async def test_a_record_that_says_what_it_is_about_keeps_that(lines: list[str]) -> None:
    """Also where it is made inside the handler of another task."""
    mp = Millpond()
    mail = mp.pool("mail", retry=Retry.never())
    log = logging.getLogger("my.app")

    @mail.task
    async def send() -> None:
        log.info("another", extra={"pool": "post", "task": 7})
        log.info("its pool", extra={"pool": "mail"})
        raise ConnectionError("no")

    async with mp:
        handle = await send.submit()
        await handle.wait()
    answer = [line for line in lines if "my.app" in line]
    assert [
        "my.app post 7 - -: another",
        f"my.app mail {handle.id} send 1: its pool",
    ] == answer
    assert any(line.startswith(f"millpond.tasks mail {handle.id} send 1: task ") for line in lines)


async def test_our_own_records_have_both_without_any_filter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Hooks, observers and failures name theirs; what is about no task says None."""
    caplog.set_level(logging.DEBUG, logger="millpond")
    mp = Millpond()

    def broken(_: object) -> None:
        raise LookupError("no")

    mail = mp.pool("mail", retry=Retry.never(), on_dead_letter=broken, on_empty=broken)

    @mail.task
    async def send() -> None:
        raise ConnectionError("no")

    def observer(happened: Observed) -> None:
        raise LookupError(happened.kind)

    mp.observe(observer)
    async with mp:
        handle = await send.submit()
        await handle.wait()
        await send.submit()
    mine = ("mail", handle.id)
    about = [(record.getMessage()[:10], *_about(record)) for record in caplog.records]
    assert ("an observe", *mine) in about
    assert ("a hook fai", *mine) in about
    assert ("a hook fai", "mail", None) in about
    assert ("closed wit", None, None) in about


def _about(record: logging.LogRecord) -> tuple[object, object]:
    return vars(record)["pool"], vars(record)["task"]


def test_every_logger_of_ours_is_marked() -> None:
    """Each name that is asked for in the source is one that is known."""
    package = Path(millpond.__file__).parent
    sources = [path.read_text("utf-8") for path in package.rglob("*.py")]
    found = {name for text in sources for name in re.findall(r'getLogger\("([^"]+)"\)', text)}
    assert not any("getLogger(__name__)" in text for text in sources)
    assert set(OURS) >= found
