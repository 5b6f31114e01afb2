"""The fair ring over rows: a seat is read when its share is needed, turns page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.order.ring import Owner, Ring, Seat, Share
from millpond.store.sql.cached_rows import CachedRows
from millpond.store.sql.paged import Paged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    from millpond.core.spec import Order
    from millpond.store.sql.codec import Row
    from millpond.store.sql.paged import Key
    from millpond.store.sql.unit_of_work import SqlTables

    Rows: TypeAlias = dict[str, Row]
    """The rows of a share: one for each owner, by its name."""
    ReadTurns: TypeAlias = Callable[[Key | None, int], list[tuple[Key, Share]]]


AHEAD = 128
"""How many turns are read at once, with everything their claims will ask for."""


class SqlSeats(CachedRows["Share", Seat, "Rows"]):
    """The seats that were read; shares without a seat are remembered too."""

    def __init__(self, ring: SqlRing, tables: SqlTables, pool: int) -> None:
        super().__init__()
        self._ring = ring
        self._tables = tables
        self._pool = pool

    def load(self, shares: Iterable[Share]) -> None:
        """Read several seats at once."""
        wanted = {share or "" for share in shares if share not in self._stored}
        if len(wanted) < 2:
            return
        rows: dict[str, Rows] = {share: {} for share in wanted}
        for share, *row in self._tables.ask(
            "seats", (self._pool, self._tables.listed(list(wanted)))
        ):
            rows[share][row[0]] = tuple(row)
        for share, found in rows.items():
            self._take_in(share or None, found or None)

    def _ask(self, key: Share) -> Rows | None:
        return {row[0]: row for row in self._tables.ask("seat", (self._pool, key or ""))} or None

    def _made(self, key: Share, row: Rows) -> Seat:
        _, turn, joined, resting = next(iter(row.values()))
        seat = Seat(turn, joined)
        if resting:
            self._ring.resting.known(key, seat.place)
        else:
            seat.owners = tuple(owner or None for owner in row)
            for owner in seat.owners:
                self._ring.audience(owner).known(key, seat.place)
        return seat

    def _row(self, _: Share, value: Seat) -> Rows:
        if not value.owners:
            return seat_row(value.turn, value.joined, resting=1)
        return {owner or "": (owner or "", value.turn, value.joined, 0) for owner in value.owners}

    def write(self) -> None:
        """Write what has changed."""
        saved, dropped = [], []
        for share, before, now in self._changes():
            stored, rows = before or {}, now or {}
            dropped += [(self._pool, share or "", owner) for owner in stored if owner not in rows]
            saved += [
                (self._pool, share or "", *row)
                for owner, row in rows.items()
                if stored.get(owner) != row
            ]
        if dropped:
            self._tables.send("drop_seat", dropped)
        if saved:
            self._tables.send("save_seat", saved)


def seat_row(turn: int, joined: int, *, resting: int) -> Rows:
    """Return the one row of a seat that takes part for all workers and no owner, or rests."""
    return {"": ("", turn, joined, resting)}


class SqlRing(Ring):
    """A ring of which only those in reach are read."""

    __slots__ = ("_for_all", "_paged", "_pool", "_tables", "resting", "seats")

    def __init__(
        self,
        order: Order,
        tables: SqlTables,
        pool: int,
        *,
        joins: int,
        passed: tuple[int, int],
        resting: int,
        for_all: ReadTurns | None,
    ) -> None:
        super().__init__(order)
        self._tables = tables
        self._pool = pool
        self._for_all = for_all
        self.joins = joins
        self.passed = passed
        self.resting: Paged[Share] = Paged(self._resting_page, count=resting)
        self._resting = self.resting
        self.seats = SqlSeats(self, tables, pool)
        self._seats = self.seats
        self._paged: dict[Owner, Paged[Share]] = {}
        self._audience_of = self.audience

    def audience(self, owner: Owner) -> Paged[Share]:
        """Return the shares in which an owner (None = all workers) has something to start."""
        made = self._paged.get(owner)
        if made is None:
            made = self._paged[owner] = self._page_of(owner)
        return made

    def _page_of(self, owner: Owner) -> Paged[Share]:
        """Return the turns of an audience, to be read."""
        if owner is None and self._for_all is not None:
            return Paged(self._for_all, most=AHEAD)
        return Paged(lambda behind, size: self._turns_page(owner or "", behind, size))

    def _audience(self, owner: Owner) -> Paged[Share]:
        return self.audience(owner)

    def _drop(self, share: Share, owner: Owner) -> None:
        # An audience that has run empty is no trouble: it is not kept beyond the transaction.
        self.audience(owner).discard(share)

    def expect(self, count: int) -> None:
        """Let the next page of turns be as long as what will be taken."""
        self.audience(None).expect(min(count, AHEAD))

    def _turns_page(self, owner: str, behind: Key | None, size: int) -> list[tuple[Key, Share]]:
        who = (self._pool, owner)
        if behind is None:
            rows = self._tables.ask("turns", (*who, size))
        else:
            rows = self._tables.ask("turns_after", (*who, *behind, size))
        return [((turn, joined), share or None) for turn, joined, share in rows]

    def _resting_page(self, behind: Key | None, size: int) -> list[tuple[Key, Share]]:
        if behind is None:
            rows = self._tables.ask("resting_seats", (self._pool, size))
        else:
            rows = self._tables.ask("resting_seats_after", (self._pool, *behind, size))
        page: list[tuple[Key, Share]] = []
        for turn, joined, share in rows:
            page.append(((turn, joined), share or None))
            # Most of them are forgotten next: each would be read for that alone.
            self.seats.known(share or None, seat_row(turn, joined, resting=1))
        return page
