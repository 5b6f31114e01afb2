"""A store that lets the server do simple verbs itself, in one function call."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import msgspec
import psycopg

from millpond.core.lifecycle import Transition
from millpond.core.settle import Settlement
from millpond.core.store_time import TOLERANCE
from millpond.errors import StoreError
from millpond.store.clock import ServerClock
from millpond.store.postgres.encoding import sent
from millpond.store.postgres.errors import code_of
from millpond.store.postgres.fast_path import (
    SettleAndLease,
    all_complete,
    answer_of,
    why_not_settle,
)
from millpond.store.postgres.fast_submit import (
    FastSubmit,
    FastSubmitAnswer,
    OneSubmit,
    OneSubmitAnswer,
    SimplePool,
    only_task,
    why_not_submit,
)
from millpond.store.postgres.flush import Flush
from millpond.store.postgres.handler_connection import PostgresHandlerConnection
from millpond.store.postgres.notify import PostgresHintChannel
from millpond.store.postgres.pipeline import PostgresConnection
from millpond.store.postgres.server_call import PreparedCall, ServerCall
from millpond.store.postgres.transactions import PostgresTransactor
from millpond.store.postgres.writer import PostgresWriter
from millpond.store.protocol import RenewAnswer, SettleAnswer
from millpond.store.sql.renewer import SqlRenewer
from millpond.store.sql.store import SqlStore
from millpond.store.sql.written_with import hint_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from millpond.core.lease import LeaseRequest
    from millpond.store.postgres.cursor import Row
    from millpond.store.postgres.detours import Detours
    from millpond.store.postgres.dialect import PostgresDialect
    from millpond.store.postgres.encoding import Sent
    from millpond.store.postgres.fast_path import SettleAndLeaseAnswer
    from millpond.store.protocol import Batch, Hint, LeaseAnswer, SubmitAnswer
    from millpond.store.sql.unit_of_work import SqlTables

T = TypeVar("T")

_HEARD_WITHIN = 0.25
"""The part of a lease in which a renewal must be answered. The next one has twice as long, as long
as none is: a connection may be dead, two in a row are slow, and each that is given up costs the
server more than its answer would have."""

_MOST_DOUBLINGS = 2
"""The longest wait for a renewal is the lease: after that it is lost."""

_MOST_SKIPPED = 62
"""How many verbs of a pool skip the fast path after the server refused it."""


class FastPathTransactor(PostgresTransactor["SqlTables"]):
    """Remembers why the server refused the last call by an error."""

    refusal = "not committed"

    def call_failed(self, error: Exception) -> None:
        """Clean up after a failed call; raise if the Python path would fail too."""
        self.refusal = reason_of(error)
        super().call_failed(error)


def reason_of(error: BaseException) -> str:
    """Return why the server refused a call, in the words that detours are counted by."""
    code = code_of(error)
    if code == "MP001" and isinstance(error, psycopg.Error):
        return error.diag.message_primary or "refused"
    return {"MP002": "miscounted", "23505": "known already"}.get(code or "", "error")


class FastPathStore(SqlStore[PostgresConnection, PostgresHandlerConnection]):
    """Tries the server fast path first, and the Python verbs if it refuses."""

    _schema: PostgresDialect
    _set_clock: Callable[[float], None] | None
    """Sets the clock to the server's time; None = another clock is used."""

    _waiters: Sent
    """The lock of the processes that wait for ends."""
    detours: Detours
    """How often verbs left the fast path, and why."""
    _skips: dict[str, int]
    """How many more verbs skip the fast path, by kind and pool."""
    _refusals: dict[str, int]
    """How many calls the server refused in a row, by kind and pool."""
    _reasons: dict[str, str]
    """Why the server refused the last one."""
    _unanswered: dict[str, int]
    """How many consecutive renewals of a worker were not answered."""
    _simple: dict[str, SimplePool]
    """What is known of pools whose settings bound nothing but what runs."""
    _simple_steps: dict[str, Sequence[Sent]]
    """What `millpond_step_simple` must be given for each simple pool."""
    _notified: set[str]
    """Pools whose commit itself notified the other processes, or found no worker to notify."""
    _hinted: list[tuple[object, Hint]]
    """The answers to the last settles, and the hint for each."""

    async def lease(
        self, ask: LeaseRequest, *, now: float | None = None, entropy: int | None = None
    ) -> LeaseAnswer:
        """Give a worker the next tasks of a pool, within every limit in force."""
        step = self._new_step((), ask, now, entropy)
        answer = await self._stepped("lease", ask.pool, step, step.leased)
        if answer is not None:
            return answer
        return await super().lease(ask, now=now, entropy=entropy)

    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        then: LeaseRequest | None = None,
        now: float | None = None,
        entropy: int | None = None,
    ) -> SettleAnswer:
        """End attempts, each only with its current fence, and lease the next if asked."""
        reason = why_not_settle(settlements)
        if reason is not None:
            self.detours.add("settle", reason)
        elif settlements:
            step = self._new_step(settlements, then, now, entropy)
            pool = "" if then is None else then.pool
            answer = await self._stepped("settle", pool, step, step.settled)
            if answer is not None:
                return answer
        return await super().settle(settlements, then=then, now=now, entropy=entropy)

    def settle_behind(
        self, settlements: Sequence[Settlement], *, then: LeaseRequest
    ) -> Coroutine[Any, Any, SettleAnswer | None] | None:
        """Send a settle behind the one under way.

        It may end attempts whose start the one under way reports. If the server did not accept
        that, their fences are not current: then it refuses the whole call, as everything that is
        not plain, and nothing is written. A refusal here says nothing of the pool: it is not
        counted, and no verb is tried.
        """
        writer, pool = self._writer, then.pool
        if (
            self._skips.get(pool)
            or not isinstance(writer, PostgresWriter)
            or not all_complete(settlements)
            or why_not_settle(settlements) is not None
        ):
            return None
        self._must_be_open()
        step = self._new_step(settlements, then, None, None)
        call = ServerCall(self._stepping, step, self._calling.call)
        answer = writer.follow(call, _Step(pool, step, step.settled, in_full=True, is_behind=True))
        return None if answer is None else self._behind_answered(step, answer)

    async def _behind_answered(
        self, step: SettleAndLease, answer: Awaitable[SettleAnswer | None]
    ) -> SettleAnswer | None:
        try:
            given = await answer
        except StoreError as error:
            if not (error.of_value or error.of_counts):
                raise
            return None
        await self._end_unreadable(step)
        return given

    def _new_step(
        self,
        settlements: Sequence[Settlement],
        then: LeaseRequest | None,
        now: float | None,
        entropy: int | None,
    ) -> SettleAndLease:
        chance = self._dice.getrandbits(64) if entropy is None else entropy
        return SettleAndLease(settlements, then, self._step_moment(now), chance)

    async def submit(
        self, batches: Sequence[Batch], *, now: float | None = None, entropy: int | None = None
    ) -> SubmitAnswer:
        """Accept batches, each as a whole or not at all where its pool's policy says so."""
        reason = why_not_submit(batches)
        if reason is not None:
            self.detours.add("submit", reason)
        elif batches:
            pool = batches[0].tasks[0].pool
            moment = self._step_moment(now)
            errand = ServerCall(self._taking, (pool, moment), self._calling.call)
            submit = _Submit(pool, batches, moment)
            answer = await self._apart("submit", f"to {pool}", errand, submit)
            if answer is not None:
                return cast("SubmitAnswer", answer)
        return await super().submit(batches, now=now, entropy=entropy)

    def _step_moment(self, now: float | None) -> float | None:
        """Return the moment of a call; None = the server's clock."""
        return self._clock() if now is None and self._set_clock is None else now

    def _at_most(self) -> float | None:
        """Return the latest possible time by the steady clock; None = unknown."""
        clock = self._clock
        vouched = clock.vouched() if isinstance(clock, ServerClock) else None
        return None if vouched is None else vouched + TOLERANCE

    async def _stepped(
        self,
        verb: str,
        pool: str,
        step: SettleAndLease,
        answer: Callable[[SettleAndLeaseAnswer], T],
    ) -> T | None:
        """Try the server fast path; None = use the verbs."""
        # Each goes by itself: it is an errand like no other.
        errand = ServerCall(self._stepping, step, self._calling.call)
        try:
            given: T | None = await self._apart(verb, pool, errand, _Step(pool, step, answer))
        except StoreError as error:
            if not (error.of_value or error.of_counts):
                raise
            self.detours.add(verb, "value")
            # The verbs know which value it is, or how to go on without it.
            return None
        await self._end_unreadable(step)
        return given

    async def _end_unreadable(self, step: SettleAndLease) -> None:
        """End the started tasks that cannot be read."""
        if step.unreadable:
            ends = [
                Settlement(fence=fence, event=Transition.CORRUPT, spend=False)
                for fence in step.unreadable
            ]
            await super().settle(ends, now=step.now)

    async def _apart(
        self, verb: str, which: str, errand: ServerCall, value: _Submit | _Step
    ) -> Any:  # noqa: ANN401
        """Call the server, unless it has refused such calls recently; count what it refuses."""
        self._must_be_open()
        answer = None
        if self._may_try(which):
            answer = await self._called(errand, value)
            if answer is _IN_FULL:
                answer = await self._called(errand, value._replace(in_full=True))
        if answer is None:
            self.detours.add(verb, self._reasons.get(which, "refused"))
        return answer

    async def _called(self, errand: ServerCall, value: _Submit | _Step) -> Any:  # noqa: ANN401
        if self._writer is None:
            return errand([value])[0]
        return await self._writer.do_in_batch(errand, value)

    def renewer(self) -> PostgresRenewer:
        """Return a renewer for a thread of its own."""
        transactor = self._transactor(self._new_unit)
        assert isinstance(transactor, PostgresTransactor)  # noqa: S101 - made above
        statement = self._schema.sql["renew"]
        return PostgresRenewer(transactor, self._clock, statement, self._renewal, self._unanswered)

    def _renewal(self, worker: str, lease: float) -> list[Sent]:
        """Return the arguments of a renewal."""
        now, at_most = self._step_moment(None), self._at_most()
        return [sent(now), sent(at_most), sent(worker), sent(lease)]

    def detour_counts(self) -> Mapping[tuple[str, str], int]:
        """Return how many verbs of this process left the fast path, by verb and reason."""
        return self.detours.counts()

    # What the writer does

    def _new_writer(self) -> PostgresWriter:
        return PostgresWriter(self._calling, committed=self._committed, announce=self._announce)

    @property
    def _calling(self) -> FastPathTransactor:
        transactor = self._writing
        assert isinstance(transactor, FastPathTransactor)  # noqa: S101 - made above
        return transactor

    def _committed(self, answers: Sequence[Any]) -> float | None:
        return None if self._wakes is None else self._wakes.send(self._hint(answers))

    def _announce(self, answers: Sequence[Any]) -> PreparedCall | float | None:
        """Notify other processes without blocking."""
        return (
            self._wakes.post(self._hint(answers))
            if isinstance(self._wakes, PostgresHintChannel)
            else None
        )

    def _hint(self, answers: Sequence[Any]) -> Hint | None:
        """Return the hint for a commit, without what the commit itself has notified."""
        notified, self._notified = self._notified, set()
        for settled, hinted in self._hinted:
            answers = [hinted if answer is settled else answer for answer in answers]
        self._hinted = []
        hint = hint_of(answers) if answers else None
        if hint is None or not notified:
            return hint
        wakes = tuple([wake for wake in hint.wakes if wake.pool not in notified])
        return msgspec.structs.replace(hint, wakes=wakes)

    def _stepping(self, steps: list[_Step]) -> PreparedCall:
        """Prepare a settle-and-lease call: for a simple pool, of the function for those."""
        (one,) = steps
        pool, step, _, in_full, is_behind = one
        simple = self._simple_steps.get(pool) if step.is_simple and not in_full else None
        if simple is not None and self._may_try(_simply(pool)):
            name = "step_simple"
            arguments = partial(step.simple_arguments, simple, self._at_most)
        else:
            simple, name = None, "step"
            arguments = partial(step.arguments, self._at_most)

        def answers(row: Row | None) -> list[Any]:
            if simple is not None and row is not None and row[0] is not None:
                self._refused(_simply(pool))
                return [_IN_FULL]
            if is_behind and (row is None or row[0] is not None):
                return [None]
            row = self._heard(pool, row)
            return [None if row is None else self._stepped_answer(one, answer_of(row), simple)]

        return PreparedCall(
            self._schema.sql[name],
            lambda: [self._waiters, *arguments()],
            answers,
            # Asking an empty pool writes nothing, and promises nothing.
            flush=Flush.SEEN if step.settlements else Flush.OWN,
        )

    def _stepped_answer(
        self, one: _Step, said: SettleAndLeaseAnswer, simple: Sequence[Sent] | None
    ) -> object:
        """Return the answer to a call, and remember what the next one must know of its pool."""
        if simple is not None:
            self._refusals.pop(_simply(one.pool), None)
        elif said.simple is not None:
            self._simple_steps[one.pool] = [*map(sent, said.simple)]
        else:
            self._simple_steps.pop(one.pool, None)
        given = one.answer(said)
        if isinstance(given, SettleAnswer):
            self._hinted.append((given, one.step.hint(said, given)))
        return given

    def _taking(self, grouped: list[_Submit]) -> PreparedCall:
        """Prepare one call for the tasks of several submits to one pool."""
        pool, _, now, in_full = grouped[0]
        submits = [one.batches for one in grouped]
        message = self._wakes.along(pool) if isinstance(self._wakes, PostgresHintChannel) else None
        simple = None if in_full else self._simple.get(pool)
        only = None if simple is None else only_task(submits)
        if simple is not None and only is not None:
            return self._taking_one(OneSubmit(pool, simple, only, now, message), pool, message)
        taking = FastSubmit(pool, submits, now, message)

        def answers(row: Row | None) -> list[Any]:
            row = self._heard(f"to {pool}", row)
            if row is None:
                return [None] * len(submits)
            answer = FastSubmitAnswer(*row)
            if message is not None or answer.heard is False:
                self._notified.add(pool)
            if answer.simple is not None:
                self._simple[pool] = SimplePool(answer.simple)
            return taking.answers(answer)

        return PreparedCall(
            self._schema.sql["take"],
            partial(taking.arguments, self._at_most),
            answers,
            is_large=taking.is_large(),
        )

    def _taking_one(
        self, taking: OneSubmit, pool: str, message: tuple[str, str] | None
    ) -> PreparedCall:
        """Prepare a call for one task."""

        def answers(row: Row | None) -> list[Any]:
            if row is not None and row[0] is not None:
                self._simple.pop(pool, None)
                return [_IN_FULL]
            row = self._heard(f"to {pool}", row)
            if row is None:
                return [None]
            said = OneSubmitAnswer(*row)
            if message is not None or said.heard is False:
                self._notified.add(pool)
            return [taking.answer(said)]

        return PreparedCall(
            self._schema.sql["take_one"], partial(taking.arguments, self._at_most), answers
        )

    def _heard(self, which: str, row: Row | None) -> Row | None:
        """Read the answer of a function of the server; None if it refused."""
        if row is None or row[0] is not None:
            self._refused(which)
            self._reasons[which] = self._calling.refusal if row is None else row[0]
            return None
        self._refusals.pop(which, None)
        if self._set_clock is not None:
            self._set_clock(row[1])
        return row

    def _refused(self, which: str) -> None:
        """Skip the next calls of a kind, more of them with each refusal in a row."""
        refusals = self._refusals[which] = self._refusals.get(which, 0) + 1
        self._skips[which] = min(2**refusals - 2, _MOST_SKIPPED)

    def _may_try(self, which: str) -> bool:
        """Return whether the next call of a kind is not skipped, and count it if it is."""
        left = self._skips.get(which, 0)
        if left > 0:
            self._skips[which] = left - 1
        return left <= 0


class PostgresRenewer(SqlRenewer):
    """Renews with one statement, unless it must also check prefetched tasks."""

    def __init__(
        self,
        transactor: PostgresTransactor[SqlTables],
        clock: Callable[[], float],
        statement: str,
        arguments: Callable[[str, float], list[Sent]],
        unanswered: dict[str, int],
    ) -> None:
        """`unanswered` survives: the caller makes a new renewer after each failure."""
        super().__init__(transactor, clock)
        self._unanswered = unanswered
        self._caller = transactor
        self._statement = statement
        self._arguments = arguments

    def renew(self, worker: str, lease: float) -> RenewAnswer:
        """Renew all leases of a worker for `lease` seconds.

        A connection that says nothing is given up while a new one may still be in time.
        """
        before = self._unanswered.get(worker, 0)
        self._caller.hurry(lease * _HEARD_WITHIN * 2**before)
        self._unanswered[worker] = min(before + 1, _MOST_DOUBLINGS)
        answer = self._renewed(worker, lease)
        del self._unanswered[worker]
        return answer

    def _renewed(self, worker: str, lease: float) -> RenewAnswer:
        row = self._caller.call(self._statement, partial(self._arguments, worker, lease))
        if row is None or row[0] is not None:
            return super().renew(worker, lease)
        _, _, alive, cancelled, interrupted = row
        return RenewAnswer(
            alive=alive, cancelled=tuple(cancelled or ()), interrupted=tuple(interrupted or ())
        )


class _Submit(NamedTuple):
    """A submit that the server may do itself."""

    pool: str
    batches: Sequence[Batch]
    now: float | None
    in_full: bool = False
    """Whether the function for one task has refused it."""


class _Step(NamedTuple):
    """A settle-and-lease that the server may do itself."""

    pool: str
    step: SettleAndLease
    answer: Callable[[SettleAndLeaseAnswer], Any]
    in_full: bool = False
    """Whether the function for simple pools has refused it, or must not be asked."""
    is_behind: bool = False
    """Whether it was sent behind another one, whose answer it does not know."""


_IN_FULL = object()
"""The answer to a call that a function for simple cases has refused."""


def _simply(pool: str) -> str:
    """Return by which name calls of a simple pool are counted when they are refused."""
    return f"simply {pool}"
