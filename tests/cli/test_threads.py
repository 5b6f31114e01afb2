"""Threads of a worker process take turns quickly."""

import sys
from collections.abc import Iterator

import pytest

from millpond.cli.thread_switching import switch_threads_quickly


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_threads_switch_quickly() -> None:
    """Python's own 5 ms are longer than a store takes to answer."""
    sys.setswitchinterval(0.005)
    switch_threads_quickly()
    assert sys.getswitchinterval() < 0.001


def test_a_switch_interval_set_by_the_application_is_kept() -> None:
    """It knows better."""
    sys.setswitchinterval(0.02)
    switch_threads_quickly()
    assert 0.02 == sys.getswitchinterval()
