"""Drawing: the same lines on every screen, within its width, and a terminal left clean."""

import io
import os
import re
import signal
from pathlib import Path

import msgspec
import pytest

from millpond.demo import playback_clock as pace
from millpond.demo import screen
from millpond.demo.__main__ import ended_by_signals
from millpond.demo.drawing import ASCII, UNICODE, Glyphs, Pen, drawn, glyphs_for, trimmed
from millpond.demo.report import Show
from millpond.demo.scenes import (
    BLANK,
    Bar,
    Columns,
    Legend,
    Note,
    Row,
    Scene,
    Stack,
    Strip,
    Tone,
)
from millpond.demo.screen import LiveScreen, PlainScreen, screen_for, written

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[3[0-7]m")
PAGE = "\x1b[H"
DEMO_PAGE = Path(__file__).parents[2] / "docs/how-to/watch-the-demo.md"


class FakeTime:
    """A clock for the audience: sleeping is free and moves it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.naps: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1.8e9 + self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds


class Pipe(io.StringIO):
    """Text with an encoding."""

    encoding = "utf-8"


class Terminal(Pipe):
    """Text that says it is a terminal."""

    def isatty(self) -> bool:
        return True

    def pages(self) -> list[list[str]]:
        """Return the lines of each page that was painted, without colours."""
        return [
            [ESCAPE.sub("", line) for line in page.split("\r\n")]
            for page in self.getvalue().split(PAGE)[1:]
        ]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    clock = FakeTime()
    monkeypatch.setattr(screen, "time", clock)
    monkeypatch.setattr(pace, "time", clock)
    return clock


@pytest.fixture
def live(scene: Scene) -> Scene:
    """What an act is given where it is watched."""
    return msgspec.structs.replace(scene, speed=1.0)


@pytest.fixture
def size(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The size of the terminal; to resize it, append another."""
    sizes = [(80, 24)]
    monkeypatch.setattr(LiveScreen, "_measured", lambda _: os.terminal_size(sizes[-1]))
    return sizes


def plain(show: Show, width: int = 80) -> str:
    """Return the lines of a show, as a pipe gets them."""
    lines = written(show, Pen(width))
    return "".join("".join(text for text, _ in trimmed(line)) + "\n" for line in lines)


def lines_of(*rows: Row, width: int = 80) -> list[str]:
    """Return the lines of a picture."""
    return ["".join(text for text, _ in line).rstrip() for line in drawn(rows, width)]


# Rows


def test_a_bar_is_full_to_its_value_light_to_its_peak_and_marked_at_its_limit() -> None:
    """The mark stands where the limit is, whatever is drawn there."""
    bar = Bar(label="busy", value=3, top=36, peak=5, limit=8, tail="3")
    assert ["  busy  ███░░   │" + " " * 27 + " 3"] == lines_of(bar)
    over = Bar(label="busy", value=10, top=36, limit=8)
    assert ["  busy  ████████│█"] == lines_of(over)


def test_a_little_is_never_drawn_as_nothing() -> None:
    """One of a thousand is one cell; none is none."""
    some, none = (Bar(label="b", value=value, top=1000) for value in (1, 0))
    assert ["  b  █"] == lines_of(some)
    assert ["  b"] == lines_of(none)


def test_a_stack_shows_done_running_and_queued_in_three_shades() -> None:
    """With the numbers behind it; each that is not 0 has a cell, and it never grows too long."""
    stack = Stack(label="acme", done=20, running=1, queued=9, top=60, tone=Tone.ONE)
    assert ["  acme  " + "█" * 20 + "▒" + "░" * 9 + " " * 30 + "  20   1   9"] == lines_of(stack)
    small = Stack(label="acme", done=1, running=1, queued=1, top=6000, tone=Tone.ONE)
    assert ["  acme  █▒░" + " " * 57 + "   1   1   1"] == lines_of(small)
    large = Stack(label="acme", done=99, running=1, queued=1, top=60, tone=Tone.ONE)
    assert [80] == [len(line) for line in lines_of(large)]
    assert ["  █ done  ▒ running  ░ queued"] == lines_of(Legend())


def test_an_order_of_starts_wraps() -> None:
    """In as few lines as hold what it will have in the end."""
    order = Strip(label="s", letters="ab" * 20, tones={"a": Tone.ONE}, length=60)
    assert ["  s  " + "ab" * 15, "     " + "ab" * 5] == lines_of(order, width=40)


def test_a_note_that_is_too_long_is_wrapped() -> None:
    """Under itself."""
    assert ["", "  one two three four five six", "  seven"] == lines_of(
        BLANK, Note(text="one two three four five six seven"), width=30
    )


def test_columns_stand_side_by_side_or_one_above_the_other() -> None:
    """As there is room; labels are aligned in each column for itself."""
    left = (Note(text="Left"), Bar(label="a", value=1, top=1, tail="1"))
    right = (Note(text="Right"),)
    wide = lines_of(Columns(left, right), width=80)
    assert "  Left".ljust(43) + "Right" == wide[0]
    assert wide[1].startswith("  a  ███")
    assert ["  Left", "  Right"] == lines_of(Columns(left, right), width=60)[::2]


# The show


@pytest.mark.parametrize("width", [20, 36, 40, 60, 79, 80, 100, 200])
def test_no_line_is_wider_than_the_screen(show: Show, width: int) -> None:
    """Down to the narrowest, below which it is cut, and never wider than reads well."""
    assert max(map(len, plain(show, width).splitlines())) <= max(36, min(width, 116))


def test_the_summary_fits_on_a_page(show: Show) -> None:
    """At 80 by 24 with a line for the prompt, one line for each promise."""
    lines = Pen(80).summary(show)
    assert len(lines) <= 23
    assert len(show.promises) == sum("ok  " in "".join(part for part, _ in line) for line in lines)


def test_every_act_fits_on_a_page(show: Show) -> None:
    """At 80 by 24, from its first frame to its last word, and its code is not cut."""
    for act in show.acts:
        assert max(map(len, act.bill.code)) <= 78
        for frame in act.frames:
            lines = Pen(80).act(act.bill, "1/3", frame.rows, said=act.ending.said)
            assert len(lines) <= 24


@pytest.mark.parametrize(
    ("encoding", "glyphs"),
    [("utf-8", UNICODE), ("ascii", ASCII), ("latin-1", ASCII), (None, ASCII), ("no-such", ASCII)],
)
def test_glyphs_are_those_that_can_be_written(encoding: str | None, glyphs: Glyphs) -> None:
    """An unknown encoding gets the plainest."""
    assert glyphs is glyphs_for(encoding)


def test_the_page_shows_what_the_demo_prints(show: Show) -> None:
    """The frame in the page of the demo, and its key figure, are those of the default seed."""
    text = DEMO_PAGE.read_text("utf-8")
    frame = re.search(r"```text\n(  In order of arrival.*?)\n```", text, re.DOTALL)
    assert frame is not None
    assert frame[1] in plain(show)
    seen = show.flood.ending.figures
    output = (
        f"waited {seen.fifo.quiet.median:.2f} s with `fifo()` and {seen.fair.quiet.median:.2f} s"
    )
    assert output in " ".join(text.split())


def test_the_page_shows_the_kill_as_the_demo_does(show: Show) -> None:
    """Line for line; only the figures are another day's."""
    text = DEMO_PAGE.read_text("utf-8")
    frame = re.search(r"```text\n(  worker 1.*?)\n```", text, re.DOTALL)
    assert frame is not None
    shapes = [re.sub(r"[\d.█░]+| {2,}", "", line) for line in frame[1].splitlines()]
    killed = sorted(shapes[:3])
    lines = [re.sub(r"[\d.█░]+| {2,}", "", line) for line in plain(show).splitlines()]
    first = next(number for number, line in enumerate(lines) if line.startswith("worker "))
    assert killed == sorted(lines[first : first + 3])
    assert shapes[3:] == lines[first + 3 : first + len(shapes)]


# A terminal


def test_without_waiting_a_terminal_shows_the_same_lines_as_a_pipe(
    clock: FakeTime, replayed: None, tmp_path: Path
) -> None:
    """Colours aside; no time passes and no page is turned."""
    out, pipe = Terminal(), Pipe()
    LiveScreen(out, colour=True).play(Scene(seed=1, file=tmp_path / "one.db"))
    PlainScreen(pipe).play(Scene(seed=1, file=tmp_path / "two.db", speed=1.0))
    assert pipe.getvalue() == ESCAPE.sub("", out.getvalue())
    assert "\x1b[?" not in out.getvalue()
    assert [] == clock.naps


@pytest.mark.parametrize("speed", [1.0, 4.0])
def test_live_it_takes_its_time_and_comes_to_the_same_end(
    show: Show, clock: FakeTime, replayed: None, scene: Scene, speed: float
) -> None:
    """Who watches changes nothing: frames, figures and promises are those of a show unseen."""
    out = Terminal()
    watched = LiveScreen(out, colour=False).play(msgspec.structs.replace(scene, speed=speed))
    assert (show.bulkhead, show.flood) == (watched.bulkhead, watched.flood)
    assert show.fleet.ending == watched.fleet.ending
    acts = sum(act.frames[-1].at for act in show.acts)
    assert (acts + 3 * screen.READING) / speed == pytest.approx(clock.now, abs=1.0)
    assert ESCAPE.sub("", out.getvalue()).endswith(plain(show))


def test_two_acts_and_the_reading_take_ten_seconds(show: Show) -> None:
    """The third takes what the machine takes: five where it has nothing else to do."""
    own = sum(act.frames[-1].at for act in (show.bulkhead, show.flood))
    assert 8 <= own + 3 * screen.READING <= 11


def test_live_the_acts_move(
    clock: FakeTime, size: list[tuple[int, int]], replayed: None, live: Scene
) -> None:
    """Each is painted many times a second, and says at its end what to remember."""
    out = Terminal()
    show = LiveScreen(out, colour=False).play(live)
    pages = out.pages()
    for number, act in enumerate(show.acts, start=1):
        mine = [page for page in pages if page[0].startswith(f"{number}/3  {act.bill.title}")]
        most = min(10 * act.frames[-1].at, 20, len(act.frames))  # frames: a busy machine has fewer
        assert len({tuple(page) for page in mine}) >= most * 0.8
        assert act.ending.said.split()[-1] in "\n".join(mine[-1])
        assert "Ctrl-C leaves" in mine[0][-1]


def test_a_window_may_be_resized_meanwhile(
    clock: FakeTime, size: list[tuple[int, int]], replayed: None, live: Scene
) -> None:
    """Each page has the size of its moment; a new size begins with a clear page."""
    out = Terminal()
    sizes = iter([(80, 24)] * 20 + [(50, 12)] * 20 + [(1, 1)] * 10)
    watched = LiveScreen(out, colour=False)
    watched._measured = lambda: os.terminal_size(  # type: ignore[method-assign]
        next(sizes, (120, 40))
    )
    watched.play(live)
    pages = out.pages()
    for page, columns, lines in (
        *((page, 80, 24) for page in pages[:20]),
        *((page, 50, 12) for page in pages[20:40]),
        *((page, 1, 1) for page in pages[40:50]),
    ):
        assert len(page) <= lines
        assert max(map(len, page)) <= columns
    assert 4 == out.getvalue().count("\x1b[2J")


def test_the_page_is_turned_back_and_the_cursor_shown(
    clock: FakeTime, replayed: None, live: Scene
) -> None:
    """Before the lines that stay are printed."""
    out = Terminal()
    LiveScreen(out, colour=True).play(live)
    before, _, after = out.getvalue().partition("\x1b[?25h\x1b[?1049l")
    assert before.startswith("\x1b[?1049h\x1b[?25l")
    assert "Promised, and seen" not in before
    assert "Promised, and seen" in after


@pytest.mark.parametrize("nap", [3, 120])
@pytest.mark.parametrize(
    ("sent", "raised"),
    [
        (signal.SIGINT, KeyboardInterrupt),
        (signal.SIGTERM, SystemExit),
        (signal.SIGHUP, SystemExit),
    ],
)
def test_a_signal_leaves_the_terminal_clean(
    clock: FakeTime,
    monkeypatch: pytest.MonkeyPatch,
    live: Scene,
    replayed: None,
    nap: int,
    sent: signal.Signals,
    raised: type[BaseException],
) -> None:
    """Wherever it comes, in the first act or in a later one; nothing is printed after it."""
    sleep = clock.sleep

    def interrupted(seconds: float) -> None:
        sleep(seconds)
        if len(clock.naps) == nap:
            signal.raise_signal(sent)

    monkeypatch.setattr(clock, "sleep", interrupted)
    handler = signal.getsignal(sent)
    out = Terminal()
    with pytest.raises(raised), ended_by_signals():
        LiveScreen(out, colour=True).play(live)
    assert out.getvalue().endswith("\x1b[?25h\x1b[?1049l")
    assert handler == signal.getsignal(sent)


def test_no_color_is_respected(
    monkeypatch: pytest.MonkeyPatch, replayed: None, tmp_path: Path
) -> None:
    """With NO_COLOR set a terminal gets no colour; without, or with nothing in it, it does."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for number, (value, coloured) in enumerate(((None, True), ("", True), ("1", False))):
        monkeypatch.delenv("NO_COLOR", raising=False)
        if value is not None:
            monkeypatch.setenv("NO_COLOR", value)
        out = Terminal()
        screen_for(out, plain=False).play(Scene(seed=1, file=tmp_path / f"{number}.db"))
        assert coloured == bool(COLOUR.search(out.getvalue()))


def test_the_plain_screen_is_for_all_who_cannot_have_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """No terminal, a dumb one, one that says nothing, and one who asks for it."""
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(screen_for(Terminal(), plain=False), LiveScreen)
    assert isinstance(screen_for(Pipe(), plain=False), PlainScreen)
    assert isinstance(screen_for(Terminal(), plain=True), PlainScreen)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(screen_for(Terminal(), plain=False), PlainScreen)
    monkeypatch.delenv("TERM")
    assert isinstance(screen_for(Terminal(), plain=False), PlainScreen)
