"""Histories: lists of store verbs, carried out one after another, recorded, replayed, compared.

A history is data. Each verb carries its own moment and entropy, so it gives the same answers on
every store, and a part of it can be left out and the rest replayed: that is how one shrinks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.control import Command
from millpond.core.lease import LeaseRequest
from millpond.core.settle import Settlement
from millpond.errors import IllegalTransition, MillpondError
from millpond.store.protocol import Batch
from millpond.testing.simulation.invariants import Judge
from millpond.testing.simulation.trace_model import Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from millpond.store.protocol import Store


class Verb(msgspec.Struct, frozen=True):
    """One call of a store: its name, what is asked, and the moment and entropy it acts with."""

    name: str
    asked: Any
    now: float
    entropy: int


class Raised(msgspec.Struct, frozen=True):
    """The answer of a verb that raised: errors are part of a store's behaviour."""

    code: str


async def carry_out(store: Store, verb: Verb) -> Any:  # noqa: ANN401 - each verb has its own answer
    """Carry out one verb on a store and return its answer."""
    moment: dict[str, Any] = {"now": verb.now, "entropy": verb.entropy}
    arguments = verb.asked
    match verb.name:
        case "submit":
            return await store.submit(arguments, **moment)
        case "lease":
            return await store.lease(arguments, **moment)
        case "renew":
            return await store.renew(*arguments, **moment)
        case "settle":
            return await store.settle(arguments[0], then=arguments[1], **moment)
        case "recover":
            limit, generation = arguments if isinstance(arguments, tuple) else (arguments, None)
            return await store.recover(limit=limit, generation=generation, **moment)
        case _:
            return await store.control(arguments, **moment)


class Stage:
    """A store under watch: every verb is recorded and judged before its answer is returned."""

    def __init__(self, store: Store, judge: Judge | None = None) -> None:
        self.store = store
        self.judge = judge or Judge()
        self.history: list[Verb] = []
        self.steps: list[Step] = []
        self.error: MillpondError | None = None
        """The error whose code was the last answer that was one."""
        self._seen = 0

    async def do(self, verb: Verb) -> Any:  # noqa: ANN401 - each verb has its own answer
        """Carry out one verb, judge what it did, return its answer or the code of its error."""
        self.history.append(verb)
        try:
            answer = await carry_out(self.store, verb)
        except IllegalTransition:
            raise
        except MillpondError as error:
            self.error, answer = error, Raised(error.code)
        page = await self.store.view.audit(after=self._seen, limit=1_000_000)
        self._seen = page.next
        step = Step(
            verb=verb.name, asked=verb.asked, answer=answer, records=page.records, now=verb.now
        )
        self.steps.append(step)
        if not isinstance(answer, Raised):
            self.judge.see(step, await self.store.view.workers())
        return answer


async def replay(store: Store, history: Iterable[Verb], *, judged: bool = True) -> list[Step]:
    """Carry out a history on a fresh store and return its steps."""
    stage = Stage(store, None if judged else _Blind())
    for verb in history:
        await stage.do(verb)
    return stage.steps


class _Blind(Judge):
    """A judge that does not look: for replays that only compare."""

    def see(self, step: Step, known_workers: frozenset[str]) -> None:
        """Object to nothing."""


_ASKED: dict[str, Any] = {
    "submit": tuple[Batch, ...],
    "lease": LeaseRequest,
    "renew": tuple[str, float],
    "settle": tuple[tuple[Settlement, ...], LeaseRequest | None],
    "recover": int | tuple[int, int],
    "control": Command,
}


def save(history: Iterable[Verb]) -> bytes:
    """Return a history as JSON, one verb a line: a found one is kept and replayed for good."""
    return b"\n".join(msgspec.json.encode(verb) for verb in history) + b"\n"


def load(saved: bytes) -> list[Verb]:
    """Return the history that `save` wrote."""
    rough = (msgspec.json.decode(line, type=Verb) for line in saved.splitlines() if line)
    return [as_asked(verb) for verb in rough]


def as_asked(verb: Verb) -> Verb:
    """Return a verb that was read from JSON, with what it asks as the store takes it."""
    return msgspec.structs.replace(verb, asked=msgspec.convert(verb.asked, _ASKED[verb.name]))


_HINTS = frozenset({"drained", "wakes", "next_at", "ended"})
_NAMED = frozenset({"task", "tasks", "token", "id", "cause", "run", "runs", "finished_runs", "seq"})


def _hint(field: str, value: object) -> bool:
    """Return whether a field of an answer is a hint; what ended of a run is a count, and none."""
    return field in _HINTS and not isinstance(value, dict)


def trace(steps: Sequence[Step]) -> list[Any]:
    """Return what a history did, with ids, tokens and sequences named by first appearance.

    Wake-ups and reports of ended tasks are hints and are left out: a store may give more of them
    than another, never fewer than keep its workers awake (I11).
    """
    names: dict[tuple[str, object], int] = {}

    def named(field: str, value: Any) -> Any:  # noqa: ANN401 - builtins of any shape
        if isinstance(value, dict):
            return {key: named(key, item) for key, item in value.items() if not _hint(key, item)}
        if isinstance(value, (list, tuple)):
            return [named(field, item) for item in value]
        if isinstance(value, int) and not isinstance(value, bool) and field in _NAMED and value:
            kind = "seq" if field == "seq" else "token" if field == "token" else "id"
            return f"{kind}-{names.setdefault((kind, value), len(names))}"
        return value

    answer = [(s.verb, s.answer, s.records) for s in steps]
    # Admissions that are made when they are asked for are a list like any other.
    return [named("", msgspec.to_builtins(entry, enc_hook=list)) for entry in answer]
