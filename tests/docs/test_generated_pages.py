"""Pages made by a program say what the program says now."""

from tools import docs


def test_generated_pages_are_up_to_date() -> None:
    """What `make docs` would write is what stands in docs/."""
    assert [] == docs.stale()
