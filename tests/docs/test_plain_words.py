"""The check for words that hide who acts finds them, and its numbers only go down."""

from pathlib import Path

import pytest
from tools import plain_words

RIDDLE = '''\
"""Give back what was asked for."""


def told(asked: int) -> int:
    """Nobody is looked
    at."""
    return asked


class NobodyWorks:
    """Heeds orders, or part of it."""
'''


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with one module that uses eight of the words."""
    for folder in ("src/millpond/cli", "tools"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "src/millpond/cli/riddle.py").write_text(RIDDLE)
    (tmp_path / plain_words.ALLOWED).write_text("")
    return tmp_path


def test_the_check_finds_words_in_docstrings_identifiers_and_class_names() -> None:
    """A phrase may span two lines; a name counts where it is defined."""
    found = {(use.word, use.line) for use in plain_words.uses("a.py", RIDDLE)}
    assert {
        ("what was", 1),
        ("told", 4),
        ("asked", 4),
        ("nobody", 5),
        ("is looked at", 5),
        ("nobody", 10),
        ("heed", 11),
        ("of it", 11),
    } == found


@pytest.mark.parametrize(
    "sentence",
    [
        "The worker asked for a lease.",
        "It is half of its size.",
        "A user can tell them apart.",
        "Nothing tells one worker from another.",
        "No more than ten run at once.",
        "The store retold nothing.",
    ],
)
def test_the_check_accepts_ordinary_english(sentence: str) -> None:
    """Words that only sometimes hide an actor are no findings in a sentence."""
    assert [] == list(plain_words.uses("a.md", sentence))


def test_a_new_use_fails_the_check(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first run writes the numbers; from then on a folder may not hold more."""
    assert 0 == plain_words.main([], repository)
    with (repository / "src/millpond/cli/riddle.py").open("a") as file:
        file.write("# somebody\n")
    capsys.readouterr()
    assert 1 == plain_words.main([], repository)
    assert "src/millpond/cli: 9 words" in capsys.readouterr().out
    assert 1 == plain_words.main(["--lower"], repository), "--lower must not raise a number"


def test_a_use_less_fails_the_check_until_the_number_is_lowered(repository: Path) -> None:
    """So the number in the repository is the number of uses."""
    plain_words.main([], repository)
    (repository / "src/millpond/cli/riddle.py").write_text('"""Told."""\n')
    assert 1 == plain_words.main([], repository)
    assert 0 == plain_words.main(["--lower"], repository)
    assert '"src/millpond/cli" = 1\n' in (repository / plain_words.NUMBERS).read_text()


def test_an_allowance_needs_a_reason_and_a_use(repository: Path) -> None:
    """An entry that covers nothing fails the check, so the list cannot rot."""
    allowed = repository / plain_words.ALLOWED
    entry = '[[allow]]\nfile = "src/millpond/cli/riddle.py"\n'
    allowed.write_text(entry + 'reason = "It is a test."\n')
    assert 0 == plain_words.main([], repository)
    allowed.write_text(entry + 'word = "glance"\nreason = "It is a test."\n')
    assert 1 == plain_words.main([], repository)
    allowed.write_text(entry)
    with pytest.raises(TypeError, match="reason"):
        plain_words.main([], repository)
