"""The conformance page lists the right tests for each row."""

import ast
from pathlib import Path

import pytest
from tools import conformance, shown

ROOT = Path(__file__).parents[2]
ROWS = {row.id: row for family in conformance.families(ROOT) for row in family.rows}


def is_whole(session: pytest.Session) -> bool:
    """Return whether this session collected every test that names a row."""
    options = session.config.option
    if any(getattr(options, name, None) for name in ("keyword", "markexpr", "deselect", "lf")):
        return False
    files = {item.path for item in session.items}
    tests = [test.file for row in conformance.shown_by(ROOT, ROWS).values() for test in row]
    # The store suites inherit their tests from the package.
    suites = [home for home in shown.HOMES if home.endswith(".py")]
    return all(ROOT / one in files for one in tests + suites if one.startswith("tests/"))


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> shown.Shown:
    """Return the tests of the whole suite; collect again if this session collected less."""
    if is_whole(request.session):
        return shown.of_items(request.session.items, ROOT)
    return shown.collected(ROOT)


@pytest.mark.timeout(300)
def test_no_row_loses_its_tests_or_a_store(found: shown.Shown) -> None:
    """What shown.toml lists is still shown; only an edit of that file gives it up."""
    assert [] == shown.lost(shown.listed(ROOT), found)


@pytest.mark.timeout(300)
def test_all_that_is_shown_is_on_the_list(found: shown.Shown) -> None:
    """A row or store that a test has added is listed by `make docs`, and from then on kept."""
    listed = shown.listed(ROOT)
    assert listed == shown.grown(listed, found)


def test_a_promise_about_durable_stores_is_shown_on_both_of_them() -> None:
    """On SQLite and PostgreSQL, unless the row says which one alone it concerns."""
    listed = shown.listed(ROOT)
    shown_rows = [row for row in ROWS.values() if row.id in listed and not row.left]
    missing = {row.id: row.durable_on - listed[row.id] for row in shown_rows}
    assert {} == {row: stores for row, stores in missing.items() if stores}


def test_a_lost_row_and_a_lost_store_are_named() -> None:
    """The message says which row, and which of its stores."""
    before = {"A": {"memory", "sqlite"}, "B": set[str](), "C": {"postgres"}}
    now = {"A": {"memory"}, "C": {"memory", "postgres"}}
    assert ["B has no test any more", "A is no longer shown on sqlite"] == shown.lost(before, now)


def test_the_list_grows_and_never_shrinks() -> None:
    """`make docs` adds rows and stores; it leaves what no test shows to a person to delete."""
    before = {"A": {"memory", "sqlite"}, "B": {"memory"}}
    now = {"A": {"postgres"}, "C": {"memory"}}
    after = shown.grown(before, now)
    assert {"A": {"memory", "sqlite", "postgres"}, "B": {"memory"}, "C": {"memory"}} == after
    text = shown.text_of(after, ["C", "A", "B"])
    assert text.endswith('C = ["memory"]\nA = ["memory", "sqlite", "postgres"]\nB = ["memory"]\n')


def test_make_test_runs_some_files_on_other_stores_too() -> None:
    """The Makefile says which; tests marked `memory` are left out there."""
    again = shown.files_run_again(ROOT)
    assert {"sqlite", "postgres"} == again["tests/pool/order/test_lanes.py"]
    assert "tests/pool/schedules/test_cron.py" not in again


def test_the_stores_of_a_test_are_read_from_its_marks_parameters_fixtures_and_folder() -> None:
    """In that order: the first of them that names a store counts."""
    again = {"tests/pool/test_x.py": {"sqlite"}}

    class Item:
        def __init__(self, nodeid: str, *fixtures: str, **params: str) -> None:
            self.nodeid, self.fixturenames = nodeid, fixtures
            self.callspec = type("CallSpec", (), {"params": params})
            self.marks: dict[str, pytest.Mark] = {}

        def get_closest_marker(self, name: str) -> pytest.Mark | None:
            return self.marks.get(name)

    def stores(item: Item) -> list[str]:
        return shown.in_order(shown.stores_of(item, again))  # type: ignore[arg-type]

    assert ["postgres"] == stores(Item("tests/durable/test_x.py::test_a", place="postgres"))
    assert ["sqlite"] == stores(Item("tests/faults/test_x.py::test_a", "postgres", kind="sqlite"))
    assert ["postgres"] == stores(Item("tests/store/test_x.py::test_a", "postgres"))
    assert ["sqlite"] == stores(Item("tests/durable/test_x.py::test_a"))
    assert [] == stores(Item("tests/core/test_x.py::test_a"))
    one = Item("tests/pool/test_x.py::test_a")
    assert ["memory", "sqlite"] == stores(one)
    one.marks["memory"] = pytest.mark.memory("its own").mark
    assert ["memory"] == stores(one)
    one.marks["stores"] = pytest.mark.stores("postgres").mark
    assert ["postgres"] == stores(one)


def test_each_path_that_says_a_store_leads_to_tests() -> None:
    """A folder that was moved would have its tests counted for the store of the folder above."""
    assert [] == [home for home in shown.HOMES if not (ROOT / home).exists()]


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


def test_a_row_that_does_not_exist_is_refused(tmp_path: Path) -> None:
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
