"""The gateway: the code around a model that many tenants share."""

from dataclasses import dataclass
from typing import Any, Protocol

from docs.examples.llm_gateway.limits import Limits
from docs.examples.llm_gateway.model import Busy, Model

from millpond import (
    Context,
    Millpond,
    Pool,
    PoolFull,
    Rate,
    Retry,
    TaskFailed,
    TaskFunction,
    Throttled,
    adaptive,
    bounded,
    fair_round_robin,
)
from millpond.core.spec import BudgetSpec


@dataclass(frozen=True)
class Reply:
    """The reply to a client: an answer, or why there is none."""

    outcome: str
    """`answered`, `refused` (come back later), `expired` (waited too long), `failed`."""
    waited: float = 0.0
    """Seconds until the answered attempt started."""
    tokens: int = 0


class Service(Protocol):
    """The interface for clients."""

    async def ask(self, tenant: str, question: int, most: int) -> Reply:
        """Answer or refuse a request."""
        ...


class Gateway:
    """One pool in front of one model, the same in every process of the fleet."""

    def __init__(self, url: str | None, model: Model, limits: Limits) -> None:
        self.limits = limits
        self.mp = Millpond(url)
        provider = self.mp.budget(
            "provider",
            limits.most_at_once,
            rate=[Rate(1_000, per=limits.minute), limits.rate],
        )
        self.budget: BudgetSpec = provider.spec
        self.pool: Pool = self.mp.pool(
            "chat",
            max_concurrent=adaptive(4, limits.most_at_once),
            queue=fair_round_robin("tenant"),
            backpressure=bounded(1_000, on_full="fail_submitter", per_key=limits.per_tenant),
            rate_per_key=Rate(20, per=1.0),
            budgets=[provider],
            retry=Retry(attempts=3, initial=0.5),
        )

        @self.pool.task(key="tenant", timeout=limits.timeout)
        async def answer(ctx: Context, tenant: str, question: int, most: int) -> Reply:
            try:
                used = await model.ask(tenant, question, most)
            except Busy as busy:
                ctx.settle_weight(0)
                raise Throttled(busy.retry_after) from busy
            ctx.settle_weight(used)
            return Reply("answered", ctx.started_at - ctx.submitted_at, used)

        self.answer: TaskFunction[[str, int, int], Reply, Any] = answer

    async def ask(self, tenant: str, question: int, most: int) -> Reply:
        """Reserve the most tokens that an answer may use, and wait for it."""
        options = self.answer.options(weight=most, expires_in=self.limits.deadline)
        try:
            return await (await options.submit(tenant, question, most))
        except PoolFull:
            return Reply("refused")
        except TaskFailed as failed:
            return Reply("expired" if failed.reason == "expired" else "failed")
