"""The Nth call of the database fails, for every N until nothing fails any more.

Whatever fails and however: the caller gets an answer and the change is stored, or a StoreError and
it is not, or OutcomeUnknown. Repeating the call once the fault is gone is always right.
`make faults` tries every error in every way; the suite takes them in turns.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator
from typing import Any, Self

import pytest
from tests.store.sqlite.scenes import NOW, SCENES, SUBMITS, Stage, rows_of
from verify.servers.sqlite_faults import CODES, HOWS, How, Plan, may_have_happened
from verify.servers.sqlite_files import fresh_file

from millpond.errors import OutcomeUnknown, StaleRevision, StoreError
from millpond.store.sqlite import SqliteStore
from millpond.store.sqlite.connect import connect
from millpond.store.sqlite.consistency import check_tables
from millpond.testing.conformance.lab import WORKER, Lab

ALL = os.environ.get("FAULTS") == "all"
WAYS: list[tuple[How, str]] = [(how, name) for name in CODES for how in HOWS]
LASTING = 10_000


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """The world of all scenes, where a copy costs little."""
    with fresh_file() as path:
        yield Stage(path.parent)


class Trial:
    """One scene on a fresh copy of the world, with one fault."""

    def __init__(self, stage: Stage, scene: str, *, inline: bool) -> None:
        self.stage, self.scene, self.inline = stage, scene, inline
        self.plan = Plan()

    async def __aenter__(self) -> Self:
        path = self.stage.fresh()
        self.store = SqliteStore(
            path, durability="normal", inline=self.inline, factory=self.plan.factory
        )
        # Whatever is kept in memory between two verbs is there when the fault comes.
        await Lab(self.store, now=NOW - 1).renew(WORKER, 1e6)
        self.eye = connect(path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.plan.disarm()
        self.eye.close()
        await self.store.close()

    def rows(self) -> dict[str, list[Any]]:
        """What others see."""
        return rows_of(self.eye)

    async def outcome(self) -> tuple[Any, list[str]]:
        """Return the answer or error of the scene and the calls that failed; remove the fault."""
        result: Any = None
        try:
            result = await self.act()
        except StoreError as error:
            result = error
        failed = self.plan.failed
        self.plan.disarm()
        return result, failed

    async def act(self) -> Any:
        """Play the scene."""
        return await SCENES[self.scene](self.stage.lab(self.store), self.stage.world)


async def clean(stage: Stage, scene: str) -> tuple[Any, dict[str, Any], dict[str, Any], int]:
    """What a scene answers, the rows before and after it, and how many calls it takes."""
    async with Trial(stage, scene, inline=True) as trial:
        before = trial.rows()
        trial.plan.arm(0, times=0)
        answer = await trial.act()
        calls = trial.plan.calls
        assert [] == check_tables(trial.eye)
        return answer, before, trial.rows(), calls


async def fail_every_call(
    stage: Stage, scene: str, ways: Iterator[tuple[How, str]], *, inline: bool, times: int = 1
) -> None:
    """Fail each call in turn, in the next of `ways`, until nothing was there to fail."""
    answer, before, after, calls = await clean(stage, scene)
    assert calls >= 5, "a transaction takes more than that"
    for number in itertools.count(1):
        how, name = next(ways)
        async with Trial(stage, scene, inline=inline) as trial:
            trial.plan.arm(number, how=how, name=name, times=times)
            result, failed = await trial.outcome()
            found = trial.rows()
            about = f"call {number} of {scene}: {name} {how} {failed}: {result!r}"
            if isinstance(result, OutcomeUnknown):
                assert found in (before, after), about
            elif isinstance(result, StoreError):
                assert found == before, about
                assert result.code != StoreError.code, about
                assert str(trial.store._path) in str(result), about
            else:
                assert (result, found) == (answer, after), about
            await repeat(trial, stored=found == after != before, after=after, about=about)
            if not failed:
                return


async def repeat(trial: Trial, *, stored: bool, after: dict[str, Any], about: str) -> None:
    """Do it once more, now that the fault is gone."""
    if not stored:
        await trial.act()
        assert after == trial.rows(), about
        return
    with contextlib.suppress(StaleRevision):  # it is in force already
        await trial.act()
    assert [] == check_tables(trial.eye), about
    if trial.scene in SUBMITS:
        assert len(after["millpond_task"]) == len(trial.rows()["millpond_task"]), about


def in_turns(scene: str) -> Iterator[tuple[How, str]]:
    """Every way after another, beginning elsewhere for each scene."""
    begin = list(SCENES).index(scene)
    return itertools.islice(itertools.cycle(WAYS), begin, None)


A_FEW = ("submit a run", "lease of a fair pool", "settle and lease", "renew", "declare")


@pytest.mark.rows("TRAP-10", "HN-21", "DE-T24")
@pytest.mark.parametrize("scene", SCENES)
async def test_a_call_that_fails_leaves_all_or_nothing(stage: Stage, scene: str) -> None:
    """Here nothing is tried again."""
    if not ALL:
        await fail_every_call(stage, scene, in_turns(scene), inline=True)
        return
    for way in WAYS:
        await fail_every_call(stage, scene, itertools.repeat(way), inline=True)


@pytest.mark.parametrize("scene", SCENES if ALL else A_FEW)
@pytest.mark.real_loop
async def test_a_writer_leaves_all_or_nothing_too(stage: Stage, scene: str) -> None:
    """It tries again where that may help."""
    for begin in range(3) if ALL else (0,):
        ways = itertools.islice(in_turns(scene), begin, None)
        await fail_every_call(stage, scene, ways, inline=False)


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "writer"])
@pytest.mark.parametrize("scene", SCENES if ALL else A_FEW[:3])
@pytest.mark.real_loop
async def test_calls_that_fail_from_then_on_leave_all_or_nothing(
    stage: Stage, scene: str, inline: bool
) -> None:
    """A disk that does not come back is an error, and not an endless try."""
    ways = [(how, name) for how, name in WAYS if name != "SQLITE_BUSY"]
    await fail_every_call(stage, scene, itertools.cycle(ways), inline=inline, times=LASTING)


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "writer"])
@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.real_loop
async def test_a_commit_whose_answer_is_lost_has_an_unknown_outcome(
    stage: Stage, scene: str, inline: bool
) -> None:
    """It is stored, and the store repeats nothing by itself."""
    _, before, after, _ = await clean(stage, scene)
    for name in CODES:
        if not may_have_happened("COMMIT", name):
            continue
        async with Trial(stage, scene, inline=inline) as trial:
            trial.plan.arm(only="COMMIT", how="after", name=name)
            result, failed = await trial.outcome()
            assert ["COMMIT"] == failed
            assert isinstance(result, OutcomeUnknown)
            assert after == trial.rows()
            await repeat(trial, stored=after != before, after=after, about=name)
