"""`make mutants-sql`: break the SQL on purpose, one guard at a time; each break must be noticed.

A mutant is a piece of the text of the server's functions and its replacement. The mutated function
replaces the sound one, and histories run on the server and on the memory store until the two
differ. A mutant that no history notices breaks a guard that no test checks.
"""

import argparse
import asyncio
import re
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, NamedTuple

import msgspec
from psycopg import Error as DatabaseError
from tests.store.postgres import outcome_scenes as outcomes
from tests.store.postgres import test_step_simple_guards as guards
from tests.store.postgres.test_fast_path import POOLS, Two, days_work
from tests.store.postgres.test_step_simple import test_a_callback_is_not_lost as with_callback
from tests.store.postgres.test_step_simple import (
    test_a_task_that_was_tried_before_keeps_its_row as tried_before,
)
from tests.store.postgres.test_step_simple import (
    test_a_worker_gets_only_what_it_knows as only_what_it_knows,
)
from tests.store.postgres.test_step_simple import (
    test_tasks_that_are_not_plain_start_when_they_may as tasks_that_are_not_plain,
)
from verify.servers.postgres import serve
from verify.servers.schemas import InlinePostgresStore, Schema, Schemas

from millpond.core import control as orders
from millpond.core.bucket import Bucket, charge, fresh
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.rate import Rate
from millpond.core.run import NewRun, OnError
from millpond.core.settle import Settlement
from millpond.core.spec import PoolSpec, bounded, fail_fast, fair_round_robin, fifo
from millpond.core.task import CALLBACKS, Call, Dedupe, NewTask
from millpond.core.ticks import ticks
from millpond.errors import MillpondError
from millpond.store.memory import MemoryStore
from millpond.store.postgres.caller_transaction.submit import enter_arguments
from millpond.store.postgres.fast_path import answer_of
from millpond.store.postgres.quoting import qualified, quoted
from millpond.store.postgres.server_functions import sources, versioned
from millpond.store.postgres.store import PostgresStore
from millpond.store.protocol import Batch

KINDS = {
    **POOLS,
    "bounded": PoolSpec(
        name="p", order=fifo(), max_concurrent=7, backpressure=bounded(30, "fail_submitter")
    ),
    "slow": PoolSpec(name="p", order=fifo(), max_concurrent=7, rates=(Rate(2, per=10.0),)),
    "slow keys": PoolSpec(
        name="p", order=fair_round_robin(), max_concurrent=7, rate_per_key=Rate(3, per=10.0)
    ),
}
SEEDS = 6
ACTS = 60


class Mutant(NamedTuple):
    """One break: its name, the text of the SQL, its replacement, and what should notice it."""

    name: str
    old: str
    new: str
    notices: tuple[str, ...]


MUTANTS = (
    # Submits.
    Mutant(
        "bound_ignores_the_batch",
        "'backpressure', p.fresh + n.count) THEN",
        "'backpressure', p.fresh) THEN",
        ("bounded",),
    ),
    # The tasks of a group begin at its first.
    Mutant(
        "group_begins_behind_its_first",
        "(x.rank, x.place) >= (g.rank, (p.id << 40) | g.seq)",
        "(x.rank, x.place) > (g.rank, (p.id << 40) | g.seq)",
        ("fair",),
    ),
    Mutant(
        "closed_pool_takes",
        "WHEN p.closed = 1 THEN 'closed'",
        "WHEN false THEN 'closed'",
        ("closed",),
    ),
    Mutant(
        "priority_upside_down",
        "WHEN 'priority' THEN -priority",
        "WHEN 'priority' THEN priority",
        ("priority",),
    ),
    Mutant(
        "lifo_is_fifo",
        "WHEN 'lifo' THEN -seq",
        "WHEN 'lifo' THEN seq",
        ("lifo",),
    ),
    Mutant(
        "ready_counts_a_batch_once",
        "ready = o.ready + n.count - n.later",
        "ready = o.ready + 1",
        ("fifo",),
    ),
    Mutant(
        "live_counts_a_batch_once",
        "live = o.live + n.count, fresh",
        "live = o.live + 1, fresh",
        ("fifo",),
    ),
    Mutant(
        "sequence_has_gaps",
        "SET next_seq = o.next_seq + n.count,",
        "SET next_seq = o.next_seq + n.count + 1,",
        ("fifo",),
    ),
    Mutant(
        "inbox_is_overtaken",
        "WHEN EXISTS (SELECT 1 FROM millpond_inbox WHERE xid >= m.seen_upto)\n          OR EXISTS",
        "WHEN EXISTS",
        ("inbox first",),
    ),
    # Submits of one task.
    Mutant(
        "closed_pool_takes_one",
        "OR s.closed = 1 OR s.grouped = 1",
        "OR s.grouped = 1",
        ("one by one",),
    ),
    Mutant(
        "pool_that_has_groups_takes_one",
        "OR s.closed = 1 OR s.grouped = 1",
        "OR s.closed = 1",
        ("one by one",),
    ),
    # Idempotency keys.
    Mutant(
        "key_is_not_known",
        "WHERE o.pool = the_pool AND o.key = u.key AND o.run = 0 OFFSET 0) AS k",
        "WHERE o.pool = the_pool AND o.key = u.key AND o.run = 1 OFFSET 0) AS k",
        ("keys",),
    ),
    Mutant(
        "success_answers_after_a_failure",
        "WHEN 'success' THEN o.status IN ('queued', 'running', 'completed')",
        "WHEN 'success' THEN true",
        ("keys",),
    ),
    Mutant(
        "inflight_answers_for_ever",
        "WHEN 'inflight' THEN o.status IN ('queued', 'running')\n",
        "WHEN 'inflight' THEN true\n",
        ("keys",),
    ),
    Mutant(
        "key_with_other_arguments",
        "OR (k.fingerprint <> u.fingerprint\n",
        "OR (false\n",
        ("keys",),
    ),
    Mutant(
        "key_of_another_function",
        "bool_or(k.function <> coalesce(u.function, functions[1])",
        "bool_or(false",
        ("keys",),
    ),
    Mutant(
        "key_stays_queued",
        "UPDATE millpond_key AS k SET status = x.status",
        "UPDATE millpond_key AS k SET status = 'queued'",
        ("keys",),
    ),
    # Runs.
    Mutant(
        "run_takes_too_many",
        "(state ->> 'total')::bigint + joined.n > (state -> 'new' ->> 'max_tasks')::bigint THEN",
        "false THEN",
        ("runs",),
    ),
    Mutant(
        "run_that_is_over_takes_more",
        "WHERE r.id = joined.run AND r.finished_at IS NULL;",
        "WHERE r.id = joined.run;",
        ("runs",),
    ),
    Mutant(
        "stopped_run_takes_more",
        "IF state IS NULL OR state ->> 'stopped' IS NOT NULL\n",
        "IF state IS NULL\n",
        ("runs",),
    ),
    Mutant(
        "run_does_not_end",
        "(state ->> 'live')::bigint = 0\n",
        "(state ->> 'live')::bigint = 1\n",
        ("runs",),
    ),
    Mutant(
        "run_ends_in_spite_of_its_holder",
        "AND state -> 'holders' = '[]';",
        ";",
        ("runs",),
    ),
    Mutant(
        "run_counts_its_tasks_once",
        "jsonb_build_object('live', (state ->> 'live')::bigint + joined.n,",
        "jsonb_build_object('live', (state ->> 'live')::bigint + 1,",
        ("runs",),
    ),
    Mutant(
        "run_with_a_callback_ends_by_itself",
        "IF state -> 'new' ->> 'pool' <> pool_name\n"
        "               OR state -> 'new' ->> 'on_complete' IS NOT NULL THEN",
        "IF state -> 'new' ->> 'pool' <> pool_name THEN",
        ("runs",),
    ),
    Mutant(
        "run_with_a_callback_forgets_its_tasks",
        "           OR state -> 'new' ->> 'on_complete' IS NOT NULL\n",
        "",
        ("runs",),
    ),
    # Times of new tasks.
    Mutant(
        "delay_is_ignored",
        "WHEN u.run_at IS NULL AND coalesce(u.delay, 0) = 0 THEN moment",
        "WHEN u.run_at IS NULL THEN moment",
        ("times",),
    ),
    Mutant(
        "expiry_is_ignored",
        "n.keys[1], last_seq + 1, moment, n.expires[1],",
        "n.keys[1], last_seq + 1, moment, NULL,",
        ("times",),
    ),
    # Groups of new tasks.
    Mutant(
        "key_at_its_limit_takes_turns",
        "x.unit <> '' AND x.running >= r.unit_limit",
        "x.unit <> '' AND x.running > r.unit_limit",
        ("one at a time",),
    ),
    Mutant(
        "group_does_not_grow",
        "coalesce(g.tasks, 0) + k.tasks AS tasks_then",
        "coalesce(g.tasks, k.tasks) AS tasks_then",
        ("joins",),
    ),
    Mutant(
        "shares_join_by_name",
        "p.joins + row_number() OVER (ORDER BY b.o), 0\n      FROM (SELECT x.share, min(x.o)",
        "p.joins + row_number() OVER (ORDER BY b.share), 0\n      FROM (SELECT x.share, min(x.o)",
        ("joins",),
    ),
    Mutant(
        "paused_key_takes_turns",
        "x.paused = 1 OR x.blocked = 1 OR",
        "x.blocked = 1 OR",
        ("one at a time",),
    ),
    Mutant(
        "resting_is_not_counted",
        "p.resting := p.resting - woken.n;",
        "p.resting := p.resting;",
        ("rests",),
    ),
    # Rates.
    Mutant(
        "interval_rounded_down",
        "SELECT ceil((rate ->> 'per')",
        "SELECT floor((rate ->> 'per')",
        ("paced",),
    ),
    Mutant(
        "a_start_costs_one_step",
        "greatest(tat, at) + cost * step",
        "greatest(tat, at) + step",
        ("paced",),
    ),
    Mutant(
        "weight_is_not_charged",
        "            cost := weight;",
        "            cost := starts;",
        ("paced",),
    ),
    Mutant(
        "overdrawn_by_one",
        "+ (cost - millpond_depth(rate)) * step > at THEN",
        "+ (cost - 1 - millpond_depth(rate)) * step > at THEN",
        ("rate one by one",),
    ),
    Mutant(
        "few_low_points",
        "IF cardinality(moments) > 16 THEN",
        "IF cardinality(moments) > 2 THEN",
        ("low points",),
    ),
    Mutant(
        "rate_lets_everything_start",
        "    IF NOT charged.fits THEN\n        r.refused := 'rate';",
        "    IF false THEN\n        r.refused := 'rate';",
        ("paced",),
    ),
    Mutant(
        "key_is_not_charged",
        "THEN greatest(o.tat, r.ticks) + u.entered * r.key_interval",
        "THEN o.tat",
        ("key one by one",),
    ),
    # Budgets.
    Mutant(
        "budget_without_slots",
        "IF NOT charged.fits OR starts > r.budget_left[i] THEN",
        "IF NOT charged.fits THEN",
        ("shared", "all at once"),
    ),
    Mutant(
        "budget_forgets_this_pool",
        "- coalesce(sum(o.running), 0)::bigint - running_now",
        "- coalesce(sum(o.running), 0)::bigint",
        ("shared", "all at once"),
    ),
    Mutant(
        "budget_forgets_other_pools",
        "- coalesce(sum(o.running), 0)::bigint - running_now",
        "- running_now",
        ("shared", "all at once"),
    ),
    # Keys and turns.
    Mutant(
        "key_keeps_its_count",
        "SET running = o.running - u.ends",
        "SET running = o.running",
        ("fair",),
    ),
    Mutant(
        "freed_one_too_late",
        "o.running >= r.unit_limit AND o.running - u.ends < r.unit_limit OR",
        "false OR",
        ("fair and limited", "fair by twos"),
    ),
    Mutant(
        "freed_key_forgets_whose_closure_waits",
        "coalesce(bool_or(f.owner <> ''), false) AS odd",
        "false AS odd",
        ("closure of a freed key",),
    ),
    Mutant(
        "one_more_of_a_key",
        "r.unit_limit - x.running, r.key_depth",
        "r.unit_limit - x.running + 1, r.key_depth",
        ("two of a key",),
    ),
    Mutant(
        "a_turn_is_shorter",
        "max(x.service + x.stride) AS turn",
        "max(x.service + 1) AS turn",
        ("fair",),
    ),
    Mutant(
        "the_last_joins_first",
        "ORDER BY o.turn, o.joined LIMIT slots) AS s",
        "ORDER BY o.turn, o.joined DESC LIMIT slots) AS s",
        ("fair",),
    ),
    Mutant(
        "a_group_keeps_its_count",
        "SET tasks = g.tasks - u.tasks",
        "SET tasks = g.tasks - u.tasks + 1",
        ("fair",),
    ),
    # Capacity and claims.
    Mutant(
        "one_above_the_limit",
        "slots := greatest(least(want, r.a_limit - running_now), 0);",
        "slots := greatest(least(want, r.a_limit + 1 - running_now), 0);",
        ("fifo",),
    ),
    Mutant(
        "ends_free_no_slot",
        "a.running_now := p.running - ending + coalesce(e.begun, 0);",
        "a.running_now := p.running;",
        ("fifo",),
    ),
    Mutant(
        "prefetch_without_bound",
        "greatest(least(ahead, r.prefetch - w.own_claims",
        "greatest(least(ahead, 1000 - w.own_claims",
        ("ahead of all",),
    ),
    Mutant(
        "claims_of_another",
        "WHERE l.n >= from_lease AND l.worker = asker AND l.pool = the_pool",
        "WHERE l.n >= from_lease AND l.pool = the_pool",
        ("ahead", "in order"),
    ),
    Mutant(
        "holding_is_not_lowered",
        "coalesce((held ->> a_worker)::bigint, 0) - ending + begun",
        "coalesce((held ->> a_worker)::bigint, 0) + begun",
        ("fifo",),
    ),
    Mutant(
        "starved_is_not_seen",
        "WHEN want > 0 AND w.slots + w.beginning = 0 AND left_held <= 0",
        "WHEN false",
        ("fifo", "fair"),
    ),
    # Whether a settle wakes the workers of other processes.
    Mutant(
        "a_full_pool_wakes_no_worker",
        "OR p.running >= r.a_limit;",
        ";",
        ("was full",),
    ),
    Mutant(
        "full_at_one_more",
        "OR p.running >= r.a_limit;",
        "OR p.running > r.a_limit;",
        ("was full",),
    ),
    Mutant(
        "a_free_key_wakes_no_worker",
        "a.was_full := r.grouped OR r.flow",
        "a.was_full := r.flow",
        ("was full",),
    ),
    Mutant(
        "a_paced_pool_wakes_no_worker",
        "a.was_full := r.grouped OR r.flow OR",
        "a.was_full := r.grouped OR",
        ("was full",),
    ),
    Mutant(
        "a_free_claim_wakes_no_worker",
        "r.flow OR r.prefetch > 0 OR p.running",
        "r.flow OR p.running",
        ("was full",),
    ),
    # Refusals.
    Mutant(
        "paused_pool_starts",
        "WHEN p.paused = 1 OR p.not_before > r.moment",
        "WHEN p.not_before > r.moment",
        ("paused",),
    ),
    Mutant(
        "held_back_pool_starts",
        "WHEN p.paused = 1 OR p.not_before > r.moment",
        "WHEN p.paused = 1",
        ("held back",),
    ),
    Mutant(
        "not_simple_starts",
        "    IF NOT n.simple THEN",
        "    IF false THEN",
        ("expires",),
    ),
    Mutant(
        "not_simple_takes_its_turn",
        "    ELSIF odd OR NOT n.simple THEN",
        "    ELSIF odd THEN",
        ("expires in turn",),
    ),
    Mutant(
        "unknown_function_starts",
        "IF n > 0 AND (functions IS NOT NULL OR unknown <> '[]')",
        "IF false",
        ("unknown function",),
    ),
    Mutant(
        "due_is_not_seen",
        "AND o.due >= p.undue_since AND o.due <= r.moment",
        "AND o.due < p.undue_since",
        ("fifo", "priority"),
    ),
    Mutant(
        "looks_one_too_far",
        "lows := ARRAY[last_place + 1];",
        "lows := ARRAY[last_place + 2];",
        ("fifo",),
    ),
    # Calls in simple pools: what their function must refuse.
    Mutant(
        "simple_starts_beyond_the_limit",
        "slots := greatest(least(want, a_limit - s.running + ending), 0);",
        "slots := want;",
        ("fifo",),
    ),
    Mutant(
        "simple_counts_ends_twice",
        "slots := greatest(least(want, a_limit - s.running + ending), 0);",
        "slots := greatest(least(want, a_limit - s.running + 2 * ending), 0);",
        ("fifo",),
    ),
    Mutant(
        "simple_knows_old_settings",
        "hashtextextended(x.spec, 0) IS DISTINCT FROM digest OR x.paused",
        "x.paused",
        ("fifo",),
    ),
    Mutant(
        "simple_starts_while_others_are_due",
        "x.claimed + x.later + x.parked + x.unit_timers > 0",
        "x.claimed + x.parked + x.unit_timers > 0",
        ("simple and due",),
    ),
    Mutant(
        "simple_starts_what_is_not_plain",
        "IF n.refused IS NOT NULL OR n.own_rows IS NOT NULL",
        "IF n.own_rows IS NOT NULL",
        ("simple and called back",),
    ),
    Mutant(
        "simple_folds_what_was_tried",
        "IF n.refused IS NOT NULL OR n.own_rows IS NOT NULL",
        "IF n.refused IS NOT NULL",
        ("simple and tried",),
    ),
    Mutant(
        "simple_starts_unknown_functions",
        "OR millpond_cannot_run(n.n, n.plain, s.functions::jsonb, s.unknown::jsonb) IS NOT NULL",
        "OR false",
        ("simple and unknown",),
    ),
    Mutant(
        "simple_forgets_who_holds",
        "held := held + a.starting;",
        "held := held;",
        ("fifo",),
    ),
    Mutant(
        "simple_keeps_what_started",
        "ready = o.ready - a.starting, kept",
        "ready = o.ready, kept",
        ("fifo",),
    ),
    Mutant(
        "simple_counts_no_ends",
        "s.totals := millpond_count_ended(s.totals, ending, 0);",
        "NULL;",
        ("fifo",),
    ),
    Mutant(
        "simple_starts_while_held_back",
        "s.not_before > s.moment OR s.expires_at <= s.moment",
        "s.expires_at <= s.moment",
        ("simple and held back",),
    ),
    Mutant(
        "simple_counts_who_holds_nothing",
        "ELSE s.holding - asker END)::text,\n               bands",
        "ELSE s.holding || jsonb_build_object(asker, 0) END)::text,\n               bands",
        ("simple and counted",),
    ),
    Mutant(
        "simple_was_never_full",
        "a.was_full := s.running >= a_limit;",
        "a.was_full := false;",
        ("simple and heard",),
    ),
    Mutant(
        "simple_was_always_full",
        "a.was_full := s.running >= a_limit;",
        "a.was_full := true;",
        ("simple and heard",),
    ),
    Mutant(
        "one_ignores_a_stopped_key",
        "OR s.closed = 1 OR s.grouped = 1 THEN",
        "OR s.closed = 1 THEN",
        ("one and stopped",),
    ),
    Mutant(
        "simple_passes_parked_tasks",
        "x.claimed + x.later + x.parked + x.unit_timers > 0",
        "x.claimed + x.later + x.unit_timers > 0",
        ("simple and parked",),
    ),
    Mutant(
        "simple_starts_a_stopped_key",
        "digest OR x.paused + x.grouped + x.special > 0",
        "digest OR x.paused + x.special > 0",
        ("simple and stopped",),
    ),
    Mutant(
        "simple_passes_who_got_nothing",
        "OR x.starved <> '{}' OR x.hungry <> '{}' AS odd",
        "OR x.hungry <> '{}' AS odd",
        ("simple and starved",),
    ),
    Mutant(
        "simple_helps_who_wants_nothing",
        "OR want > 0 AND slots = 0 AND held <= 0 AND s.ready > 0 THEN\n        RETURN a",
        "OR slots = 0 AND held <= 0 AND s.ready > 0 THEN\n        RETURN a",
        ("simple and idle",),
    ),
    Mutant(
        "simple_passes_closures",
        "OR w.owner IS NOT NULL\n              AND EXISTS",
        "OR false\n              AND EXISTS",
        ("simple and owned",),
    ),
    Mutant(
        "simple_keeps_keys",
        "ending, s.moment);\n        PERFORM millpond_end_keys(e, ending);",
        "ending, s.moment);",
        ("simple and keyed",),
    ),
    Mutant(
        "simple_keeps_runs",
        "a.finished_runs := millpond_leave_runs(e, ending, s.name, s.moment);",
        "NULL;",
        ("simple and of a run",),
    ),
    Mutant(
        "simple_makes_no_room",
        "running = a.running_now, fresh = o.fresh - coalesce(n.fresh, 0),",
        "running = a.running_now,",
        ("simple and bounded",),
    ),
    Mutant(
        "simple_passes_the_inbox",
        "OR EXISTS (SELECT FROM millpond_inbox AS i WHERE i.xid >= m.seen_upto)",
        "OR false",
        ("simple and entered",),
    ),
    Mutant(
        "simple_passes_a_late_commit",
        "OR cardinality(m.seen_open) > 0\n              AND EXISTS",
        "OR false\n              AND EXISTS",
        ("simple and entered late",),
    ),
    Mutant(
        "simple_passes_a_restored_inbox",
        "OR m.seen_upto > pg_snapshot_xmax(pg_current_snapshot())\n           OR cardinality",
        "OR cardinality",
        ("simple and restored",),
    ),
    Mutant(
        "key_of_an_ended_task_is_new",
        "    IF NOT stored THEN",
        "    IF true THEN",
        ("simple and keyed",),
    ),
    # Fences.
    Mutant(
        "no_fence_on_a_whole_lease",
        "WHERE o.token = settled_tokens[1] AND o.ids = settled AND o.claims IS NULL",
        "WHERE o.ids = settled AND o.claims IS NULL",
        ("stale",),
    ),
    Mutant(
        "no_fence_on_a_part",
        "JOIN held AS h ON h.id = s.id AND h.token = s.token\n          LEFT JOIN",
        "JOIN held AS h ON h.id = s.id\n          LEFT JOIN",
        ("swapped",),
    ),
    Mutant(
        "no_fence_on_a_successor",
        "JOIN held AS h ON h.id = s.successor AND h.token = s.successor_token",
        "JOIN held AS h ON h.id = s.successor",
        ("swapped successor",),
    ),
    # Attempts that do not complete, and tasks that are tried again.
    Mutant(
        "no_fence_on_a_row",
        "AND o.running = 1 AND o.token = s.token\n",
        "AND o.running = 1\n",
        ("stale rows",),
    ),
    Mutant(
        "no_attempt_in_a_fence",
        "                   AND o.attempt = s.attempt OFFSET 0) AS l",
        "                   OFFSET 0) AS l",
        ("stale rows",),
    ),
    Mutant(
        "one_attempt_ends_twice",
        "OR (SELECT count(DISTINCT u.id) FROM unnest(settled) AS u (id)) < ending THEN",
        "THEN",
        ("stale rows",),
    ),
    Mutant(
        "retry_does_not_wait",
        "round((moment + s.delay) * 1000000) / 1000000",
        "moment",
        ("outcomes",),
    ),
    Mutant(
        "unspent_attempt_is_charged",
        "l.attempt - (NOT s.spend AND s.event <> 'fail')::integer AS new_attempt",
        "l.attempt AS new_attempt",
        ("outcomes",),
    ),
    Mutant(
        "release_is_measured",
        "CASE WHEN h.begun_by IS NULL AND h.event <> 'release'",
        "CASE WHEN h.begun_by IS NULL",
        ("outcomes",),
    ),
    Mutant(
        "successor_is_measured",
        "CASE WHEN h.begun_by IS NULL AND h.event <> 'release'",
        "CASE WHEN h.event <> 'release'",
        ("slots go on",),
    ),
    Mutant(
        "cancelled_is_tried_again",
        "WHEN l.cancel_requested > 0 AND s.event <> 'complete' THEN 'cancelled'",
        "WHEN false THEN 'cancelled'",
        ("cancelled",),
    ),
    Mutant(
        "last_attempt_is_not_the_last",
        "WHEN s.event = 'retry' AND s.spend AND l.attempt >= ",
        "WHEN s.event = 'retry' AND s.spend AND l.attempt > ",
        ("last attempts",),
    ),
    Mutant(
        "only_attempt_is_given_back",
        "OR s.event = 'release' AND s.may_have_begun AND",
        "OR s.event = 'release' AND false AND",
        ("last attempts",),
    ),
    Mutant(
        "cancelled_claim_starts",
        "       AND l.cancel_requested = 0 AND l.reason IS NULL;",
        ";",
        ("slots go on",),
    ),
    Mutant(
        "tried_before_is_prefetched",
        "CASE WHEN w.slots < ANY(n.own_rows) THEN 'not simple' END,",
        "NULL,",
        ("slots go on",),
    ),
    Mutant(
        "row_is_taken_for_folded",
        "OR NOT millpond_all_folded(settled, settled_tokens)) THEN",
        "OR false) THEN",
        ("server takes all",),
    ),
    Mutant(
        "expired_starts",
        "AND (l.expires_at IS NULL OR l.expires_at > moment)",
        "",
        ("expires",),
    ),
    Mutant(
        "expiring_is_folded",
        "l.attempt = 0 AND l.expires_at IS NULL AND l.error IS NULL",
        "l.attempt = 0 AND l.error IS NULL",
        ("expires",),
    ),
    Mutant(
        "tried_before_is_folded",
        "SELECT l.runs = 0 AND l.attempt = 0 AND l.expires_at IS NULL AND l.error IS NULL",
        "SELECT l.expires_at IS NULL",
        ("outcomes",),
    ),
    Mutant(
        "stopped_run_tries_again",
        "IF gone.back > 0 AND state ->> 'stopped' IS NOT NULL\n",
        "IF false\n",
        ("run stops",),
    ),
    Mutant(
        "failure_does_not_stop_its_run",
        "OR gone.failed > 0 AND state -> 'new' ->> 'on_error' = 'fail'",
        "OR false",
        ("run stops",),
    ),
    Mutant(
        "wakes_too_early",
        "WHEN p.paused = 0 THEN e.first_due END;",
        "ELSE r.moment END;",
        ("alone",),
    ),
    Mutant(
        "paused_pool_is_woken",
        "WHEN p.paused = 0 THEN e.first_due END;",
        "ELSE e.first_due END;",
        ("alone",),
    ),
    Mutant(
        "what_goes_back_stands_last",
        "OR (k.head[1], k.head[2]) < (g.rank, g.seq)",
        "OR false",
        ("in turn",),
    ),
    Mutant(
        "due_in_order_of_submission",
        "             ORDER BY o.due, o.place LIMIT at_once) AS x;",
        "             ORDER BY o.place LIMIT at_once) AS x;",
        ("due in order",),
    ),
    Mutant(
        "goes_back_out_of_sight",
        "SELECT y.rank, min(y.low) AS low\n              FROM (SELECT * FROM unnest",
        "SELECT y.rank, max(y.low) AS low\n              FROM (SELECT * FROM unnest",
        ("outcomes",),
    ),
    Mutant(
        "a_renewal_keeps_nothing",
        "round((moment + seconds) * 1000000) / 1000000",
        "moment",
        ("renewed",),
    ),
    # Lanes, limits of keys, and weights.
    Mutant(
        "two_tasks_of_a_lane_at_once",
        "r.unit_limit := CASE WHEN r.in_lanes THEN 1",
        "r.unit_limit := CASE WHEN r.in_lanes THEN 2",
        ("lanes",),
    ),
    Mutant(
        "a_lane_numbers_with_gaps",
        "SET sequence = o.sequence + excluded.sequence",
        "SET sequence = o.sequence + excluded.sequence + 1",
        ("lanes",),
    ),
    Mutant(
        "a_key_changes_its_lane",
        "(millpond_crc32(u.key) % r.lanes)",
        "((millpond_crc32(u.key) + 1) % r.lanes)",
        ("lanes",),
    ),
    Mutant(
        "lanes_take_no_turns",
        "p.next_lane := p.next_lane + n.count",
        "p.next_lane := n.count",
        ("lanes",),
    ),
    Mutant(
        "what_waits_in_a_lane_is_not_ahead",
        "x.waiting + x.number - 1 ORDER BY",
        "x.number - 1 ORDER BY",
        ("lanes",),
    ),
    Mutant(
        "a_retry_leaves_its_lane",
        "array_agg(place) FILTER (WHERE goes_back AND (due <= moment OR lane IS NOT NULL))",
        "array_agg(place) FILTER (WHERE goes_back AND due <= moment)",
        ("server takes all",),
    ),
    Mutant(
        "a_lane_starts_what_is_not_due",
        "(h.due <= r.moment AND k.opens",
        "(k.opens",
        ("lane waits", "lanes", "each key a lane"),
    ),
    Mutant(
        "a_lane_waits_for_ever",
        "CASE WHEN u.waits THEN greatest(u.opens, u.head_due)",
        "CASE WHEN u.waits THEN NULL",
        ("lanes", "each key a lane"),
    ),
    Mutant(
        "a_timer_never_ends",
        "u.timer_at <= r.moment AND t.pops IS NOT TRUE THEN",
        "u.timer_at <= r.moment THEN",
        ("server takes all",),
    ),
    Mutant(
        "a_lane_runs_dry_too_early",
        "AND (u.running > 0 OR u.groups > 0)",
        "AND u.running > 0",
        ("lanes",),
    ),
    Mutant(
        "a_lane_counts_nothing",
        "DO UPDATE SET processed = o.processed + excluded.processed",
        "DO UPDATE SET processed = o.processed",
        ("lanes",),
    ),
    Mutant(
        "weights_upside_down",
        "round(1048576 / (weights ->> share)::double precision)",
        "round(1048576 * (weights ->> share)::double precision)",
        ("weighted",),
    ),
    Mutant(
        "a_share_is_served_once",
        "THEN least(slots, 1 + (max(s.turn) OVER () - s.turn) / s.stride)",
        "THEN 1",
        ("weighted",),
    ),
    Mutant(
        "a_key_at_its_limit_stays_ready",
        "o.next_due <= r.moment AND coalesce(o.nth < o.room, true)",
        "o.next_due <= r.moment",
        ("server takes all",),
    ),
    Mutant(
        "a_share_rests_too_early",
        "= min(x.groups) AS rests",
        "> 0 AS rests",
        ("two of a key", "one of a key"),
    ),
    Mutant(
        "a_rate_holds_a_key_for_ever",
        "IF n.waiting IS NOT NULL THEN",
        "IF false THEN",
        ("many of a key",),
    ),
    Mutant(
        "a_key_in_two_shares_has_two_limits",
        "OR NOT r.limited OR x.groups = 1)",
        "OR true)",
        ("key in two shares",),
    ),
    Mutant(
        "a_rate_allows_all_at_once",
        "- (greatest(x.tat - r.ticks, 0) + r.key_interval - 1) / r.key_interval",
        "+ 9",
        ("many of a key",),
    ),
    # The inbox.
    Mutant(
        "inbox_depth_of_the_queue_only",
        "depth constant bigint := fresh + coming;",
        "depth constant bigint := fresh;",
        ("put",),
    ),
    Mutant(
        "inbox_one_above_the_bound",
        "IF depth + cardinality(places) > bound THEN",
        "IF depth + cardinality(places) > bound + 1 THEN",
        ("put",),
    ),
    Mutant(
        "inbox_without_a_bound_per_key",
        "IF counted + count_of.new > bound THEN",
        "IF false THEN",
        ("put",),
    ),
    Mutant(
        "inbox_takes_large_batches",
        "IF count_of.new > bound THEN",
        "IF false THEN",
        ("put",),
    ),
    Mutant("inbox_of_a_closed_pool", "IF here.closed = 1 THEN", "IF false THEN", ("put",)),
    Mutant(
        "inbox_fails_late",
        "busy + coming + cardinality(places) > bound",
        "busy + cardinality(places) > bound",
        ("put",),
    ),
    Mutant(
        "inbox_knows_no_key",
        "k.key = asked AND k.run = 0",
        "k.key = asked AND k.run = 1",
        ("put",),
    ),
    Mutant(
        "inbox_key_with_other_arguments",
        "OR (standing.fingerprint <> (one ->> 'fingerprint')::bigint",
        "OR (false",
        ("put",),
    ),
)

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}

_FUNCTION = re.compile(r"^CREATE FUNCTION .*?^(?:END )?\$(?:body)?\$;", re.DOTALL | re.MULTILINE)


def function_with(mutant: Mutant) -> str:
    """Return the sound function that a mutant breaks; it must have the text just once."""
    text = "\n".join(sources().values())
    found: list[str] = [one for one in _FUNCTION.findall(text) if mutant.old in one]
    if len(found) != 1 or found[0].count(mutant.old) != 1:
        message = f"{mutant.name}: its text stands {text.count(mutant.old)} times"
        raise LookupError(message)
    return found[0]


def install(schema: Schema, function: str) -> None:
    """Put a function in the place of the one of its name."""
    connection = schema.connection()
    made = versioned(function).replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1)
    place = quoted(schema.address.schema)
    connection.driver.execute(f"SET search_path = {place}; {made}; RESET search_path".encode())
    connection.close()
    # Statements prepared with the function before must not be used again.
    schema.hang_up()


def noticed(schema: Schema, mutant: Mutant, seeds: Iterable[int] = range(SEEDS)) -> str | None:
    """Install a mutant; return what noticed it, or None; restore the sound function."""
    sound = function_with(mutant)
    install(schema, sound.replace(mutant.old, mutant.new))
    try:
        for seed in seeds:
            for who in mutant.notices:
                if not holds(schema, who, seed):
                    return f"{who}, seed {seed}"
                if who in SCENES and seed:
                    break
    finally:
        install(schema, sound)
    return None


def holds(schema: Schema, who: str, seed: int) -> bool:
    """Run a history on both stores; return whether they agree, and leave empty tables."""
    try:
        asyncio.run(SCENES[who](schema) if who in SCENES else run_on_both(schema, who, seed))
        return not schema.wrong()
    except (AssertionError, MillpondError, DatabaseError, LookupError, ValueError):
        return False
    finally:
        schema.empty()


async def run_on_both(schema: Schema, kind: str, seed: int) -> None:
    """Run a seeded history on the memory store and the server, and compare all answers."""
    memory, server = MemoryStore(audit_limit=None), Undaunted(schema)
    two = Two(seed, KINDS[kind], (memory, server))
    try:
        await two.begin()
        for _ in range(ACTS):
            await two.act()
        await compare(two)
    finally:
        await server.close()


async def compare(two: Two) -> None:
    """See that both stores say the same of what happened and of how things stand."""
    memory, server = two.stores
    pages = [await store.view.audit(limit=100_000) for store in (memory, server)]
    assert pages[0].records == pages[1].records
    views = [await store.view.pool("p", now=two.now) for store in (memory, server)]
    assert views[0] == views[1]
    tasks = [(await store.view.tasks("p", limit=10_000)).tasks for store in (memory, server)]
    assert tasks[0] == tasks[1]
    for name in two.spec.budgets:
        assert await memory.view.budget(name) == await server.view.budget(name)


class Undaunted(InlinePostgresStore):
    """A store that asks the server again, however often it has refused."""

    def _heard(self, which: str, row: Any) -> Any:
        answer = PostgresStore._heard(self, which, row)
        self._skips.clear()
        return answer


# Scenes: what seeded histories do not do.


def tasks(first: int, count: int, **options: Any) -> tuple[Batch, ...]:
    """A batch of plain tasks."""
    new = [
        NewTask(id=first + n, pool="p", call=Call("work", b"x"), **options) for n in range(count)
    ]
    return (Batch(tasks=tuple(new)),)


async def scene(schema: Schema, act: Callable[[Two], Awaitable[None]], kind: str = "fifo") -> None:
    """Let something happen on both stores, with 6 tasks of 2 leases of a worker."""
    memory, server = MemoryStore(audit_limit=None), Undaunted(schema)
    two = Two(1, KINDS[kind], (memory, server))
    try:
        await two.begin()
        await act(two)
        await compare(two)
    finally:
        await server.close()


async def _closed(two: Two) -> None:
    await two.do("control", orders.Close("p"))
    await two.do("submit", tasks(1, 2))


async def _paused(two: Two) -> None:
    await two.do("submit", tasks(1, 4))
    await two.do("control", orders.Pause("p"))
    await two.do("lease", LeaseRequest(pool="p", worker="one", want=3))


async def _held_back(two: Two) -> None:
    await two.do("submit", tasks(1, 4))
    (leased,) = (await two.do("lease", LeaseRequest(pool="p", worker="one", want=1))).leased
    held = Settlement(
        fence=leased.fence, event=Transition.RETRY, delay=9.0, hold="pool", hold_for=9.0
    )
    await two.do("settle", ((held,), None))
    await two.do("lease", LeaseRequest(pool="p", worker="one", want=3))


async def _stale(two: Two) -> None:
    await two.do("submit", tasks(1, 4))
    leased = (await two.do("lease", LeaseRequest(pool="p", worker="one", want=3))).leased
    stale = [
        Settlement(
            fence=msgspec.structs.replace(one.fence, token=one.fence.token ^ 1),
            event=Transition.COMPLETE,
        )
        for one in leased
    ]
    await two.do("settle", (tuple(stale), None))


async def _swapped(two: Two) -> None:
    await two.do("submit", tasks(1, 6))
    one = (await two.do("lease", LeaseRequest(pool="p", worker="one", want=2))).leased
    other = (await two.do("lease", LeaseRequest(pool="p", worker="one", want=2))).leased
    swapped = [
        Settlement(
            fence=msgspec.structs.replace(mine.fence, token=theirs.fence.token),
            event=Transition.COMPLETE,
        )
        for mine, theirs in ((one[0], other[0]), (other[0], one[0]))
    ]
    await two.do("settle", (tuple(swapped), None))


async def _swapped_successor(two: Two) -> None:
    await two.do("submit", tasks(1, 9))
    answer = await two.do("lease", LeaseRequest(pool="p", worker="one", want=2, ahead=2))
    more = await two.do("lease", LeaseRequest(pool="p", worker="one", want=0, ahead=2))
    token = more.claimed[0].fence.token
    swapped = Settlement(
        fence=answer.leased[0].fence,
        event=Transition.COMPLETE,
        successor=msgspec.structs.replace(answer.claimed[0].fence, token=token),
    )
    await two.do("settle", ((swapped,), None))


async def _ahead_of_all(two: Two) -> None:
    await two.do("submit", tasks(1, 30))
    await two.do("lease", LeaseRequest(pool="p", worker="one", want=5, ahead=4))
    await two.do("lease", LeaseRequest(pool="p", worker="one", want=0, ahead=9))


async def _one_by_one(two: Two) -> None:
    """Four tasks of a key, of which the limits let fewer start; each is asked for by itself."""
    await two.do("submit", tasks(1, 4, key="k", share="k"))
    for _ in range(4):
        await two.do("lease", LeaseRequest(pool="p", worker="one", want=1))


async def _unknown_function(two: Two) -> None:
    other = NewTask(id=1, pool="p", call=Call("other", b"x"))
    await two.do("submit", (Batch(tasks=(other,)),))
    await two.do("lease", LeaseRequest(pool="p", worker="two", want=1))


def keyed(first: int, *keys: str, **options: Any) -> tuple[Batch, ...]:
    """A batch with a task for each of these idempotency keys."""
    function = options.pop("function", "work")
    new = [
        NewTask(id=first + n, pool="p", call=Call(function, b"x"), idempotency_key=key, **options)
        for n, key in enumerate(keys)
    ]
    return (Batch(tasks=tuple(new)),)


async def _keys(two: Two) -> None:
    """A key answers with its task: waiting, running, and as long as its mode says afterwards."""
    ask = LeaseRequest(pool="p", worker="one", want=1)
    await two.do("submit", keyed(1, "a"))
    for number, dedupe in enumerate(Dedupe, 2):
        if dedupe is not Dedupe.RUN:
            await two.do("submit", keyed(number * 10, "a", dedupe=dedupe))
    await two.do("submit", keyed(100, "a", fingerprint=7))
    await two.do("submit", keyed(101, "a", function="other"))
    await two.do("submit", keyed(110, "b", "b", "c"))
    for end in (Transition.COMPLETE, Transition.FAIL):
        leased = (await two.do("lease", ask)).leased
        await two.do("submit", keyed(200 + leased[0].fence.task, "a", "b", "c", "d"))
        error = None if end is Transition.COMPLETE else b"e"
        ends = tuple(Settlement(fence=one.fence, event=end, error=error) for one in leased)
        await two.do("settle", (ends, None))
        for number, dedupe in enumerate(Dedupe):
            if dedupe is not Dedupe.RUN:
                first = 1000 * (leased[0].fence.task + 1) + 100 * number
                await two.do("submit", keyed(first, "a", "b", dedupe=dedupe))
    leased = (await two.do("lease", msgspec.structs.replace(ask, want=7))).leased
    ends = tuple(Settlement(fence=one.fence, event=Transition.COMPLETE) for one in leased)
    await two.do("settle", (ends, None))
    await two.do("submit", keyed(9000, "a", "b", "c", "d", dedupe=Dedupe.INFLIGHT))
    await two.do("submit", keyed(9100, "a", "b", "c", "d"))


async def _runs(two: Two) -> None:
    """A run counts its tasks, ends with its last, and takes no more than it may."""
    ask = LeaseRequest(pool="p", worker="one", want=2)

    async def submitted(first: int, run: int, count: int, opened: NewRun | None = None) -> None:
        new = [
            NewTask(id=first + n, pool="p", call=Call("work", b"x"), run=run) for n in range(count)
        ]
        await two.do("submit", (Batch(tasks=tuple(new), run=opened),))

    async def worked() -> None:
        leased = (await two.do("lease", ask)).leased
        ends = tuple(Settlement(fence=one.fence, event=Transition.COMPLETE) for one in leased)
        await two.do("settle", (ends, None))

    await submitted(1, 901, 3, NewRun(id=901, pool="p", name="nightly", max_tasks=4))
    await submitted(11, 902, 1, NewRun(id=902, pool="p", name="nightly"))
    await submitted(21, 901, 2)
    await submitted(31, 901, 1)
    await worked()
    await worked()
    await submitted(41, 901, 1)
    await submitted(51, 903, 2, NewRun(id=903, pool="p", holder="another"))
    await worked()
    await submitted(61, 904, 4, NewRun(id=904, pool="p", on_error=OnError.FAIL))
    failing, other = (await two.do("lease", ask)).leased
    end = Settlement(fence=failing.fence, event=Transition.FAIL, error=b"e")
    await two.do("settle", ((end,), None))
    await submitted(71, 904, 1)
    await two.do("settle", ((Settlement(fence=other.fence, event=Transition.COMPLETE),), None))
    await submitted(81, 905, 1, NewRun(id=905, pool="p"))
    await worked()
    await submitted(91, 905, 1)
    for run in (901, 902, 903, 904, 905):
        memory, server = [await store.view.run(run) for store in two.stores]
        assert memory == server
    await _run_with_a_callback(two, submitted, worked)


async def _run_with_a_callback(
    two: Two, submitted: Callable[..., Awaitable[None]], worked: Callable[[], Awaitable[None]]
) -> None:
    """A run with a callback remembers its tasks, and its end submits the call with their ends."""
    called = NewRun(id=906, pool="p", holder="us", on_complete=Call("notify"))
    await submitted(101, 906, 1, called)
    await submitted(111, 906, 1)
    await two.do("control", orders.Seal(906, "us"))
    await worked()
    memory, server = [
        [task.new for task in (await store.view.tasks("p" + CALLBACKS)).tasks]
        for store in two.stores
    ]
    assert memory == server
    assert 1 == len(memory)


async def _times(two: Two) -> None:
    """Tasks wait until they are due, and expire."""
    ask = LeaseRequest(pool="p", worker="one", want=7)
    for first, options in enumerate(
        ({"delay": 2.0}, {"run_at": two.now + 1.0}, {"expires_in": 0.5})
    ):
        await two.do("submit", keyed(100 * first + 1, f"t{first}", **options))
        await two.do("submit", keyed(100 * first + 11, f"u{first}", f"v{first}", **options))
    for passed in (0.0, 1.0, 1.5):
        two.now += passed
        await two.do("recover", 100)
        await two.do("lease", ask)


def shared(first: int, *keys: str) -> tuple[Batch, ...]:
    """A batch with a task for each of these keys, which are their shares, too."""
    new = [
        NewTask(id=first + n, pool="p", call=Call("work", b"x"), key=key, share=key)
        for n, key in enumerate(keys)
    ]
    return (Batch(tasks=tuple(new)),)


async def _joins(two: Two) -> None:
    """Shares take turns in the order in which they came; keys at their limit do not."""
    ask = LeaseRequest(pool="p", worker="one", want=1)
    await two.do("submit", shared(1, "z", "b", "z", "a", "b"))
    held = []
    for number in range(30, 42):
        held += (await two.do("lease", ask)).leased
        await two.do("submit", shared(100 * number, "z", f"n{number}", "a"))
        if len(held) > 3:
            end = Settlement(fence=held.pop(0).fence, event=Transition.COMPLETE)
            held += (await two.do("settle", ((end,), ask))).lease.leased
    await two.do("submit", shared(9000, *(one.key for one in held)))
    await two.do("lease", msgspec.structs.replace(ask, want=7))


async def _one_at_a_time(two: Two) -> None:
    """A key at its limit waits, also where nothing else of it does; and a paused one does."""
    ask = LeaseRequest(pool="p", worker="one", want=1)
    limit = two.spec.max_per_key or 1
    for number in range(1, limit + 2):
        await two.do("submit", shared(number, "z"))
        await two.do("lease", ask)
    await two.do("control", orders.Pause("p", "q"))
    await two.do("submit", shared(50, "q"))
    await two.do("lease", ask)


async def _rests(two: Two) -> None:
    """A share that has nothing to start keeps its place until it is passed."""
    ask = LeaseRequest(pool="p", worker="one", want=1)
    await two.do("submit", shared(1, "a", "b", "c"))
    await two.do("lease", ask)
    await two.do("submit", shared(11, "a"))
    await two.do("submit", shared(21, "b", "c"))
    await two.do("lease", msgspec.structs.replace(ask, want=3))


async def _lows(schema: Schema) -> None:
    """A bucket remembers as many low points as the core's does, for what is refunded later."""
    rates, now = (Rate(100, per=10.0, burst=90, of="weight"),), 1000.0
    buckets = fresh(rates)
    connection = schema.connection()
    name = quoted(schema.address.schema)
    connection.driver.execute(f"SET search_path = {name}".encode())
    for number in range(40):
        now += 0.01 * (number % 7 + 1)
        given = [msgspec.json.encode(one).decode() for one in (rates, buckets)]
        said = versioned("SELECT buckets::text FROM millpond_charge(%s, %s, 1, 2, %s)")
        row = connection.driver.execute(said.encode(), [*given, ticks(now)]).fetchone()
        charge(rates, buckets, 2, now)
        assert row is not None
        assert buckets == msgspec.json.decode(row[0], type=list[Bucket])
    connection.driver.execute(b"RESET search_path")
    connection.close()


async def _inbox_first(schema: Schema) -> None:
    """Tasks of the inbox are queued before tasks submitted after them."""
    server = Undaunted(schema)
    try:
        await server.control(orders.Declare(KINDS["fifo"]))
        await server.control(orders.Register("one", 60.0))
        put(schema, tasks(1, 1))
        await server.submit(tasks(2, 1))
        (leased,) = (await server.lease(LeaseRequest(pool="p", worker="one", want=1))).leased
        assert 1 == leased.fence.task
    finally:
        await server.close()


def put(schema: Schema, batches: tuple[Batch, ...]) -> Any:
    """Put tasks into the inbox by the server's own function; return why not, or what they are."""
    connection = schema.connection()
    said = qualified("SELECT millpond_put(%s::jsonb)", schema.address.schema)
    arguments = enter_arguments(batches[0], "")
    (answer,) = connection.driver.execute(said.encode(), [arguments]).fetchone() or (None,)
    connection.close()
    if isinstance(answer, str | bytes):
        answer = msgspec.json.decode(answer)
    if "refused" in answer:
        return answer["refused"]
    return [(task, duplicate) for task, duplicate, _ in answer["tasks"]]


def one_batch(pool: str, first: int, *keys: str | None, **options: Any) -> tuple[Batch, ...]:
    """A batch of one pool with a task for each of these keys."""
    new = [
        NewTask(id=first + n, pool=pool, call=Call("work", b"x"), key=key, **options)
        for n, key in enumerate(keys)
    ]
    return (Batch(tasks=tuple(new)),)


INBOX_POOLS = (
    PoolSpec(name="q", order=fifo(), backpressure=bounded(4, "fail_submitter")),
    PoolSpec(name="k", order=fifo(), backpressure=bounded(9, "fail_submitter", 2)),
    PoolSpec(name="f", order=fifo(), max_concurrent=3, backpressure=fail_fast()),
    PoolSpec(name="c", order=fifo()),
)
INBOX_BATCHES = (
    *(one_batch("q", 10 + n, None) for n in range(3)),
    one_batch("q", 20, None, None, None, None, None),
    one_batch("q", 30, None, None),
    one_batch("q", 40, None),
    one_batch("q", 50, None),
    one_batch("k", 60, "a", "a", "a"),
    one_batch("k", 70, "a", "a"),
    one_batch("k", 80, "a"),
    one_batch("k", 90, "b"),
    *(one_batch("f", 100 + n, None) for n in range(4)),
    one_batch("c", 110, None),
)


async def _put(schema: Schema) -> None:
    """The inbox refuses what the verbs refuse, and knows the keys that they know."""
    memory, server = MemoryStore(audit_limit=None), Undaunted(schema)
    try:
        for store in (memory, server):
            for spec in INBOX_POOLS:
                await store.control(orders.Declare(spec), now=1000.0)
            await store.control(orders.Close("c"), now=1000.0)
            known = one_batch("q", 1, None, idempotency_key="i", fingerprint=5)
            await store.submit(known, now=1000.0)
        again = one_batch("q", 2, None, idempotency_key="i", fingerprint=5)
        other = one_batch("q", 3, None, idempotency_key="i", fingerprint=6)
        for batches in (again, other, *INBOX_BATCHES):
            assert put(schema, batches) == await submitted(memory, batches)
        await server.view.pool("q")  # a view moves the tasks of the inbox to the queue
    finally:
        await server.close()


async def submitted(store: MemoryStore, batches: tuple[Batch, ...]) -> Any:
    """Submit to the memory store; return why not, or what they are."""
    (answer,) = (await store.submit(batches, now=1000.0)).batches
    if answer.refusal is not None:
        return answer.refusal.reason.value
    return [(one.task, one.duplicate) for one in answer.admissions]


async def _renewed(schema: Schema) -> None:
    """A renewal by the server keeps a worker for as long as one by the verbs."""
    memory, server = MemoryStore(audit_limit=None), Undaunted(schema)
    two = Two(1, KINDS["fifo"], (memory, server))
    try:
        await two.begin()
        await two.do("control", orders.Register("three", 5.0))
        two.now += 1
        await memory.renew("three", 5.0, now=two.now)
        connection = schema.connection()
        said = qualified(
            "SELECT * FROM millpond_renew(%s, NULL, 'three', 5.0)", schema.address.schema
        )
        connection.driver.execute(said.encode(), [two.now])
        connection.close()
        two.now += 4.5
        await two.do("recover", 100)
        assert await memory.view.workers() == await server.view.workers()
    finally:
        await server.close()


async def _many_of_a_key(two: Two) -> None:
    await two.do("submit", tasks(1, 8, key="k", share="k"))
    await two.do("lease", LeaseRequest(pool="p", worker="one", want=6))


async def _key_in_two_shares(two: Two) -> None:
    await two.do("submit", tasks(1, 2, key="k", share="a"))
    await two.do("submit", tasks(11, 2, key="k", share="b"))
    await two.do("lease", LeaseRequest(pool="p", worker="one", want=4))


async def _server_takes_all(schema: Schema) -> None:
    """Of scenes in which the verbs have nothing to do, the server leaves them nothing."""
    for act, kind in (
        (outcomes.outcomes, "fifo"),
        (outcomes.outcomes, "fair by twos"),
        (outcomes.in_turn, "fair and limited"),
        (outcomes.back_in_order, "fair by twos"),
        (outcomes.due_in_order, "fair"),
        (outcomes.alone, "priority"),
        (outcomes.expiring, "fifo"),
        (days_work, "lanes"),
    ):
        memory, server = MemoryStore(audit_limit=None), Undaunted(schema)
        two = Two(1, KINDS[kind], (memory, server))
        try:
            await two.begin()
            await act(two)
            await compare(two)
            assert not server.detour_counts(), server.detour_counts()
        finally:
            await server.close()
        schema.empty()


async def _submitted_one_by_one(schema: Schema) -> None:
    """A submit of one task follows an operator who has closed its pool, or paused a key in it."""

    async def groups(two: Two) -> None:
        await two.do("control", orders.Pause("p", "q"))

    async def closes(two: Two) -> None:
        await two.do("control", orders.Close("p"))

    async def act(two: Two, meanwhile: Callable[[Two], Awaitable[None]]) -> None:
        await two.do("submit", tasks(1, 1))
        await meanwhile(two)
        await two.do("submit", tasks(2, 1, key="q"))
        await two.do("lease", LeaseRequest(pool="p", worker="one", want=3))

    for meanwhile in (groups, closes):
        await scene(schema, partial(act, meanwhile=meanwhile))
        assert not schema.wrong()
        schema.empty()


class Attentive(Undaunted):
    """A store that notes whether its steps say that a worker may sleep for want of room."""

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema)
        self.said: list[bool] = []

    def _heard(self, which: str, row: Any) -> Any:
        answer = super()._heard(which, row)
        if answer is not None and not which.startswith("to "):
            self.said.append(answer_of(answer).was_full)
        return answer


async def _was_full(schema: Schema) -> None:
    """A step says so where there was no room before it, or where more than room matters."""
    ask = LeaseRequest(pool="p", worker="one", want=1)
    for kind in ("fifo", "fair", "paced", "ahead"):
        server = Attentive(schema)
        try:
            await server.control(
                orders.Declare(msgspec.structs.replace(KINDS[kind], max_concurrent=2))
            )
            await server.control(orders.Register("one", 1e6))
            await server.submit(tasks(1, 5))
            for want in (1, 2):
                leased = (await server.lease(msgspec.structs.replace(ask, want=want))).leased
                await server.settle(
                    [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in leased]
                )
            assert server.said == [kind != "fifo"] * 3 + [True]
        finally:
            await server.close()
        schema.empty()


def of_kind(
    act: Callable[[Two], Awaitable[None]], kind: str
) -> Callable[..., Coroutine[Any, Any, None]]:
    """Return a scene in a pool of a kind."""
    return lambda schema: scene(schema, act, kind)


def alone(
    test: Callable[..., Coroutine[Any, Any, None]], *given: Any
) -> Callable[..., Coroutine[Any, Any, None]]:
    """Return a test as a scene."""
    return lambda schema: test(schema, *given)


SCENES: dict[str, Callable[[Schema], Coroutine[Any, Any, None]]] = {
    "closed": of_kind(_closed, "fifo"),
    "paused": of_kind(_paused, "fifo"),
    "held back": of_kind(_held_back, "fifo"),
    "stale": of_kind(_stale, "fifo"),
    "swapped": of_kind(_swapped, "fifo"),
    "swapped successor": of_kind(_swapped_successor, "ahead"),
    "ahead of all": of_kind(_ahead_of_all, "ahead"),
    "rate one by one": of_kind(_one_by_one, "slow"),
    "key one by one": of_kind(_one_by_one, "slow keys"),
    "limit one by one": of_kind(_one_by_one, "fair and limited"),
    "unknown function": of_kind(_unknown_function, "fifo"),
    "keys": of_kind(_keys, "fifo"),
    "runs": of_kind(_runs, "fifo"),
    "times": of_kind(_times, "fifo"),
    "many of a key": of_kind(_many_of_a_key, "keys paced in line"),
    "key in two shares": of_kind(_key_in_two_shares, "fair and limited"),
    "joins": of_kind(_joins, "fair by twos"),
    "one at a time": of_kind(_one_at_a_time, "fair and limited"),
    "rests": of_kind(_rests, "fair by twos"),
    "outcomes": of_kind(outcomes.outcomes, "fifo"),
    "alone": of_kind(outcomes.alone, "fifo"),
    "above": of_kind(outcomes.above, "fifo"),
    "last attempts": of_kind(outcomes.last_attempts, "fifo"),
    "cancelled": of_kind(outcomes.cancelled, "fifo"),
    "stale rows": of_kind(outcomes.stale_rows, "fifo"),
    "expires": of_kind(outcomes.expires, "fifo"),
    "expires in turn": of_kind(outcomes.expires, "fair"),
    "run stops": of_kind(outcomes.run_stops, "fifo"),
    "slots go on": of_kind(outcomes.slots_go_on, "ahead"),
    "in turn": of_kind(outcomes.in_turn, "fair and limited"),
    "back in order": of_kind(outcomes.back_in_order, "fair by twos"),
    "due in order": of_kind(outcomes.due_in_order, "fair"),
    "closure of a freed key": of_kind(outcomes.closure_of_a_freed_key, "fair and limited"),
    "lane waits": of_kind(outcomes.lane_waits_for_its_head, "each key a lane"),
    "simple and due": alone(tasks_that_are_not_plain, {"delay": 4.0}),
    "simple and unknown": alone(only_what_it_knows, "other"),
    "simple and called back": alone(with_callback),
    "simple and tried": alone(tried_before),
    "simple and held back": alone(guards.test_a_pool_is_held_back),
    "simple and counted": alone(guards.test_who_holds_nothing_is_not_counted),
    "simple and heard": alone(guards.test_others_hear_of_room_only_where_there_was_none),
    "one and stopped": alone(guards.test_a_submit_of_one_task_knows_a_stopped_key),
    "simple and parked": alone(guards.test_tasks_are_parked_for_another_worker, ("other",)),
    "simple and stopped": alone(guards.test_a_key_is_stopped_where_keys_do_not_matter),
    "simple and starved": alone(guards.test_who_gets_nothing_comes_next),
    "simple and idle": alone(guards.test_who_wants_nothing_is_in_nobodys_way),
    "simple and owned": alone(guards.test_a_closure_comes_to_its_owner_in_its_place),
    "simple and keyed": alone(guards.test_the_key_of_a_task_ends_with_it, Dedupe.INFLIGHT),
    "simple and of a run": alone(guards.test_a_run_ends_with_its_last_task),
    "simple and bounded": alone(guards.test_what_starts_makes_room_in_a_bounded_queue),
    "simple and entered": alone(guards.test_a_caller_has_committed_tasks_meanwhile),
    "simple and entered late": alone(guards.test_a_callers_long_transaction_ends_after_a_later_one),
    "simple and restored": alone(guards.test_the_inbox_was_restored_on_a_younger_server),
    "server takes all": _server_takes_all,
    "low points": _lows,
    "inbox first": _inbox_first,
    "put": _put,
    "one by one": _submitted_one_by_one,
    "was full": _was_full,
    "renewed": _renewed,
}


def main() -> int:
    """Hunt every mutant, or those that are named."""
    parser = argparse.ArgumentParser(prog="make mutants-sql", description=__doc__)
    parser.add_argument("--only", action="append", choices=sorted(BY_NAME), help="hunt this one")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many histories of each kind")
    given = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not given.only or mutant.name in given.only]
    survivors = []
    with serve() as server, server.database() as url, Schemas(url) as schemas:
        schema = schemas.take()
        for who in dict.fromkeys(who for mutant in chosen for who in mutant.notices):
            if not holds(schema, who, 0):
                print(f"the sound functions do not hold: {who}")  # noqa: T201 - a command
                return 2
        for mutant in chosen:
            started = time.monotonic()
            found = noticed(schema, mutant, range(given.seeds))
            seconds = time.monotonic() - started
            print(f"{mutant.name:34}{found or 'SURVIVED':28}{seconds:6.1f} s", flush=True)  # noqa: T201 - a command
            survivors += [] if found else [mutant.name]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants of SQL were noticed")  # noqa: T201 - a command
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
