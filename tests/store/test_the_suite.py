"""The conformance suite itself: it can fail, it hides nothing, and any project can run it."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from verify import mutants

from millpond.errors import IllegalTransition
from millpond.store.memory import MemoryStore
from millpond.store.protocol import Store
from millpond.testing.conformance import Lab, StoreConformance, StoreSuite, scenario

THIRD_PARTY = """
from millpond.store.memory import MemoryStore
from millpond.testing.conformance import StoreConformance

class TestTheirStore(StoreConformance):
    async def make_store(self):
        return MemoryStore(audit_limit=None)
"""


class OnMemory(StoreConformance):
    """The suite on the memory store, for these tests to call by hand."""

    async def make_store(self) -> Store:
        """Return a fresh memory store."""
        return MemoryStore(audit_limit=None)


def defined_in(part: type) -> list[str]:
    """The tests that a class itself defines."""
    return [name for name in vars(part) if name.startswith("test")]


def test_no_part_hides_a_test_of_another() -> None:
    """Each name is in one part only: of two, the suite would run just one."""
    names = Counter(name for part in StoreConformance.__mro__ for name in defined_in(part))
    assert [] == [name for name, count in names.items() if count > 1]


def test_every_test_says_what_it_shows() -> None:
    """Each test of the suite has a sentence for its docstring."""
    tests = [vars(part)[name] for part in StoreConformance.__mro__ for name in defined_in(part)]
    assert [] == [test.__name__ for test in tests if not (test.__doc__ or "").endswith(".")]


def test_a_backend_must_say_how_to_make_a_store() -> None:
    """Without `make_store` every test fails, and the message says what is missing."""

    class Forgetful(StoreConformance):
        pass

    suite: Any = Forgetful()
    with pytest.raises(NotImplementedError, match="Forgetful must say how to make a store"):
        suite.test_a_claim_is_a_start()


def test_tests_of_ones_own_are_coroutines_that_take_a_lab() -> None:
    """A part of the suite needs no decorator; with it a test is the same."""
    ran: list[str] = []

    class Own(StoreSuite):
        async def make_store(self) -> Store:
            return MemoryStore(audit_limit=None)

        async def test_plain(self, lab: Lab) -> None:
            ran.append(f"plain, worker {[*await lab.view.workers()]}")

        @scenario
        async def test_decorated(self, lab: Lab) -> None:
            ran.append(f"decorated, worker {[*await lab.view.workers()]}")

        async def test_without_a_lab(self) -> None:
            raise NotImplementedError

    own: Any = Own()
    assert own.test_plain() is None
    assert own.test_decorated() is None
    own.test_without_a_lab().close()
    assert ["plain, worker ['worker']", "decorated, worker ['worker']"] == ran


FOUND = [
    (mutants.no_fence, "test_the_second_settle_within_a_batch_is_stale"),
    (mutants.no_fence, "test_a_worker_that_lost_its_lease_cannot_settle"),
    (mutants.fence_by_state_only, "test_a_fence_from_before_a_redrive_is_stale"),
    (mutants.no_capacity_check, "test_exactly_as_many_run_as_may"),
    (mutants.no_capacity_check, "test_claims_at_once_never_exceed_the_limit"),
    (mutants.lost_wake_up_on_retry, "test_a_retry_is_woken_for_when_it_is_due"),
    (mutants.ring_reset_when_a_key_drains, "test_a_heavy_key_does_not_delay_the_light_ones"),
    (mutants.attempts_counted_at_settle, "test_a_task_that_kills_its_workers_ends_failed"),
    (mutants.run_ended_on_a_transient_empty, "test_follow_ups_keep_a_run_open"),
    (mutants.claims_ahead_not_counted_per_key, "test_claims_ahead_count_for_their_key"),
    (mutants.claims_ahead_lost_for_free, "test_a_lost_worker_is_charged_for_what_it_held"),
    (mutants.claims_ahead_take_no_token, "test_claims_ahead_count_for_the_rate"),
]


@pytest.mark.parametrize(
    ("mutant", "test"), FOUND, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_broken_store_fails_the_suite(mutant: Callable[[], Any], test: str) -> None:
    """A store with this mistake fails this test, and a whole one passes it."""
    getattr(OnMemory(), test)()
    with mutant(), pytest.raises((AssertionError, IllegalTransition)):
        getattr(OnMemory(), test)()


def test_the_suite_runs_without_our_plugins_and_settings(tmp_path: Path) -> None:
    """Another project needs pytest alone: no conftest, no marks, no warnings."""
    (tmp_path / "test_theirs.py").write_text(THIRD_PARTY, "utf-8")
    alone = ("-W", "error", "--strict-markers", "-p", "no:cacheprovider")
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", *alone, "-k", "claim or moment or drop", "."],
        cwd=tmp_path,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == answer.returncode, answer.stdout + answer.stderr
    assert " passed" in answer.stdout
    assert "skipped" not in answer.stdout


def test_the_test_kit_is_there_without_pytest() -> None:
    """Only the suite imports pytest; the rest of the kit does not."""
    program = (
        "import sys; import millpond.testing.clock, millpond.testing.simulation.history, "
        "millpond.testing.simulation.seeded; sys.exit('pytest' in sys.modules)"
    )
    assert 0 == subprocess.run([sys.executable, "-c", program], check=False).returncode


def test_the_how_to_shows_the_suite_as_it_is_run() -> None:
    """The example of the page makes its store as the memory store's own test does."""
    root = Path(__file__).parents[2]
    made = "return MemoryStore(audit_limit=None)"
    for file in ("docs/examples/test_a_store.py", "tests/store/test_memory_store.py"):
        assert made in (root / file).read_text("utf-8"), file
