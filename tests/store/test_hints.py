"""What a commit sends other processes is made of the answers of every kind of verb."""

import pytest

from millpond.core.control import CommandPage
from millpond.core.plan import Wake
from millpond.store.protocol import ControlAnswer, Hint, RecoverAnswer
from millpond.store.sql.store import hint_of


@pytest.mark.parametrize("page", [None, (3, 9)])
def test_a_command_makes_a_hint_whether_or_not_it_has_another_page(
    page: CommandPage | None,
) -> None:
    """Its page is for the process that ordered it: others hear of what it cancelled and woke."""
    wake = Wake("mail", 3.0)
    answer = ControlAnswer(count=1, cancelled=(7,), wakes=(wake,), more=page)
    assert hint_of([answer]) == Hint(cancelled=(7,), wakes=(wake,))


def test_only_a_hint_that_was_cut_off_has_others_check_everything() -> None:
    assert not hint_of([RecoverAnswer(moved=500, more=True)]).more
    assert hint_of([Hint(more=True)]).more
