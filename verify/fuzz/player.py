"""Plays a generated history: submits, leases, settles, operators' orders, dying workers, time.

It makes up one verb after another and has each carried out, by one store or by several that must
agree. What it makes up depends on the answers only as far as a worker's would: whatever it was
given, it settles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.core import control as orders
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.run import NewRun, OnError
from millpond.core.settle import Settled, Settlement
from millpond.core.task import CALLBACKS, NO_FINGERPRINT, Call, Dedupe, NewTask
from millpond.core.ticks import rounded
from millpond.store.protocol import Batch
from millpond.testing.simulation.history import Raised, Verb
from verify.fuzz.kinds import BUDGETS, POOL, is_fair, sharing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from millpond.core.handler_signals import Scope
    from millpond.core.spec import PoolSpec
    from millpond.store.protocol import LeaseAnswer
    from verify.fuzz.streams import Streams

    Do = Callable[[Verb], Awaitable[Any]]

_ACTS = {
    "submit": 12.0,
    "lease": 10.0,
    "settle": 6.0,
    "settle and lease": 24.0,
    "take from another pool": 5.0,
    "give back claims": 1.0,
    "renew": 1.0,
    "recover": 1.0,
    "cancel": 0.7,
    "redrive": 0.7,
    "update": 0.7,
    "pause": 0.5,
    "resume": 1.0,
    "hold": 0.4,
    "resize": 0.7,
    "resize a budget": 0.5,
    "purge": 0.2,
    "prune": 0.3,
    "worker dies": 0.5,
    "worker leaves": 0.3,
    "lost answer": 0.3,
    "progress": 0.3,
}
"""What may happen next, and how often compared with the others."""

_SUBMITS = ("submit", "lease", "settle and lease", "take from another pool")
_HOW_MUCH = (0.0, 0.3, 1.0, 1.0, 4.0)
_KNOWN = 200


class Hands:
    """What one worker has: it knows its name, what it runs and what it holds ahead."""

    def __init__(self, name: str, owner: str | None, functions: tuple[str, ...] | None) -> None:
        self.name = name
        self.owner = owner
        self.functions = functions
        self.running: list[Leased] = []
        self.ahead: list[Leased] = []
        self.elsewhere: list[Leased] = []
        """What it runs of the pools with which this one shares a budget."""
        self.restarts = 0
        """How often it has died and come back under another name."""

    @property
    def id(self) -> str:
        """Its name in this life."""
        return f"{self.name}-{self.restarts}"

    def forget(self) -> None:
        """Have nothing any more."""
        self.running, self.ahead, self.elsewhere = [], [], []

    def take_in(self, answer: LeaseAnswer) -> None:
        """Note what it has now."""
        started = {one.fence for one in answer.leased}
        self.running += answer.leased
        self.ahead = [one for one in self.ahead if one.fence not in started]
        self.ahead += answer.claimed


class Player:
    """Makes up the verbs of one history."""

    def __init__(self, streams: Streams, spec: PoolSpec, do: Do, *, number: int = 0) -> None:
        self.streams = streams
        self.spec = spec
        self.now = 1000.0
        self.number = number
        self._do = do
        self._next_id = (number + 1) << 44
        self._known: list[int] = []
        """Ids of tasks that were submitted lately."""
        self._runs: list[int] = []
        few = (9, 9, 3, 25) if not is_fair(spec) else (25, 60, 9, 4)
        self._keys = [f"k{n}" for n in range(streams.pick("how many keys", few))]
        self._batch = streams.pick("largest batch", (1, 3, 25, 25))
        self._lease = streams.pick("lease", (1e6, 1e6, 30.0, 4.0))
        self._steps = streams.pick("time", ((0.0, 0.001, 0.5), (0.0, 0.1), (0.0, 0.7, 5.0)))
        self._weights = [
            weight * (1.0 if act in _SUBMITS else streams.pick(f"{act}, how often", _HOW_MUCH))
            for act, weight in _ACTS.items()
        ]
        self._in_order = streams.chance("claims are started in order", 0.5)
        self._in_runs = streams.chance("many are of runs", 0.4)
        self._keyed = streams.chance("all have idempotency keys", 0.4)
        self._troubled = streams.chance("many attempts do not complete", 0.5)
        self._delayed = streams.chance("many are delayed", 0.3)
        self._mixed = streams.chance("plain tasks, closures and callbacks share few keys", 0.3)
        self._all_plain = False
        # The first knows every function, the second not all, the third may run closures.
        self.hands = [
            Hands(f"one-{number}", None, None),
            Hands(f"two-{number}", None, ("more", "work")),
            Hands(f"three-{number}", f"process-{number}", None),
        ]

    async def do(self, name: str, request: Any) -> Any:  # noqa: ANN401 - each verb has its own answer
        """Have a verb carried out."""
        return await self._do(
            Verb(name, request, self.now, self.streams["entropy"].getrandbits(64))
        )

    async def begin(self, *, declare: bool = True) -> None:
        """Declare the pools and let the workers join."""
        if declare:
            for budget in BUDGETS if self.spec.budgets else ():
                await self.do("control", orders.DeclareBudget(budget))
            for other in sharing(self.spec):
                await self.do("control", orders.Declare(other))
            await self.do("control", orders.Declare(self.spec))
        for hands in self.hands:
            await self._join(hands)

    async def _join(self, hands: Hands) -> None:
        order = orders.Register(hands.id, self._lease, hands.owner, hands.functions)
        await self.do("control", order)

    async def act(self) -> None:
        """Let a little time pass, and do something."""
        self.now = rounded(self.now + self.streams.pick("now", self._steps))
        self.now += self.streams.seldom("a while passes", 0.0, (3.0, 40.0))
        act = self.streams["act"].choices(list(_ACTS), self._weights)[0]
        hands = self.streams["worker"].choices(self.hands, (6, 2, 1))[0]
        match act:
            case "submit":
                await self.submit()
            case "lease":
                await self.lease(hands)
            case "settle":
                await self.settle(hands, then=False)
            case "settle and lease":
                await self.settle(hands, then=True)
            case "take from another pool":
                await self.take_from_another(hands)
            case _:
                await self.something_odd(act, hands)

    # Submits

    async def submit(self) -> None:
        """Submit a few tasks, now and then as the seed of a run."""
        streams = self.streams
        run = self._run()
        count = streams["batch"].randint(1, self._batch)
        known = streams.pick("known run", self._runs[-3:] or [None])
        joins = streams.chance("joins a run", 0.3 if self._in_runs else 0.02)
        of_run = run.id if run is not None else known if joins else None
        # What the server stores by itself comes in calls of its own: one other task is enough, and
        # the verbs store all of a call.
        self._all_plain = streams.chance("a batch of plain tasks", 0.5)
        tasks = tuple(self.task(of_run) for _ in range(count))
        self._runs += [] if run is None else [run.id]
        again = streams.seldom("batch.again", False, (True,))
        answer = await self.do("submit", (Batch(tasks=tasks, run=run, again=again),))
        if not isinstance(answer, Raised):
            self._known += [one.task for one in answer.batches[0].admissions]
            del self._known[:-_KNOWN]

    def _run(self) -> NewRun | None:
        streams = self.streams
        self._next_id += 1
        run = NewRun(
            id=self._next_id,
            pool=POOL,
            on_error=streams.pick("run.on_error", tuple(OnError)),
            max_tasks=streams.pick("run.max_tasks", (None, None, 8)),
        )
        seldom = streams.seldom("run", None, (run,))
        return run if streams.chance("opens a run", 0.5 if self._in_runs else 0.0) else seldom

    def task(self, run: int | None = None) -> NewTask:
        """Draw a task; every field is drawn, whether or not the pool uses the field."""
        streams = self.streams
        self._next_id += streams["id"].randint(1, 1 << 20)
        keys = self._keys[:4] if self._mixed else self._keys
        key = streams.seldom("key is absent", streams.pick("key", keys), (None,))
        return NewTask(
            id=self._next_id,
            pool=POOL,
            call=Call(
                streams.seldom("function", "work", ("more", "other")),
                streams.pick("payload", (b"x", b"y")),
            ),
            key=key,
            share=self._share(key),
            labels=streams.seldom("labels", {}, ({"a": "b"},)),
            priority=streams["priority"].randint(-1, 3),
            weight=streams["weight"].randint(1, 3),
            delay=self._delay(),
            run_at=streams.seldom("run_at", None, (self.now - 5.0, self.now + 1.0)),
            expires_in=streams.seldom("expires_in", None, (0.4, 3.0)),
            timeout=streams.seldom("timeout", None, (5.0,)),
            attempts=streams.pick("attempts", (1, 3)),
            idempotency_key=self._idempotency_key(),
            fingerprint=streams.seldom("fingerprint", 0, (1, NO_FINGERPRINT)),
            dedupe=streams.seldom(
                "dedupe of waiting",
                streams.pick("dedupe", tuple(Dedupe)[:3]),
                (Dedupe.WAITING, Dedupe.REPLACE),
            ),
            on_complete=self._on_complete(),
            owner=None if self.spec.strict else self._owner(),
            run=run,
        )

    def _idempotency_key(self) -> str | None:
        """Draw a key: of some histories all tasks have one, and now and then it is known."""
        few = self.streams.seldom("idempotency_key", None, ("i1", "i2", "i3"))
        many = f"u{self.streams['many keys'].randint(1, 60)}"
        return many if self._keyed else few

    def _delay(self) -> float:
        few = self.streams.seldom("delay", 0.0, (0.5, 2.0))
        many = self.streams.pick("many delays", (0.0, 0.0, 0.001, 0.5))
        return many if self._delayed else few

    def _share(self, key: str | None) -> str | None:
        few = self.streams.seldom("share", key, ("s", "k1", None))
        # The place of a share that was never served is the one that depends on when it joins.
        many = self.streams.pick("many shares", (key, None, *(f"s{n}" for n in range(30))))
        return many if self._mixed else few

    def _on_complete(self) -> Call | None:
        few = self.streams.seldom("on_complete", None, (Call("work"),))
        many = self.streams.pick("many callbacks", (None, None, Call("work")))
        return (None if self._all_plain else many) if self._mixed else few

    def _owner(self) -> str | None:
        process = f"process-{self.number}"
        few = self.streams.seldom("owner", None, (process,))
        many = self.streams.pick("many closures", (None, None, None, process))
        return (None if self._all_plain else many) if self._mixed else few

    # Leases and settlements

    async def lease(self, hands: Hands) -> None:
        """Let a worker ask for some tasks."""
        answer = await self.do("lease", self.ask(hands))
        if not isinstance(answer, Raised):
            await self._given(hands, answer)

    def ask(self, hands: Hands) -> LeaseRequest:
        """Ask for some tasks."""
        want = self.streams.seldom("want", self.streams.pick("usual want", (7, 2)), (0, 1, 3, 20))
        room = self.spec.prefetch - len(hands.ahead)
        ahead = self.streams.seldom("ahead", max(room, 0), (0, 1))
        return LeaseRequest(pool=POOL, worker=hands.id, want=want, ahead=min(ahead, max(room, 0)))

    async def _given(self, hands: Hands, answer: LeaseAnswer) -> None:
        if answer.fenced:
            await self._comes_back(hands)
        else:
            hands.take_in(answer)

    async def _comes_back(self, hands: Hands) -> None:
        hands.restarts += 1
        hands.forget()
        await self._join(hands)

    async def settle(self, hands: Hands, *, then: bool) -> None:
        """End some of what a worker runs, mostly well; in the slots it may start its claims."""
        settlements = self._settlements(hands)
        ask = self.ask(hands)
        if not settlements:
            return
        answer = await self.do("settle", (tuple(settlements), ask if then else None))
        if isinstance(answer, Raised):
            return
        pairs = zip(settlements, answer.started, strict=False)
        lost = {one.successor for one, started in pairs if started is Settled.STALE}
        hands.running = [one for one in hands.running if one.fence not in lost]
        if answer.lease is not None:
            await self._given(hands, answer.lease)

    def _settlements(self, hands: Hands) -> list[Settlement]:
        streams, running, ahead = self.streams, hands.running, hands.ahead
        in_order = self._in_order and streams.chance("in order", 0.9)
        if streams.chance("ends are shuffled", 0.5) and not in_order:
            streams["shuffle"].shuffle(running)
        some = running[: streams["how many end"].randint(0, len(running))]
        ends = some if streams.chance("some end", 0.6) else running[:]
        more = 0
        if in_order and ahead:
            # Every slot that comes free is taken again at once.
            ends = running[: len(ahead)]
            more = streams["more ends"].randint(0, len(ahead) - len(ends)) + 1
        settlements = []
        queue = list(ends)
        for leased in queue:
            running.remove(leased)
            follows = ahead and (in_order or streams.chance("successor", 0.9))
            successor = ahead.pop(0) if follows else None
            settlements.append(self._settlement(leased, successor))
            if successor is not None:
                running.append(successor)
                more -= 1
                if more > 0 if in_order else streams.chance("successor ends, too", 0.5):
                    queue.append(successor)
        return settlements

    def _settlement(self, leased: Leased, successor: Leased | None) -> Settlement:
        """Make up how an attempt ends; every field is drawn."""
        streams = self.streams
        odd = (
            Transition.RETRY,
            Transition.FAIL,
            Transition.RELEASE,
            Transition.CANCEL,
            Transition.RETRY,
        )
        event = streams.seldom("event", Transition.COMPLETE, odd)
        troubled = streams.pick("troubled event", (Transition.COMPLETE,) * 5 + odd[:3])
        event = troubled if self._troubled else event
        delay = streams.pick("retry after", (0.0, 1.0, 4.0))
        spend = streams.seldom("spend", event is not Transition.RELEASE, (False,))
        scopes: tuple[Scope, ...] = ("key", "pool")
        hold = streams.seldom("throttled", None, scopes)
        hold_for = streams.pick("throttled for", (0.3, 2.0))
        used = streams.seldom("used weight", None, (0, leased.weight, 2 * leased.weight))
        parked = streams.seldom("parked", False, (True,))
        result = streams.pick("result", (b"0", b"0", b"0", b"1", None))
        follow_up = self.task(leased.run)
        follow_ups = streams.seldom("follow-ups", (), ((follow_up,),))
        completed = event is Transition.COMPLETE
        return Settlement(
            fence=leased.fence,
            event=event,
            spend=spend,
            delay=delay if event is Transition.RETRY else 0.0,
            result=result if completed else None,
            error=None if completed else b"e",
            parked=parked and event is Transition.RELEASE,
            follow_ups=follow_ups if completed else (),
            successor=None if successor is None else successor.fence,
            weight=used,
            hold=hold if event in (Transition.RETRY, Transition.FAIL) else None,
            hold_for=hold_for
            if hold is not None and event in (Transition.RETRY, Transition.FAIL)
            else 0.0,
        )

    async def take_from_another(self, hands: Hands) -> None:
        """Start something of another pool with which this one shares a budget, and end the rest."""
        streams = self.streams
        weight, keep = streams["other weight"].randint(1, 9), streams["other kept"].random()
        want = streams["other want"].randint(1, 5)
        which = streams["other pool"].random()
        if not self.spec.budgets:
            return
        pool = self.spec.budgets[int(which * len(self.spec.budgets))]
        self._next_id += 1
        task = NewTask(id=self._next_id, pool=pool, call=Call("work", b"x"), weight=weight)
        await self.do("submit", (Batch(tasks=(task,)),))
        ends = [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in hands.elsewhere]
        kept = int(keep * (len(ends) + 1))
        if ends[kept:]:
            await self.do("settle", (tuple(ends[kept:]), None))
        hands.elsewhere = hands.elsewhere[:kept]
        answer = await self.do("lease", LeaseRequest(pool=pool, worker=hands.id, want=want))
        if not isinstance(answer, Raised):
            hands.elsewhere += answer.leased

    # What the server leaves to the verbs

    async def something_odd(self, act: str, hands: Hands) -> None:
        """Do what happens now and then."""
        match act:
            case "give back claims":
                await self._give_back(hands)
            case "renew":
                answer = await self.do("renew", (hands.id, self._lease))
                if not isinstance(answer, Raised) and not answer.alive:
                    await self._comes_back(hands)
            case "recover":
                await self.do("recover", 100)
            case "worker dies":
                await self.do("control", orders.DeclareDead(hands.id))
                await self._comes_back(hands)
            case "worker leaves":
                await self.do("control", orders.Deregister(hands.id))
                await self._comes_back(hands)
            case "lost answer":
                await self._loses_an_answer(hands)
            case _:
                await self.order(act, hands)

    async def _give_back(self, hands: Hands) -> None:
        given, hands.ahead = hands.ahead, []
        if given:
            ends = [
                Settlement(fence=one.fence, event=Transition.RELEASE, spend=False) for one in given
            ]
            await self.do("settle", (tuple(ends), None))

    async def _loses_an_answer(self, hands: Hands) -> None:
        """Lease without hearing the answer, and say which tasks have reached the worker."""
        await self.do("lease", self.ask(hands))
        known = [*hands.running, *hands.ahead, *hands.elsewhere]
        tasks = tuple(one.fence.task for one in known)
        await self.do("control", orders.Disown(hands.id, tasks))

    def _update(self, task: int) -> orders.Update:
        """Change something of a task, if it waits."""
        streams = self.streams
        return orders.Update(
            task=task,
            priority=streams.pick("update.priority", (None, -1, 0, 4)),
            labels=streams.pick("update.labels", (None, {"a": "c"})),
            delay=streams.pick("update.delay", (None, 0.0, 0.0, 2.0)),
            expires_in=streams.seldom("update.expires_in", None, (3.0,)),
            revision=streams.seldom("update.revision", None, (0, 1)),
        )

    async def order(self, act: str, hands: Hands) -> None:
        """Give an operator's order, or say something of a running attempt."""
        streams = self.streams
        unit = streams.pick("unit", (None, *self._units()))
        of_these = self._known or [1]
        some = tuple(streams.pick("which tasks", of_these) for _ in range(3))
        one = hands.running[0] if hands.running else None
        match act:
            case "cancel":
                whom = (
                    (one.fence.task,)
                    if one is not None and streams.chance("cancel one", 0.5)
                    else some
                )
                interrupt = streams.chance("interrupt", 0.3)
                await self.do("control", orders.Cancel(whom, interrupt=interrupt))
            case "redrive":
                await self.do("control", orders.Redrive(some))
            case "update":
                await self.do("control", self._update(some[0]))
            case "pause":
                await self.do("control", orders.Pause(POOL, unit))
            case "resume":
                await self.do("control", orders.Resume(POOL, unit))
            case "hold":
                seconds = streams.pick("hold for", (0.3, 2.0))
                await self.do("control", orders.Hold(POOL, seconds, unit))
            case "resize":
                most = min(9, self.spec.lanes or 9)
                limit = streams.pick("new limit", (*range(1, most + 1), None, 0))
                await self.do("control", orders.Resize(POOL, limit))
            case "resize a budget":
                if self.spec.budgets:
                    limit = streams.pick("new limit of a budget", (None, 0, 2, 8))
                    await self.do("control", orders.ResizeBudget(self.spec.budgets[0], limit))
            case "purge":
                await self.do("control", orders.Purge(POOL, unit))
            case "prune":
                before = (self.now - 2.0, self.now - 5.0)
                await self.do("control", orders.Prune(POOL, *before, 20))
            case _:
                if one is not None:
                    await self.do("control", orders.Progress(one.fence, 0.5, "half"))

    def _units(self) -> list[str]:
        if self.spec.lanes is not None:
            return [str(lane) for lane in range(self.spec.lanes)]
        return self._keys[:4]

    # The end

    async def leave(self) -> None:
        """Let every worker go; what it has is given back."""
        for hands in self.hands:
            await self.do("control", orders.Deregister(hands.id))
            hands.forget()

    async def settle_down(self, most: int = 600) -> bool:
        """Stop all trouble and let the workers finish; return whether nothing was left.

        As many rounds as a slow rate may need: two histories at once needed 65 and 98.
        """
        await self.do("control", orders.Resume(POOL))
        for unit in (*self._keys, *(str(lane) for lane in range(self.spec.lanes or 0))):
            await self.do("control", orders.Resume(POOL, unit))
        await self.do("control", orders.Resize(POOL, None))
        for budget in self.spec.budgets:
            await self.do("control", orders.ResizeBudget(budget))
        for hands in self.hands:
            await self.do("control", orders.Deregister(hands.id))
            hands.functions = None
            await self._comes_back(hands)
        for _ in range(most):
            self.now = rounded(self.now + 5.0)
            await self.do("recover", 1000)
            left = False
            for pool in (POOL, POOL + CALLBACKS, *self.spec.budgets):
                for hands in self.hands[:1] + self.hands[2:]:
                    left = await self._works_off(pool, hands) or left
            if not left:
                return True
        return False

    async def _works_off(self, pool: str, hands: Hands) -> bool:
        answer = await self.do("lease", LeaseRequest(pool=pool, worker=hands.id, want=50))
        if isinstance(answer, Raised) or not answer.leased:
            return not isinstance(answer, Raised) and answer.next_at is not None
        ends = [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in answer.leased]
        await self.do("settle", (tuple(ends), None))
        return True
