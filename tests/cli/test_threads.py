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


def test_none_waits_long() -> None:
    """Python's own 5 ms are longer than a store takes to answer."""
    sys.setswitchinterval(0.005)
    switch_threads_quickly()
    assert sys.getswitchinterval() < 0.001


def test_what_an_application_has_set_stays() -> None:
    """It knows better."""
    sys.setswitchinterval(0.02)
    switch_threads_quickly()
    assert 0.02 == sys.getswitchinterval()
