"""Items: how they are cut, stored and known again."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.cli.run.items import ItemNames, Splitter, packed, unpacked


@given(st.lists(st.binary(max_size=20)), st.sampled_from([b"\n", b"\0", b","]))
def test_items_do_not_depend_on_chunk_boundaries(chunks: list[bytes], end: bytes) -> None:
    """Bit by bit or all at once, they are the same."""
    bit_by_bit = Splitter(end)
    found = [item for chunk in chunks for item in bit_by_bit.feed(chunk)] + bit_by_bit.last()
    at_once = Splitter(end)
    assert at_once.feed(b"".join(chunks)) + at_once.last() == found


@pytest.mark.parametrize(
    ("end", "text", "expected"),
    [
        (b"\n", b"a b\n\n c\nd", ["a b", " c", "d"]),
        (b"\n", b"", []),
        (b"\0", b"a\nb\0\0c\0", ["a\nb", "", "c"]),
        (b",", b"a,b", ["a", "b"]),
    ],
)
def test_an_empty_line_is_no_item(end: bytes, text: bytes, expected: list[str]) -> None:
    """But an empty text between two NULs is."""
    splitter = Splitter(end)
    assert expected == splitter.feed(text) + splitter.last()


@given(st.binary(max_size=50))
def test_an_item_is_stored_whatever_bytes_it_has(item: bytes) -> None:
    """As text that is valid, and comes back the same."""
    stored = packed(os.fsdecode(item))
    stored.encode()
    assert item == os.fsencode(unpacked(stored))


@given(st.lists(st.sampled_from("abc")), st.randoms())
def test_the_same_items_have_the_same_names_in_any_order(items: list[str], chance: object) -> None:
    """Two of the same text are two items."""
    first = ItemNames()
    names = [first.name(item) for item in items]
    assert len(set(names)) == len(items)
    again = ItemNames()
    assert sorted(names) == sorted(again.name(item) for item in sorted(items))
