"""Errors: one root, codes that never collide, fields that travel."""

import pickle
import re
from pathlib import Path

import pytest

from millpond import errors
from millpond.errors import ConfigError, MillpondError

ROOT = Path(__file__).parents[2]


def tree(root: type[MillpondError]) -> list[type[MillpondError]]:
    """An error type and everything below it."""
    return [root, *(one for child in root.__subclasses__() for one in tree(child))]


ERRORS = [one for one in tree(MillpondError) if one.__module__ == "millpond.errors"]


def made(kind: type[MillpondError]) -> MillpondError:
    """An error of a kind with every field it declares."""
    if issubclass(kind, ConfigError):
        return kind("limit", -1, "must be at least 0")
    fields = {
        name: f"a {name}" for name in kind.__annotations__ if name not in ("code", "docs_site")
    }
    return kind("something happened", **fields)


def test_codes_are_unique_and_well_formed() -> None:
    """A code means one error for ever."""
    codes = [one.code for one in ERRORS]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"MILL-\d{3}", code) for code in codes)


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_survives_the_trip_between_processes(kind: type[MillpondError]) -> None:
    """Pickled and back, an error has its type, text and fields, and the notes added to it."""
    sent = made(kind)
    sent.add_note("while submitting")
    received = pickle.loads(pickle.dumps(sent))  # noqa: S301 - our own bytes
    assert (kind, str(sent), vars(sent)) == (type(received), str(received), vars(received))


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_names_its_code_and_its_page(kind: type[MillpondError]) -> None:
    """The text starts with the code, and the anchor it points at exists."""
    error = made(kind)
    assert str(error).startswith(f"{kind.code} ")
    assert error.docs == f"millpond docs {kind.code}"
    assert f"## {kind.code}\n" in (ROOT / "docs/reference/errors.md").read_text("utf-8")


def test_an_error_links_to_the_site_that_you_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """One setting for all errors."""
    monkeypatch.setattr(MillpondError, "docs_site", "https://docs.example/millpond/")
    address = "https://docs.example/millpond/reference/errors.html#mill-001"
    assert address == made(errors.PoolFull).docs


def test_the_tree_drawn_on_the_page_names_every_error() -> None:
    """The drawing in the reference is complete."""
    page = (ROOT / "docs/reference/errors.md").read_text("utf-8")
    drawn = re.findall(r"[A-Z]\w+", page.partition("```text")[2].partition("```")[0])
    assert sorted(one.__name__ for one in ERRORS) == sorted(drawn)


def test_a_message_is_short_and_plain_whatever_was_given() -> None:
    """A huge or unprintable value cannot flood or garble a log."""
    text = str(ConfigError("name", "\x1b[31m\n" + "x" * 10_000, "is not a name"))
    assert len(text) < 150
    assert text.isprintable()
    assert text.isascii()
