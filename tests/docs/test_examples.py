"""Every example in the documentation runs as printed."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs/examples"
EXAMPLES = [
    path for each in (".", "cookbook", "sources") for path in sorted((FOLDER / each).glob("*.py"))
]

FAIL_ON_PURPOSE = {
    "async_threads_processes",
    "blocking_code",
    "crawl",
    "drain_pool",
    "first_pool",
    "keep_order",
    "order_per_customer",
    "pool_from_threads",
    "react_to_events",
    "retry_and_redrive",
    "stop_work",
    "survive_a_crash",
    "test_your_handlers",
    "watch_a_pool",
    "worker_pool",
    "workpool",
}
"""Examples of which a task fails: that is logged to stderr where logging is not set up."""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_as_printed(example: Path, tmp_path: Path) -> None:
    """A reader who copies the file and runs it sees no error and no warning but those it shows."""
    answer = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=15,
    )
    assert 0 == answer.returncode, answer.stderr
    if example.stem in FAIL_ON_PURPOSE:
        assert answer.stderr.startswith(("attempt 1 of task ", "task ")), answer.stderr
        assert any(end in answer.stderr.splitlines()[0] for end in (" failed", " is lost"))
    else:
        assert "" == answer.stderr
