"""Merging hints: what a process sends to the others after a commit."""

import pytest

from millpond.store.hints import PendingHint
from millpond.store.protocol import ControlAnswer, Hint, RecoverAnswer

PAGE = (1, 2)


@pytest.mark.parametrize(
    "answer", [ControlAnswer(), ControlAnswer(more=PAGE), RecoverAnswer(moved=1, more=True)]
)
def test_an_answer_whose_caller_must_call_again_is_no_hint_to_check_everything(
    answer: object,
) -> None:
    """The `more` of an answer is for its caller; only that of a hint is for other processes."""
    pending = PendingHint()
    pending.add(answer)
    assert not pending
    pending.add(Hint(more=True))
    assert pending.hint().more
