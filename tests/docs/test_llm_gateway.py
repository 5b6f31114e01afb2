"""The gateway of docs/examples/llm_gateway keeps its promises, on virtual time."""

from dataclasses import replace
from unittest.mock import patch

import pytest
from docs.examples.llm_gateway.chart import Side, drawn
from docs.examples.llm_gateway.gateway import Gateway
from docs.examples.llm_gateway.judge import Check, Figures, figures, judged
from docs.examples.llm_gateway.limits import Limits, most_in_any
from docs.examples.llm_gateway.model import FakeModel
from docs.examples.llm_gateway.naive import Naive
from docs.examples.llm_gateway.traffic import flood

from millpond import Context, fifo

LIMITS = Limits()
SECONDS = 25.0


async def flooded(
    gateway: Gateway, model: FakeModel, seconds: float = SECONDS
) -> tuple[Side, Figures, list[Check]]:
    """Flood a gateway and judge it."""
    async with gateway.mp:
        book = await flood(gateway, LIMITS, seconds)
        records = [record async for record in gateway.mp.audit()]
    return Side("after", book, model.book), *judged(gateway, book, model.book, records)


def broken(checks: list[Check]) -> list[str]:
    return [f"{check.promise}: {check.found}" for check in checks if not check.kept]


async def test_the_gateway_keeps_its_promises_under_ten_times_overload() -> None:
    """Fair shares, tokens of any minute, bounded waits, 0 lost; and the drawing can be made."""
    model = FakeModel(LIMITS)
    after, _, checks = await flooded(Gateway(None, model, LIMITS), model)
    assert [] == broken(checks)
    naive = FakeModel(LIMITS)
    book = await flood(Naive(naive, LIMITS), LIMITS, 10.0)
    was = figures(book, naive.book, LIMITS)
    assert was.worst_share < 0.5
    assert drawn(Side("before", book, naive.book), after, LIMITS).startswith("<svg")


async def test_a_gateway_that_is_not_fair_is_found_out() -> None:
    """First come, first served gives small tenants less than their share, and the judge says so."""
    model = FakeModel(LIMITS)
    with patch("docs.examples.llm_gateway.gateway.fair_round_robin", lambda _: fifo()):
        gateway = Gateway(None, model, replace(LIMITS, per_tenant=96))
    _, _, checks = await flooded(gateway, model, 15.0)
    assert any("fair share" in line for line in broken(checks))


async def test_a_gateway_that_uses_more_than_it_says_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model's own ledger has figures that the audit lacks."""
    settle_weight = Context.settle_weight
    monkeypatch.setattr(Context, "settle_weight", lambda ctx, used: settle_weight(ctx, used // 2))
    model = FakeModel(LIMITS)
    _, _, checks = await flooded(Gateway(None, model, LIMITS), model)
    assert any("by the model's book" in line for line in broken(checks))


def test_a_window_slides() -> None:
    """What is older than the window by its length is not in it any more."""
    used = [(0.0, 5), (1.0, 5), (2.0, 1), (2.5, 7)]
    assert 13 == most_in_any(2.0, used)
    assert 10 == most_in_any(1.5, used[:2])
    assert 0 == most_in_any(1.0, [])
