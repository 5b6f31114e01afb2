"""The public names of each class: a new name must be added here."""

from typing import Any

import pytest

from millpond import (
    BoundCall,
    Bulkhead,
    Context,
    Handle,
    Millpond,
    Permit,
    Pool,
    Run,
    SyncContext,
    SyncHandle,
    SyncMillpond,
    SyncPool,
    TaskFunction,
    Trigger,
)
from millpond.pool.budget import Budget, SyncBudget
from millpond.pool.events.receipt import Emission
from millpond.pool.events.sync import SyncEmission, SyncTrigger
from millpond.pool.handler_transaction import SyncTransaction, Transaction
from millpond.pool.map import Mapped, SyncMapped
from millpond.pool.runs.run import SyncRun
from millpond.pool.runs.stream import Stream, SyncStream
from millpond.pool.schedules.schedule import Schedule, SyncSchedule
from millpond.pool.task import Optioned, SyncTaskFunction

MILLPOND = """
    add_middleware as_completed audit budget cancel close counts cron emit end_scope events get_pool
    get_trigger handle is_open observe open pool pools replay reschedule run_now schedules status
    submit task tasks trigger triggers unsettled update wait why worker
"""
POOL = """
    batch_task cancel cancel_all close created_at drain id lanes map name pause purge redrive report
    resize resume retry run scope scope_id size snapshot spec stream submit submit_many task tasks
    try_submit when_all
"""
HANDLE = """
    attempt cancel duplicate error id key labels lane pool pool_id position priority progress
    queue_depth reason refresh rejection_policy rejection_reason reported result revision sequence
    status submitted_at submitted_by wait
"""
CONTEXT = """
    attempt cancel_reason cancelled commit deadline function is_retry key labels lane lease_lost
    max_attempts once pool progress resources sequence settle_weight started_at submit submit_many
    submitted_at task_id transaction weight
"""
TRIGGER = "dead_letters deliveries id pause redrive remove resume spec"
SCHEDULE = "fire id pause remove resume status timetable"

NAMES: dict[type, str] = {
    Millpond: MILLPOND + "sync url",
    SyncMillpond: MILLPOND,
    Pool: POOL + "sync",
    SyncPool: POOL,
    Handle: HANDLE,
    SyncHandle: HANDLE + "get",
    Context: CONTEXT,
    SyncContext: CONTEXT,
    TaskFunction: "aliases bind each name options pool submit sync",
    Optioned: "bind each function pool submit sync",
    SyncTaskFunction: "submit",
    BoundCall: "args function kwargs options",
    Run: "finished_before on_complete report submit submit_many",
    SyncRun: "finished_before on_complete report submit submit_many",
    Stream: "report",
    SyncStream: "report",
    Mapped: "",
    SyncMapped: "get",
    Budget: "name resize snapshot spec sync",
    SyncBudget: "name resize snapshot spec",
    Schedule: SCHEDULE + " sync",
    SyncSchedule: SCHEDULE,
    Trigger: TRIGGER,
    SyncTrigger: TRIGGER,
    Emission: "duplicate event event_id handles receipts task_id",
    SyncEmission: "duplicate event event_id handles receipts task_id",
    Transaction: "complete connection execute executemany",
    SyncTransaction: "complete connection execute executemany",
    Bulkhead: "acquire blocking close drain name permit resize run stats try_acquire would_admit",
    Permit: "bulkhead id release revision settle weight",
}

ON_INSTANCES: dict[type, set[str]] = {Emission: {"event"}}
"""Attributes of classes of which this test makes no instance."""


def instances() -> dict[type, Any]:
    """One of each class that can be made without a store."""
    mp = Millpond()
    pool = mp.pool("names")

    @pool.task
    async def job(number: int) -> int:
        return number

    budget = mp.budget("names", 1)
    schedule = mp.cron("names", every=60)
    trigger = mp.trigger("names", on="names", into=pool, make=lambda _: None)
    bulkhead = Bulkhead("names", 1)
    with bulkhead.blocking() as permit:
        pass
    found = [mp, mp.sync, pool, pool.sync, job, job.sync, job.options(priority=1), job.bind(1)]
    found += [pool.run(), pool.sync.run(), pool.stream([]), pool.sync.stream([])]
    found += [budget, budget.sync, schedule, schedule.sync]
    found += [trigger, mp.sync.get_trigger("names"), bulkhead, permit]
    return {type(one): one for one in found}


@pytest.mark.parametrize("kind", NAMES, ids=lambda kind: kind.__name__)
def test_a_class_has_exactly_the_public_names_listed_here(kind: type) -> None:
    """`dir()` shows only public names; every other name has an underscore."""
    shown = {name for name in dir(instances().get(kind, kind)) if not name.startswith("_")}
    assert set(NAMES[kind].split()) == shown | ON_INSTANCES.get(kind, set())
