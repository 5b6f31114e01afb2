"""Statements are written once for all databases; each says some phrases in its own words."""

import re
import sqlite3
from pathlib import Path

import pytest

from millpond.store.sql import load_queries as sql
from millpond.store.sql.load_queries import in_dialect, load_statements
from millpond.store.sqlite.dialect import SQLITE

SHARED = load_statements("millpond.store.sql")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a package's statements."""
    monkeypatch.setattr(sql, "files", lambda package: tmp_path / package)
    for name in ("millpond.store.sql", "own"):
        (tmp_path / name / "queries").mkdir(parents=True)
    return tmp_path


def written(package: Path, name: str, text: str) -> None:
    """Put a file of statements into a package."""
    (package / name / "queries" / "some.sql").write_text(text)


def test_a_statement_has_neither_comments_nor_line_ends(package: Path) -> None:
    """It is a key of the driver's cache."""
    written(package, "own", "-- About.\n\n-- Why.\n-- name: one\nSELECT 1,  -- first\n       2;\n")
    assert {"one": "SELECT 1, 2"} == load_statements("own")


def test_no_two_statements_of_a_set_have_one_name(package: Path) -> None:
    """One of them would never be used."""
    written(package, "own", "-- name: one\nSELECT 1;\n-- name: one\nSELECT 2;\n")
    with pytest.raises(ValueError, match="two statements are named one"):
        load_statements("own")


def test_a_dialect_says_all_in_its_words_and_some_itself(package: Path) -> None:
    """Its own statements are left as they are."""
    written(package, "millpond.store.sql", "-- name: one\nSELECT ?;\n-- name: two\nSELECT ?, ?;\n")
    written(package, "own", "-- name: two\nSELECT 2 ?;\n")
    said = in_dialect(lambda text: text.replace("?", "%s"), "own")
    assert {"one": "SELECT %s", "two": "SELECT 2 ?"} == said


def test_every_phrase_is_said_in_the_words_of_sqlite() -> None:
    """What is left of one would be an error when the statement is first used."""
    phrases = re.compile(r"\b(ids|names|numbered|sentence)\(")
    assert any(map(phrases.search, SHARED.values()))
    assert [] == [name for name, text in SQLITE.sql.items() if phrases.search(text)]


@pytest.mark.parametrize(
    "word",
    ["OR REPLACE", "OR IGNORE", "json_each", "printf(", "total(", "IS NOT (", "x'", "LIMIT -1"],
)
def test_shared_statements_have_no_words_of_one_database(word: str) -> None:
    """They would be found out only on the other one."""
    assert [] == [name for name, text in SHARED.items() if word in text]


def test_shared_statements_number_no_arguments() -> None:
    """Other drivers know them by their order only."""
    assert [] == [name for name, text in SHARED.items() if re.search(r"\?\d", text)]


def test_shared_statements_have_no_sign_that_drivers_read() -> None:
    """A percent sign, or a question mark in a text, would be taken for an argument."""
    texts = [re.findall(r"'[^']*'", statement) for statement in SHARED.values()]
    assert not any("?" in text for found in texts for text in found)
    assert [] == [name for name, text in SHARED.items() if "%" in text and "sentence(" not in text]


def test_lists_are_one_argument() -> None:
    """Of any length, and of whatever texts."""
    connection = sqlite3.connect(":memory:")
    found = connection.execute(
        "SELECT value FROM json_each(?)", (SQLITE.listed(["a", 'b"c', "ä\n"]),)
    ).fetchall()
    connection.close()
    assert [("a",), ('b"c',), ("ä\n",)] == found
