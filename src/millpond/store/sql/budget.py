"""Budgets over rows: all are read when the first is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.core.bucket import Bucket, fresh
from millpond.core.spec import BudgetSpec
from millpond.errors import NewerPool
from millpond.store.sql.cached_rows import RequiredRows
from millpond.store.sql.newer_settings import shares_newer, understood
from millpond.store.sql.pool import readable
from millpond.store.verbs.budgets import BudgetTable, Wait

if TYPE_CHECKING:
    from millpond.core.spec import PoolSpec
    from millpond.store.sql.codec import Row
    from millpond.store.sql.unit_of_work import SqlTables

_decode = msgspec.json.Decoder(BudgetSpec).decode
_buckets = msgspec.json.Decoder(list[Bucket]).decode
_pools = msgspec.json.Decoder(dict[str, float]).decode
_waiting = msgspec.json.Decoder(dict[str, Wait]).decode


def _spec(text: str) -> BudgetSpec:
    return understood(text, _decode, "budget")


def must_know_budget(row: Row) -> None:
    """Raise NewerPool for the row of a budget that only a newer version understands."""
    _spec(row[1])


class SqlBudgets(RequiredRows[str, BudgetTable]):
    """The budgets: all are read when the first is needed, and compared when rows are written."""

    def __init__(self, tables: SqlTables) -> None:
        self._tables = tables
        self._budgets: dict[str, BudgetTable] = {}
        self._stored: dict[str, Row] | None = None
        """The rows as stored; None = not read yet."""
        self._newer: dict[str, NewerPool] = {}
        """Budgets that only a newer version understands; reading one raises NewerPool."""

    def must_know(self, spec: PoolSpec) -> None:
        """Raise NewerPool for a pool that shares a budget of a newer version."""
        if spec.budgets:
            self._load()
            for name in spec.budgets:
                if name in self._newer:
                    raise shares_newer(spec.name, self._newer[name])

    def get(self, name: str) -> BudgetTable | None:
        """Return a budget for change, or None."""
        self._load()
        if name in self._newer:
            raise self._newer[name]
        return self._budgets.get(name)

    def add(self, name: str, budget: BudgetTable) -> None:
        """Add a new budget; its row is written with the others."""
        self._load()
        self._budgets[name] = budget

    def _load(self) -> None:
        if self._stored is not None:
            return
        self._stored = {}
        for row in self._tables.ask("budgets").fetchall():
            try:
                self._budgets[row[0]] = _table(row)
            except NewerPool as error:
                self._newer[row[0]] = error
            else:
                self._stored[row[0]] = tuple(row)

    def write(self) -> None:
        """Write what has changed."""
        if self._stored is None:
            return
        for name, budget in self._budgets.items():
            row = _row(budget)
            if self._stored.get(name) != row:
                self._tables.ask("save_budget", row)
                self._stored[name] = row


def _table(row: Row) -> BudgetTable:
    name, spec, declared, limit, buckets, pools, waiting = row
    budget = BudgetTable(_spec(spec))
    budget.declared, budget.operator_limit = _spec(declared), limit
    whose, unused = f"budget {name}", fresh(budget.spec.rates)
    budget.buckets = readable(_buckets, buckets, unused, whose)
    budget.pools = readable(_pools, pools, {}, whose)
    budget.waiting = readable(_waiting, waiting, {}, whose)
    return budget


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
