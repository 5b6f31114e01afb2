"""What others chose reaches a terminal as text and as nothing else; addresses without secrets."""

import pytest

from millpond.cli.plain import plain, without_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mail", "mail"),
        ("größe 東京 €", "größe 東京 €"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("two\nlines\r", "two\\nlines\\r"),
        ("\x9b2J", "\\x9b2J"),
        ("right\u202eleft", "right\\u202eleft"),
        ("\udcff", "\\udcff"),
        ("\0", "\\x00"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    """Control characters of both sets, line ends, marks of direction, halves of characters."""
    assert shown == plain(text)


def test_a_text_of_several_lines_keeps_them() -> None:
    """And nothing else of the kind."""
    assert "a\n\tb\\x1b" == plain("a\n\tb\x1b", lines=True)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///work.db", "sqlite:///work.db"),
        ("sqlite:////var/lib/work.db", "sqlite:////var/lib/work.db"),
        ("sqlite:///work.db?key=secret", "sqlite:///work.db"),
        ("postgresql://me:secret@host:5432/db", "postgresql://me@host:5432/db"),
        ("postgresql://me:se@cr/e?t#@host/db", "postgresql://me@host/db"),
        ("postgresql://host/db?password=secret", "postgresql://host/db"),
        ("work\x1b.db", "work\\x1b.db"),
    ],
)
def test_an_address_is_shown_without_its_secrets(url: str, shown: str) -> None:
    """Neither password nor query; user, host and path stay."""
    assert shown == without_secrets(url)
    assert "secret" not in without_secrets(url)
