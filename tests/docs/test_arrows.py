"""Imports point inward, and the core asks the world nothing."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_import_arrow_points_inward() -> None:
    """The contracts of pyproject.toml hold: layers, and a core without clock, chance or I/O."""
    linter = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    assert linter is not None, "lint-imports is not installed beside this interpreter"
    answer = subprocess.run(
        [linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
