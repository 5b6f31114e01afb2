"""The collector of a worker process."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from millpond.cli.gc_tuning import tune_garbage_collection

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Begin with nothing frozen, and leave the collector of the tests as it was."""
    before = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.freeze()  # as when all tests were collected
    gc.set_threshold(*before)


def test_imported_objects_are_frozen_for_the_collector() -> None:
    """It is out of reach of the collector, which comes less often."""
    gc.set_threshold(700, 10, 10)
    assert gc.get_freeze_count() == 0
    tune_garbage_collection()
    assert gc.get_freeze_count() > 1_000
    assert gc.get_threshold()[0] > 700


def test_thresholds_set_by_the_application_are_kept() -> None:
    """An application that sets its own has a reason."""
    gc.set_threshold(1_234, 5, 6)
    tune_garbage_collection()
    assert gc.get_threshold() == (1_234, 5, 6)
