"""URLs of SQLite stores: which file they name, and what is refused in which words."""

from pathlib import Path

import pytest

from millpond.errors import BadStoreURL, NotSupported
from millpond.store.sqlite.url import path_of


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///work.db", "work.db"),
        ("sqlite:///data/work.db", "data/work.db"),
        ("sqlite:///../work.db", "../work.db"),
        ("sqlite:////var/lib/work.db", "/var/lib/work.db"),
        ("SQLite:///work.db", "work.db"),
        ("sqlite:///two%20words%23%3F%25.db", "two words#?%.db"),
        ("sqlite:///m%C3%BChle.db", "mühle.db"),
        ("sqlite:///mühle.db", "mühle.db"),
    ],
)
def test_a_url_names_a_file(url: str, path: str) -> None:
    """Three slashes: relative. Four: absolute. What is not plain is percent-coded."""
    assert Path(path) == path_of(url)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "no kind of store"),
        ("work.db", "a file is written sqlite:///work.db$"),
        ("/srv/a-b.db", "a file is written sqlite:////srv/a-b.db$"),
        ("redis://localhost", "no kind of store"),
        ("sqlite+aiosqlite:///work.db", "no kind of store"),
        ("sqlite:work.db", "slashes"),
        ("sqlite:/work.db", "slashes"),
        ("sqlite://work.db", "host"),
        ("sqlite://localhost/work.db", "host"),
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:///%20", "names no file"),
        ("sqlite:///:memory:", r"Millpond\(\)"),
        ("sqlite:///file::memory:", r"Millpond\(\)"),
        ("sqlite:////", "folder"),
        ("sqlite:////var/lib/", "folder"),
        ("sqlite:///data/..", "folder"),
        ("sqlite:///.", "folder"),
        ("sqlite:///work.db?", "options"),
        ("sqlite:///work.db#1", "%23"),
        ("sqlite:///100%.db", "%25"),
        ("sqlite:///%ff.db", "UTF-8"),
        ("sqlite:///a%00b.db", "zero byte"),
        ("sqlite:///two words.db", "%20"),
        ("sqlite:///work.db\n", "control character"),
    ],
)
def test_a_url_that_names_no_file_is_refused(url: str, reason: str) -> None:
    """The error quotes the URL, says what is wrong with it, and shows a good one."""
    with pytest.raises(BadStoreURL, match=reason) as caught:
        path_of(url)
    assert url == caught.value.url
    assert ascii(url) in str(caught.value)
    assert "sqlite:///" in str(caught.value)


def test_a_url_that_is_no_text_is_refused() -> None:
    """A path object is a common slip."""
    with pytest.raises(BadStoreURL, match="not a text"):
        path_of(Path("work.db"))  # type: ignore[arg-type]


@pytest.mark.rows("TR-17")
def test_a_refused_url_does_not_repeat_its_password() -> None:
    """Errors end in logs."""
    with pytest.raises(BadStoreURL) as caught:
        path_of("mysql://miller:hunter2@localhost/work")
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(vars(caught.value))


@pytest.mark.parametrize("url", ["postgresql://localhost/work", "postgres://localhost/work"])
def test_postgresql_is_to_come(url: str) -> None:
    """It is a known kind of store that this release does not have."""
    with pytest.raises(NotSupported, match="PostgreSQL"):
        path_of(url)


def test_the_values_of_options_are_not_repeated() -> None:
    """One of them may be a password."""
    with pytest.raises(BadStoreURL, match="options") as caught:
        path_of("sqlite:///work.db?key=secret")
    assert "sqlite:///work.db?key=***" == caught.value.url
    assert "secret" not in str(caught.value)
