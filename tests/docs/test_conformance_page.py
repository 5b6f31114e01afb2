"""The conformance page lists the right tests for each row."""

import ast
from pathlib import Path

import pytest
from tools import conformance

ROOT = Path(__file__).parents[2]
ROWS = {row.id: row for family in conformance.families(ROOT) for row in family.rows}


def test_every_bulkhead_row_is_shown_by_a_test() -> None:
    """Each BH row has at least one test that names it."""
    shown = conformance.shown_by(ROOT, ROWS)
    assert [] == [row for row in ROWS if row.startswith("BH-") and not shown[row]]


def test_what_is_left_out_points_at_rows_that_are_left_out() -> None:
    """The list of what is not in 1.0 and the rows' own stages agree."""
    page = "\n".join(conformance.absent(ROOT))
    named = [row for row in ROWS if f"{row}," in page or f"{row} |" in page]
    assert named
    assert all(ROWS[row].stage == "none" for row in named)


def tree(source: str, root: Path) -> Path:
    """A project of one test file."""
    (root / "tests").mkdir()
    (root / "tests/test_one.py").write_text(source, "utf-8")
    return root


def test_an_unknown_row_is_refused(tmp_path: Path) -> None:
    """A test that names an unknown id breaks the page, and the message says which."""
    root = tree('@pytest.mark.rows("BH-99")\ndef test_it(): ...\n', tmp_path)
    with pytest.raises(conformance.BadRow, match="test_it names BH-99"):
        conformance.shown_by(root, ROWS)


def test_a_row_left_out_of_1_0_cannot_be_shown(tmp_path: Path) -> None:
    """A test for a row that is not in 1.0 means one of the two is wrong."""
    root = tree('@pytest.mark.rows("BL-08")\ndef test_it(): ...\n', tmp_path)
    with pytest.raises(conformance.BadRow, match="is not in 1"):
        conformance.shown_by(root, ROWS)


def test_marks_on_functions_classes_modules_and_cases_all_count() -> None:
    """A test shows its own rows, its class's, its module's and its parameters'."""
    source = """
pytestmark = [pytest.mark.rows("M")]

@pytest.mark.rows("A", "B")
async def test_alone(): ...

@pytest.mark.rows("C")
class TestGroup:
    @pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.rows("D"))])
    def test_within(self): ...

def helper(): ...
"""
    found = dict(conformance.tests_in(ast.parse(source).body, []))
    assert {"test_alone": ["M", "A", "B"], "test_within": ["M", "C", "D"]} == found
