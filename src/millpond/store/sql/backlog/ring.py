"""The fair ring over rows: a seat is read when its share is needed, turns page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.order.ring import Owner, Ring, Seat, Share
from millpond.store.sql.paged import Paged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    from millpond.core.spec import Order
    from millpond.store.sql.codec import Row
    from millpond.store.sql.paged import Key
    from millpond.store.sql.unit_of_work import SqlTables

    ReadTurns: TypeAlias = Callable[[Key | None, int], list[tuple[Key, Share]]]


AHEAD = 128
"""How many turns are read at once, with everything their claims will ask for."""


class SqlSeats:
    """The seats that were read; shares without a seat are remembered too."""

    def __init__(self, ring: SqlRing, tables: SqlTables, pool: int) -> None:
        self._ring = ring
        self._tables = tables
        self._pool = pool
        self._read: dict[Share, Seat] = {}
        self._stored: dict[Share, dict[str, Row]] = {}
        self._dirty: set[Share] = set()

    def get(self, share: Share) -> Seat | None:
        """Return the seat of a share for change, or None; a query if it is not in memory."""
        self._dirty.add(share)
        return self.look_at(share)

    def require(self, share: Share) -> Seat:
        """Return the seat of a share for change; it must be there."""
        seat = self.get(share)
        if seat is None:
            raise KeyError(share)
        return seat

    def look_at(self, share: Share) -> Seat | None:
        """Return the seat of a share for reading only, or None; perhaps a query."""
        if share not in self._stored:
            found = self._tables.ask("seat", (self._pool, share or ""))
            self._take_in(share, list(found))
        return self._read.get(share)

    def add(self, share: Share, seat: Seat) -> None:
        """Add a new seat; its row is written with the others."""
        self._read[share] = seat

    def remove(self, share: Share) -> None:
        """Remove a seat; its row is deleted with the other changes."""
        self.get(share)
        del self._read[share]

    def load(self, shares: Iterable[Share]) -> None:
        """Read several seats at once."""
        wanted = {share or "" for share in shares if share not in self._stored}
        if len(wanted) < 2:
            return
        rows: dict[str, list[Row]] = {share: [] for share in wanted}
        for share, *row in self._tables.ask(
            "seats", (self._pool, self._tables.listed(list(wanted)))
        ):
            rows[share].append(tuple(row))
        for share, found in rows.items():
            self._take_in(share or None, found)

    @property
    def known_shares(self) -> int:
        """How many shares were read, those without a seat too."""
        return len(self._stored)

    def seated_for_all(self, share: Share, turn: int, joined: int) -> None:
        """Take in a seat that was read with others: it takes part for everybody, and no owner."""
        if share not in self._stored:
            self._take_in(share, [("", turn, joined, 0)])

    def rests(self, share: Share, turn: int, joined: int) -> None:
        """Take in the seat of a share that rests: such a one has no row but this."""
        if share not in self._stored:
            self._take_in(share, [("", turn, joined, 1)])

    def _take_in(self, share: Share, rows: list[Row]) -> None:
        self._stored[share] = {row[0]: row for row in rows}
        if not rows:
            return
        _, turn, joined, resting = rows[0]
        seat = Seat(turn, joined)
        if resting:
            self._ring.resting.known(share, seat.place)
        else:
            seat.owners = tuple(row[0] or None for row in rows)
            for owner in seat.owners:
                self._ring.audience(owner).known(share, seat.place)
        self._read[share] = seat

    def write(self) -> None:
        """Write what has changed."""
        saved, dropped = [], []
        for share in self._dirty:
            seat, stored = self._read.get(share), self._stored[share]
            rows = {} if seat is None else {row[0]: row for row in _rows(seat)}
            if rows == stored:
                continue
            dropped += [(self._pool, share or "", owner) for owner in stored if owner not in rows]
            saved += [
                (self._pool, share or "", *row)
                for owner, row in rows.items()
                if stored.get(owner) != row
            ]
            self._stored[share] = rows
        if dropped:
            self._tables.send("drop_seat", dropped)
        if saved:
            self._tables.send("save_seat", saved)

    def let_go(self) -> None:
        """Have nothing in hand any more: everything is written, and the transaction is over."""
        self._dirty = set()


def _rows(seat: Seat) -> list[Row]:
    if not seat.owners:
        return [("", seat.turn, seat.joined, 1)]
    return [(owner or "", seat.turn, seat.joined, 0) for owner in seat.owners]


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
        """Return the shares in which an owner (None = everybody) has something to start."""
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
            self.seats.rests(share or None, turn, joined)
        return page
