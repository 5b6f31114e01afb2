"""Every example in the documentation runs as printed."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "docs/examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_as_printed(example: Path, tmp_path: Path) -> None:
    """A reader who copies the file and runs it sees no error and no warning."""
    answer = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=15,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
