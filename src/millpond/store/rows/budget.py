"""Budgets as rows: they are few, and all read when the first is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.bucket import Bucket
from millpond.core.spec import BudgetSpec
from millpond.store.verbs.budgets import BudgetTable, Wait

if TYPE_CHECKING:
    from millpond.store.rows.rows import Row
    from millpond.store.rows.tables import SqlTables

_spec = msgspec.json.Decoder(BudgetSpec).decode
_buckets = msgspec.json.Decoder(list[Bucket]).decode
_pools = msgspec.json.Decoder(dict[str, float]).decode
_waiting = msgspec.json.Decoder(dict[str, Wait]).decode


class SqlBudgets(dict[str, BudgetTable]):
    """The budgets, by name."""

    def __init__(self, tables: SqlTables) -> None:
        super().__init__()
        self._tables = tables
        self._stored: dict[str, Row] | None = None
        """As they stand in the file; None = nobody has asked yet."""

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - as dict's
        """Return a budget, or None."""
        self._read()
        return super().get(name, default)

    def __getitem__(self, name: str) -> BudgetTable:
        self._read()
        return super().__getitem__(name)

    def __setitem__(self, name: str, budget: BudgetTable) -> None:
        self._read()
        super().__setitem__(name, budget)

    def _read(self) -> None:
        if self._stored is not None:
            return
        self._stored = {}
        for row in self._tables.ask("budgets").fetchall():
            name, spec, declared, limit, buckets, pools, waiting = row
            budget = BudgetTable(_spec(spec))
            budget.declared, budget.operator_limit = _spec(declared), limit
            budget.buckets, budget.pools = _buckets(buckets), _pools(pools)
            budget.waiting = _waiting(waiting)
            self._stored[name] = tuple(row)
            super().__setitem__(name, budget)

    def write(self) -> None:
        """Send what has changed to the file."""
        if not self._stored and not self:
            return
        stored = self._stored if self._stored is not None else {}
        for name, budget in self.items():
            row = _row(budget)
            if stored.get(name) != row:
                self._tables.ask("save_budget", row)
                stored[name] = row


def _row(budget: BudgetTable) -> Row:
    return (
        budget.name,
        _text(budget.spec),
        _text(budget.declared),
        budget.operator_limit,
        _text(budget.buckets),
        _text(budget.pools),
        _text(budget.waiting),
    )


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
