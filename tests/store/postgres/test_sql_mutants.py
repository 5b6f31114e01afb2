"""Guards of the SQL are held by histories: one that is broken on purpose is noticed."""

from collections.abc import Iterator

import pytest
from tests.store.postgres.sql_histories import KINDS
from tests.store.postgres.sql_mutants import (
    BY_NAME,
    MUTANTS,
    Mutant,
    function_with,
    holds,
    noticed,
)
from tests.store.postgres.sql_scenes import SCENES
from verify.servers.schemas import Schema, Schemas

CHEAP = (
    "bound_ignores_the_batch",
    "overdrawn_by_one",
    "key_is_not_charged",
    "one_more_of_a_key",
    "one_above_the_limit",
    "simple_starts_beyond_the_limit",
    "simple_counts_ends_twice",
    "full_at_one_more",
    "paused_pool_starts",
    "no_fence_on_a_whole_lease",
    "no_fence_on_a_part",
    "no_fence_on_a_successor",
    "no_fence_on_a_row",
    "last_attempt_is_not_the_last",
    "row_is_taken_for_folded",
    "expired_starts",
    "due_in_order_of_submission",
    "a_renewal_keeps_nothing",
    "inbox_one_above_the_bound",
    "inbox_without_a_bound_per_key",
)
"""Those that are hunted here; `make mutants-sql` hunts all of them."""


@pytest.fixture
def schema(postgres_schemas: Schemas) -> Iterator[Schema]:
    """Give empty tables, with sound functions before and after."""
    taken = postgres_schemas.take()
    yield taken
    postgres_schemas.give_back(taken)


@pytest.mark.rows("TR-01")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_text_that_a_mutant_replaces_is_there_once(mutant: Mutant) -> None:
    """A guard that was rewritten needs its mutant rewritten, too, or nothing holds it any more."""
    assert mutant.new not in (mutant.old, function_with(mutant))
    assert set(mutant.notices) <= KINDS.keys() | SCENES.keys()


@pytest.mark.rows("TR-01")
@pytest.mark.real_loop
@pytest.mark.parametrize("name", CHEAP)
def test_a_broken_guard_of_the_sql_is_noticed(name: str, schema: Schema) -> None:
    """Fences, limits, rates and bounds of the server's functions: without one, stores differ."""
    mutant = BY_NAME[name]
    assert holds(schema, mutant.notices[0], 0)
    assert noticed(schema, mutant, range(2)) is not None
