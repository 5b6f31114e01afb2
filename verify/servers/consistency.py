"""The check that every test store makes when it closes: its rows are consistent."""

from collections.abc import Sequence


class InconsistentRows(AssertionError):
    """The rows of a test store contradict each other; the message lists every contradiction."""

    def __init__(self, where: str, found: Sequence[str]) -> None:
        self.found = tuple(found)
        listed = "\n".join(f"  - {one}" for one in found)
        super().__init__(f"{len(found)} inconsistencies in {where}:\n{listed}")


def must_be_consistent(where: str, found: Sequence[str]) -> None:
    """Raise InconsistentRows if the recount of a store found anything."""
    if found:
        raise InconsistentRows(where, found)
