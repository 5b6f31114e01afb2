"""The whole suite: every part, in one class for a backend to subclass."""

from __future__ import annotations

from millpond.testing.conformance.atomic import AtomicConformance
from millpond.testing.conformance.attempts import AttemptsConformance
from millpond.testing.conformance.audit import AuditConformance
from millpond.testing.conformance.budgets import BudgetsConformance
from millpond.testing.conformance.callbacks import CallbacksConformance
from millpond.testing.conformance.control import ControlConformance
from millpond.testing.conformance.declare import DeclareConformance
from millpond.testing.conformance.endings import EndingsConformance
from millpond.testing.conformance.fences import FencesConformance
from millpond.testing.conformance.flow import FlowConformance
from millpond.testing.conformance.idempotency import IdempotencyConformance
from millpond.testing.conformance.lanes import LanesConformance
from millpond.testing.conformance.leader import LeaderConformance
from millpond.testing.conformance.lease import LeaseConformance
from millpond.testing.conformance.limits import LimitsConformance
from millpond.testing.conformance.order import OrderConformance
from millpond.testing.conformance.pages import PagesConformance
from millpond.testing.conformance.prefetch import AheadConformance
from millpond.testing.conformance.prefetch_limits import AheadLimitsConformance
from millpond.testing.conformance.recover import RecoverConformance
from millpond.testing.conformance.renew import RenewConformance
from millpond.testing.conformance.run_callbacks import RunCallbacksConformance
from millpond.testing.conformance.run_stops import RunStopsConformance
from millpond.testing.conformance.runs import RunsConformance
from millpond.testing.conformance.same_history import StoryConformance
from millpond.testing.conformance.search import SearchConformance
from millpond.testing.conformance.settle import SettleConformance
from millpond.testing.conformance.submit import SubmitConformance
from millpond.testing.conformance.task_story import TaskStoryConformance
from millpond.testing.conformance.triggers import TriggersConformance
from millpond.testing.conformance.unfit_arguments import MisfitsConformance
from millpond.testing.conformance.update import ReplaceConformance, UpdateConformance
from millpond.testing.conformance.view import ViewConformance
from millpond.testing.conformance.wakes import WakesConformance
from millpond.testing.conformance.why import WhyConformance


class StoreConformance(
    SubmitConformance,
    IdempotencyConformance,
    ReplaceConformance,
    UpdateConformance,
    LeaseConformance,
    MisfitsConformance,
    OrderConformance,
    LimitsConformance,
    FlowConformance,
    BudgetsConformance,
    LanesConformance,
    AheadConformance,
    AheadLimitsConformance,
    RenewConformance,
    SettleConformance,
    FencesConformance,
    CallbacksConformance,
    AttemptsConformance,
    EndingsConformance,
    RecoverConformance,
    LeaderConformance,
    DeclareConformance,
    ControlConformance,
    RunsConformance,
    RunStopsConformance,
    RunCallbacksConformance,
    TriggersConformance,
    WakesConformance,
    AuditConformance,
    ViewConformance,
    PagesConformance,
    SearchConformance,
    TaskStoryConformance,
    WhyConformance,
    AtomicConformance,
    StoryConformance,
):
    """Every behaviour of the store protocol. Nothing in it is optional and nothing is skipped."""
