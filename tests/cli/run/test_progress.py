"""The line on the terminal, and the summary."""

import pytest

from millpond.cli.run import progress
from millpond.cli.run.progress import ProgressLine, Tally, summary


def test_the_progress_line_shows_count_rate_and_remaining_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time that is left goes by the rate of late."""
    monkeypatch.setattr(progress, "cut", lambda text: text)
    tally = Tally(total=1_000, running=4, reading=False)
    line = ProgressLine(tally, shown=True)
    line.text(0.0)
    tally.completed, tally.failed = 240, 10
    output = line.text(10.0)
    assert "250/1,000  4 running  25/s  0:30 left  10 failed" in output


def test_no_remaining_time_is_shown_while_items_are_read() -> None:
    """The total is not known yet."""
    tally = Tally(total=10, completed=5)
    line = ProgressLine(tally, shown=True)
    line.text(0.0)
    output = line.text(1.0)
    assert "5/10+" in output
    assert "left" not in output


def test_nothing_is_drawn_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor taken away."""
    line = ProgressLine(Tally(), shown=False)
    line.draw()
    line.clear()
    assert "" == capsys.readouterr().err


@pytest.mark.parametrize(
    ("tally", "seconds", "expected"),
    [
        (Tally(total=3, completed=3), 1.24, "3 of 3 done, in 1.2 s"),
        (
            Tally(total=9_000, completed=5_000, failed=2, retried=7, before=1),
            3_725.0,
            "5,000 of 9,000 done, 2 failed, 3,998 left, 7 retried, 1 ended earlier, in 1:02:05",
        ),
    ],
)
def test_a_summary_counts_every_outcome(tally: Tally, seconds: float, expected: str) -> None:
    """Counts of zero are left out."""
    assert expected == summary(tally, seconds)
