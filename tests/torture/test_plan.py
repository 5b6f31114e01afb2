"""Plan and fault schedules: all from one seed, and enough of everything."""

import random
from collections import Counter

from verify.torture.fault_schedule import FaultKind, ProcessFaults, StoreFaults
from verify.torture.plan import Behaviour, Plan, Settings, Web, spread

SETTINGS = Settings(url="", home="", seed=7)


def test_a_seed_gives_the_same_plan() -> None:
    """The settings determine all submitted items and their submitters."""
    again, other = Plan(SETTINGS), Plan(Settings(url="", home="", seed=8))
    assert Plan(SETTINGS).items == again.items
    assert Plan(SETTINGS).webs == again.webs
    assert again.items != other.items


def test_a_whole_plan_has_enough_of_everything() -> None:
    """20,000 tasks: every pool, every mood, delays, callbacks, threads, two submitters of a key."""
    plan = Plan(SETTINGS)
    assert 20_000 <= len(plan.items) + sum(web.pages for web in plan.webs)
    pools = Counter(item.pool for item in plan.items)
    assert 9 == len(pools)
    assert all(count >= 900 for pool, count in pools.items() if pool != "poison")
    assert set(Behaviour) == {item.behaviour for item in plan.items}
    for has in (
        "delay",
        "has_callback",
        "in_thread",
        "awaited",
        "key",
        "idempotency_key",
        "attempts",
    ):
        assert 100 <= sum(bool(getattr(item, has)) for item in plan.items), has
    assert all((len(item.submitters) == 2) == (item.pool == "twice") for item in plan.items)


def test_every_item_is_submitted_and_only_by_its_submitters() -> None:
    """The parts of the submitters are the plan."""
    plan = Plan(SETTINGS)
    submitted = Counter(
        item.n
        for number in range(SETTINGS.submitters)
        for items in plan.of(number).values()
        for item in items
    )
    assert {item.n: len(item.submitters) for item in plan.items} == submitted
    assert plan.webs == sorted(
        (web for number in range(SETTINGS.submitters) for web in plan.webs_of(number)),
        key=plan.webs.index,
    )


def test_the_first_page_of_a_web_leads_to_all_others() -> None:
    """So it is known how many pages a run must visit."""
    web = Web(name="web-0", submitter=0, pages=50, seed=7)
    seen, waiting = {0}, [0]
    while waiting:
        for link in web.links(waiting.pop()):
            if link not in seen:
                seen.add(link)
                waiting.append(link)
    assert set(range(50)) == seen


def test_bursts_keep_the_order_and_the_time() -> None:
    """Every item is in one burst, in order, and the bursts are spread over the time."""
    items = Plan(SETTINGS).of(0)["fair"]
    bursts = spread(items, 100.0, random.Random(1))
    assert items == [item for _, burst in bursts for item in burst]
    moments = [moment for moment, _ in bursts]
    assert moments == sorted(moments)
    assert 0.0 == moments[0] < moments[-1] < 100.0


def faults(seed: int) -> list[tuple[str, str, int, float]]:
    """Return what is done in two minutes to a fleet that is always up."""
    process_faults = ProcessFaults(Settings(url="", home="", seed=seed))
    moving = [("worker", n) for n in range(4)] + [("submitter", n) for n in range(3)]
    moving.append(("pulse", 0))
    return [
        (str(fault.how), fault.role, fault.number, fault.seconds)
        for tick in range(12_000)
        for fault in process_faults.due(tick / 100, moving, moving, 0)
    ]


def test_a_seed_gives_the_same_blows() -> None:
    """Another seed, other blows."""
    assert faults(1) == faults(1) != faults(2)


def test_all_roles_but_the_pulse_get_every_fault() -> None:
    """Workers most of all; a freeze is longer than a lease."""
    given = [fault for seed in range(5) for fault in faults(seed)]
    assert {str(how) for how in FaultKind} == {how for how, *_ in given}
    hurt = Counter((role, number) for _, role, number, _ in given)
    assert {("worker", n) for n in range(4)} | {("submitter", n) for n in range(3)} == set(hurt)
    assert hurt["worker", 0] > 2 * hurt["submitter", 0]
    frozen = [seconds for how, _, _, seconds in given if "freeze" in how]
    assert min(frozen) > SETTINGS.lease


def test_at_most_two_processes_are_frozen_at_a_time() -> None:
    """With two frozen, kills go on and freezes do not."""
    process_faults = ProcessFaults(SETTINGS)
    moving = [("worker", 0), ("worker", 1)]
    given = [
        fault
        for tick in range(12_000)
        for fault in process_faults.due(tick / 100, moving, moving, 2)
    ]
    assert given
    assert not [fault for fault in given if fault.seconds]


def storms(seed: int) -> tuple[int, list[float]]:
    """Return how often a connection is cut in four minutes, and how long a server is away."""
    settings = Settings(url="", home="", seed=seed, cut_every=3.0, crashes=3)
    store_faults = StoreFaults(settings)
    ticks = [tick / 100 for tick in range(24_000)]
    cuts = sum(store_faults.cut(tick) for tick in ticks)
    return cuts, [gone for tick in ticks if (gone := store_faults.crash(tick)) is not None]


def test_a_seed_gives_the_same_store_faults() -> None:
    """Cuts all the while, as many crashes as were ordered, and none for as long as a lease."""
    assert storms(1) == storms(1) != storms(2)
    cuts, gone = storms(3)
    assert 60 < cuts < 110
    assert 3 == len(gone)
    assert max(gone) < SETTINGS.lease


def test_without_settings_there_are_no_store_faults() -> None:
    """A file cannot crash."""
    store_faults = StoreFaults(SETTINGS)
    assert not store_faults.cut(1000.0)
    assert store_faults.crash(1000.0) is None


def test_half_of_the_workers_are_left_at_work() -> None:
    """With fewer, only submitters are hit."""
    process_faults = ProcessFaults(SETTINGS)
    moving = [("worker", 0), ("submitter", 0), ("submitter", 1)]
    given = [
        fault for tick in range(12_000) for fault in process_faults.due(tick / 100, moving, (), 0)
    ]
    assert {"submitter"} == {fault.role for fault in given}


def test_those_that_start_slowly_are_let_come_to_work() -> None:
    """No fault while no process is at work; a starting process is hit sometimes."""
    process_faults = ProcessFaults(SETTINGS)
    starting, at_work = [("worker", 0), ("worker", 1)], [("worker", 2), ("worker", 3)]
    assert not [
        fault for tick in range(6_000) for fault in process_faults.due(tick / 100, (), starting, 0)
    ]
    given = [
        fault
        for tick in range(6_000, 60_000)
        for fault in process_faults.due(tick / 100, at_work, starting, 0)
    ]
    early = [fault for fault in given if fault.number < 2]
    assert 0 < len(early) < len(given) / 5
    assert not [fault for fault in early if fault.seconds]
