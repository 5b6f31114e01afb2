"""`millpond docs`: a page by its name or by words, and what an error means."""

import tomllib
from pathlib import Path

import pytest

from millpond.cli import docs
from millpond.cli.exits import Refusal

ROOT = Path(__file__).parents[2]
WORDS = tomllib.loads((ROOT / "tests/docs/search_words.toml").read_text("utf-8"))


@pytest.mark.parametrize("word", WORDS)
def test_an_ordinary_word_leads_to_its_page(word: str) -> None:
    """It comes first."""
    assert WORDS[word] == docs.found(word)[0].name


def test_every_topic_of_the_index_leads_to_its_page() -> None:
    """What the table of docs/index.md names is what the search finds first."""
    index = (ROOT / "docs/index.md").read_text("utf-8")
    wanted = {
        topic: target.removesuffix(".md")
        for target, topics in docs.topics_of(index).items()
        for topic in topics
    }
    assert len(wanted) > 100
    hits = {topic: [page.name for page in docs.found(topic)[:1]] for topic in wanted}
    assert {} == {topic: hit for topic, hit in hits.items() if hit != [wanted[topic]]}


def test_a_page_is_printed_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    """With its folder or without."""
    page = (ROOT / "docs/how-to/run-workers.md").read_text("utf-8")
    for name in ("run-workers", "how-to/run-workers"):
        assert 0 == docs.main([name])
        assert page.strip() == capsys.readouterr().out.strip()


def test_a_search_prints_the_best_page_and_names_others(capsys: pytest.CaptureFixture[str]) -> None:
    """`--list` prints names and titles only."""
    assert 0 == docs.main(["rate", "limit"])
    out = capsys.readouterr().out
    assert out.startswith("# Rate limits")
    assert "See also:\n  " in out
    assert 0 == docs.main(["--list", "rate", "limit"])
    assert capsys.readouterr().out.startswith("  how-to/control-the-flow ")


def test_a_path_that_names_no_page_is_said_to_be_taken_as_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The best page for these words follows."""
    assert 0 == docs.main(["how-to/rate-limit"])
    first, _, title, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("(No page is named 'how-to/rate-limit'. Of ")
    assert title.startswith("# ")


def test_without_words_all_pages_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of the index."""
    assert 0 == docs.main([])
    listed, hint = capsys.readouterr().out.split("\n\n")
    assert "millpond docs NAME" in hint
    names = [line.split()[0] for line in listed.splitlines()]
    assert names == list(docs.pages())
    assert {"tutorial/01-first-bulkhead", "reference/errors", "glossary"} <= {*names}


def test_an_error_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """In capitals or not; nothing but its section."""
    assert 0 == docs.main(["mill-001"])
    out = capsys.readouterr().out
    assert out.startswith("## MILL-001\n\n`PoolFull`")
    assert 1 == out.count("## ")


@pytest.mark.parametrize(
    "name", ["orders_app.py", "examples/orders_app.py", "cookbook/unique_jobs.py", "Dockerfile"]
)
def test_a_program_is_printed_as_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By its name, alone or with its folder, so that a reader can save it."""
    assert 0 == docs.main([name])
    (file,) = (ROOT / "docs/examples").rglob(name.rsplit("/", maxsplit=1)[-1])
    assert file.read_text("utf-8").strip() == capsys.readouterr().out.strip()


def test_a_program_that_is_not_there_is_refused() -> None:
    """With the name of one that is, and never with a file elsewhere."""
    with pytest.raises(Refusal, match=r"did you mean orders_app\.py"):
        docs.main(["order_app.py"])
    with pytest.raises(Refusal, match="no example is called"):
        docs.main(["../../../pyproject.toml"])


@pytest.mark.parametrize("word", ["MILL-999", "xyzzy"])
def test_what_is_not_there_is_refused(word: str) -> None:
    """With a message that says what to try."""
    with pytest.raises(Refusal, match=r"no error MILL-999|no page has all these words: xyzzy"):
        docs.main([word])
