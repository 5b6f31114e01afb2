"""Drawing: the same lines on every screen, within its width, and a terminal left clean."""

import io
import re
import sys

import pytest
from rich.console import Console

from millpond.demo import screen
from millpond.demo.report import Show, rehearse
from millpond.demo.screen import (
    ASCII,
    UNICODE,
    LiveScreen,
    Pen,
    PlainScreen,
    glyphs_for,
    screen_for,
)
from millpond.demo.story import Bar, Frame, Note, Row, Scene, Spark, Strip, Tone

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[(?:\d+;)*[39][0-7](?:;\d+)*m")


class FakeTime:
    """A clock for the player: sleeping is free and moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Pipe(io.StringIO):
    """Text with an encoding."""

    encoding = "utf-8"


class Terminal(Pipe):
    """Text that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def show() -> Show:
    return rehearse(1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    clock = FakeTime()
    monkeypatch.setattr(screen, "time", clock)
    return clock


def plain(show: Show, width: int = 80) -> str:
    out = Pipe()
    PlainScreen(out, width).play(show)
    return out.getvalue()


def drawn(row: Row, width: int = 80) -> list[str]:
    """Return the lines of one row, without title and sentence."""
    scene = Scene(title="t", code="", frames=(), said="", seconds=1.0)
    lines = Pen(width).scene(scene, Frame(at=0.0, rows=(row,)), ended=False)[2:-1]
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def test_a_bar_is_full_to_its_value_light_to_its_peak_and_marked_at_its_limit() -> None:
    """One cell for each of forty, at 80 columns."""
    bar = Bar(label="in flight", value=3, top=40, peak=5, limit=8, tail="3")
    assert ["  in flight  ███░░   │" + " " * 31 + " 3"] == drawn(bar)


def test_a_little_is_never_drawn_as_nothing() -> None:
    """One of a thousand is one cell; none is none."""
    some, none = (Bar(label="b", value=value, top=1000) for value in (1, 0))
    assert ["  b          █"] == drawn(some)
    assert ["  b"] == drawn(none)


def test_an_order_wraps_and_a_line_of_time_is_squeezed() -> None:
    """Squeezing keeps the marks of what happened once."""
    tones = {"a": Tone.ONE}
    order = Strip(label="s", letters="ab" * 20, tones=tones, length=40)
    assert ["  s          " + "ab" * 10, "             " + "ab" * 10] == drawn(order, 40)
    line = Strip(label="w", letters="aaaax    " * 6, tones=tones, length=54, is_time=True)
    (squeezed,) = drawn(line, 40)
    assert len(squeezed) <= 40
    assert 6 == squeezed.count("x")


def test_a_curve_reaches_from_bottom_to_top() -> None:
    """Zero is the lowest level, `top` and more the highest."""
    curve = Spark(label="limit", values=(0, 7, 14, 99), top=14, length=4, tail="99")
    assert ["  limit      ▁▅██ 99"] == drawn(curve)


def test_a_long_note_is_wrapped_under_itself() -> None:
    """The moment stays in its column."""
    assert ["  1.5 s      one two three four five", "             six"] == drawn(
        Note(at=1.5, text="one two three four five six"), 36
    )


@pytest.mark.parametrize("width", [20, 36, 40, 60, 79, 80, 100, 200])
def test_no_line_is_wider_than_the_screen(show: Show, width: int) -> None:
    """Down to the narrowest, below which it is cut, and never wider than reads well."""
    assert max(map(len, plain(show, width).splitlines())) <= max(36, min(width, 100))


@pytest.mark.parametrize(
    ("encoding", "glyphs"),
    [("utf-8", UNICODE), ("ascii", ASCII), ("latin-1", ASCII), (None, ASCII), ("no-such", ASCII)],
)
def test_glyphs_are_those_that_can_be_written(encoding: str | None, glyphs: screen.Glyphs) -> None:
    """An unknown encoding gets the plainest."""
    assert glyphs is glyphs_for(encoding)


def test_without_waiting_a_terminal_shows_the_same_lines_as_a_pipe(
    show: Show, clock: FakeTime
) -> None:
    """Colours aside; and no time passes."""
    out = Terminal()
    LiveScreen(Console(file=out, force_terminal=True, width=80, highlight=False), None).play(show)
    lines = [line.rstrip() for line in ESCAPE.sub("", out.getvalue()).splitlines()]
    assert plain(show).splitlines() == lines
    assert 0.0 == clock.now


@pytest.mark.parametrize(("speed", "least", "most"), [(1.0, 15.0, 20.0), (4.0, 3.75, 5.5)])
def test_live_it_takes_its_time_and_ends_with_the_same_words(
    show: Show, clock: FakeTime, speed: float, least: float, most: float
) -> None:
    """Fifteen to twenty seconds at normal speed; the cursor is shown again."""
    out = Terminal()
    LiveScreen(Console(file=out, force_terminal=True, width=80, height=24), speed).play(show)
    assert least <= clock.now <= most
    told = ESCAPE.sub("", out.getvalue())
    for _, scenes in show.acts:
        for scene in scenes:
            assert scene.said in told
    assert out.getvalue().rfind("\x1b[?25h") > out.getvalue().rfind("\x1b[?25l")


def test_an_interrupt_leaves_the_cursor_visible(
    show: Show, clock: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it comes."""

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(clock, "sleep", interrupt)
    out = Terminal()
    live = LiveScreen(Console(file=out, force_terminal=True, width=80, height=24), 1.0)
    with pytest.raises(KeyboardInterrupt):
        live.play(show)
    assert out.getvalue().rfind("\x1b[?25h") > out.getvalue().rfind("\x1b[?25l") >= 0


def test_no_color_is_respected(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    """With NO_COLOR set a terminal gets no colour; without, it does."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    coloured = Terminal()
    screen_for(coloured, speed=None, plain=False).play(show)
    assert COLOUR.search(coloured.getvalue())
    monkeypatch.setenv("NO_COLOR", "1")
    colourless = Terminal()
    screen_for(colourless, speed=None, plain=False).play(show)
    assert COLOUR.search(colourless.getvalue()) is None


def test_the_plain_screen_is_for_all_who_cannot_have_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """No terminal, a dumb one, one who asks for it, and an installation without rich."""
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    assert isinstance(screen_for(terminal, speed=1.0, plain=False), LiveScreen)
    assert isinstance(screen_for(Pipe(), speed=1.0, plain=False), PlainScreen)
    assert isinstance(screen_for(terminal, speed=1.0, plain=True), PlainScreen)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(screen_for(terminal, speed=1.0, plain=False), PlainScreen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert isinstance(screen_for(terminal, speed=1.0, plain=False), PlainScreen)
