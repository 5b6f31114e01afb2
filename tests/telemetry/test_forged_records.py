"""Texts from outside in log records: none looks like another record, none drives a terminal."""

import io
import logging
from collections.abc import Iterator

import pytest

from millpond import Millpond, Retry
from millpond.runtime.observe.log_filters import OURS

pytestmark = pytest.mark.rows("TR-17")

FORGED = "x\nCRITICAL root: all is lost\r\x1b[2J\u202etxt.exe\u2028\x9b1m"
HARMFUL = ("\r", "\x1b", "\u202e", "\u2028", "\x9b")


class Written:
    """What handlers of an application, which knows nothing of ours, write."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    @property
    def lines(self) -> list[str]:
        """The lines that a reader of the log sees."""
        return self.stream.getvalue().split("\n")

    def check(self) -> None:
        """Object to a line that is no record of ours, and to what a terminal would obey."""
        text = self.stream.getvalue()
        assert not [one for one in HARMFUL if one in text]
        assert "all is lost" in text
        assert not [line for line in self.lines if line.startswith("CRITICAL")]


@pytest.fixture
def written() -> Iterator[Written]:
    """Give what is written by an application with logging of its own."""
    written = Written()
    handler = logging.StreamHandler(written.stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield written
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.mark.parametrize("name", OURS)
def test_no_argument_of_a_record_forges_another(name: str, written: Written) -> None:
    """Names, keys, paths, events and errors are arguments of records, whatever the logger."""
    log = logging.getLogger(name)
    log.error("task %d of %s failed: %s", 7, FORGED, ValueError(FORGED))
    written.check()
    assert 2 == len(written.lines)
    assert written.lines[0].startswith(f"ERROR {name}: task 7 of x\\nCRITICAL")


def test_no_traceback_of_a_record_forges_another(written: Written) -> None:
    """Neither the message of an error, nor its notes, nor those it came from."""
    log = logging.getLogger("millpond.hooks")
    cause = KeyError("cause")
    cause.add_note(FORGED)
    try:
        try:
            raise cause
        except KeyError as first:
            raise ValueError(FORGED) from first
    except ValueError:
        log.exception("a hook failed")
    written.check()
    assert all(line.startswith("    ") for line in written.lines[1:] if line)


def test_a_harmless_traceback_is_left_as_it_is(written: Written) -> None:
    """As every other library writes it."""
    error = ValueError("so")
    with pytest.raises(ValueError, match="so"):
        raise error
    logging.getLogger("millpond.hooks").error("a hook failed", exc_info=error)
    assert "Traceback (most recent call last):" in written.lines
    assert "ValueError: so" in written.lines


async def test_a_task_forges_no_record(written: Written) -> None:
    """Its function's name, its key and what it raises; a hook and an observer beside it."""
    mp = Millpond(work=True)

    def broken(_: object) -> None:
        raise RuntimeError(FORGED)

    pool = mp.pool("p", retry=Retry.never(), on_dead_letter=broken)
    mp.observe(broken)

    @pool.task(name="name")
    async def work(text: str) -> None:
        raise ValueError(text)

    async with mp:
        with pytest.raises(Exception, match="all is lost"):
            await (
                await work.submit(
                    FORGED,
                )
            )
    written.check()
