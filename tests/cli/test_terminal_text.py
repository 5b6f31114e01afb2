"""What others chose reaches a terminal as text and as nothing else."""

import pytest

from millpond.core.escape import plain


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
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    """Control characters of both sets, line ends, marks of direction, halves of characters."""
    assert shown == plain(text)


def test_a_text_of_several_lines_keeps_them() -> None:
    """And nothing else of the kind."""
    assert "a\n\tb\\x1b" == plain("a\n\tb\x1b", lines=True)
