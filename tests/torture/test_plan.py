"""Plan and violence: all from one seed, and enough of everything."""

import random
from collections import Counter

from verify.torture.plan import Mood, Orders, Plan, Web, spread
from verify.torture.violence import How, Violence, Weather

ORDERS = Orders(url="", home="", seed=7)


def test_a_seed_gives_the_same_plan() -> None:
    """Whoever reads the orders knows what is submitted, and by whom."""
    again, other = Plan(ORDERS), Plan(Orders(url="", home="", seed=8))
    assert Plan(ORDERS).items == again.items
    assert Plan(ORDERS).webs == again.webs
    assert again.items != other.items


def test_a_whole_plan_has_enough_of_everything() -> None:
    """20,000 tasks: every pool, every mood, delays, callbacks, threads, two submitters of a key."""
    plan = Plan(ORDERS)
    assert 20_000 <= len(plan.items) + sum(web.pages for web in plan.webs)
    pools = Counter(item.pool for item in plan.items)
    assert 9 == len(pools)
    assert all(count >= 900 for pool, count in pools.items() if pool != "poison")
    assert set(Mood) == {item.mood for item in plan.items}
    for has in ("delay", "tells", "in_thread", "awaited", "key", "idempotency_key", "attempts"):
        assert 100 <= sum(bool(getattr(item, has)) for item in plan.items), has
    assert all((len(item.submitters) == 2) == (item.pool == "twice") for item in plan.items)


def test_every_item_is_submitted_and_only_by_its_submitters() -> None:
    """The parts of the submitters are the plan."""
    plan = Plan(ORDERS)
    submitted = Counter(
        item.n
        for number in range(ORDERS.submitters)
        for items in plan.of(number).values()
        for item in items
    )
    assert {item.n: len(item.submitters) for item in plan.items} == submitted
    assert plan.webs == sorted(
        (web for number in range(ORDERS.submitters) for web in plan.webs_of(number)),
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
    items = Plan(ORDERS).of(0)["fair"]
    bursts = spread(items, 100.0, random.Random(1))
    assert items == [item for _, burst in bursts for item in burst]
    moments = [moment for moment, _ in bursts]
    assert moments == sorted(moments)
    assert 0.0 == moments[0] < moments[-1] < 100.0


def blows(seed: int) -> list[tuple[str, str, int, float]]:
    """Return what is done in two minutes to a fleet that is always up."""
    violence = Violence(Orders(url="", home="", seed=seed))
    moving = [("worker", n) for n in range(4)] + [("submitter", n) for n in range(3)]
    moving.append(("pulse", 0))
    return [
        (str(blow.how), blow.role, blow.number, blow.seconds)
        for tick in range(12_000)
        for blow in violence.due(tick / 100, moving, moving, 0)
    ]


def test_a_seed_gives_the_same_blows() -> None:
    """Another seed, other blows."""
    assert blows(1) == blows(1) != blows(2)


def test_everybody_is_hurt_in_every_way_but_the_pulse() -> None:
    """Workers most of all; a freeze is longer than a lease."""
    given = [blow for seed in range(5) for blow in blows(seed)]
    assert {str(how) for how in How} == {how for how, *_ in given}
    hurt = Counter((role, number) for _, role, number, _ in given)
    assert {("worker", n) for n in range(4)} | {("submitter", n) for n in range(3)} == set(hurt)
    assert hurt["worker", 0] > 2 * hurt["submitter", 0]
    frozen = [seconds for how, _, _, seconds in given if "freeze" in how]
    assert min(frozen) > ORDERS.lease


def test_no_more_are_frozen_than_leaves_somebody_to_notice() -> None:
    """With two frozen, kills go on and freezes do not."""
    violence = Violence(ORDERS)
    moving = [("worker", 0), ("worker", 1)]
    given = [blow for tick in range(12_000) for blow in violence.due(tick / 100, moving, moving, 2)]
    assert given
    assert not [blow for blow in given if blow.seconds]


def storms(seed: int) -> tuple[int, list[float]]:
    """Return how often a connection is cut in four minutes, and how long a server is away."""
    orders = Orders(url="", home="", seed=seed, cut_every=3.0, crashes=3)
    weather = Weather(orders)
    ticks = [tick / 100 for tick in range(24_000)]
    cuts = sum(weather.cut(tick) for tick in ticks)
    return cuts, [gone for tick in ticks if (gone := weather.crash(tick)) is not None]


def test_a_seed_gives_the_same_weather() -> None:
    """Cuts all the while, as many crashes as were ordered, and none for as long as a lease."""
    assert storms(1) == storms(1) != storms(2)
    cuts, gone = storms(3)
    assert 60 < cuts < 110
    assert 3 == len(gone)
    assert max(gone) < ORDERS.lease


def test_without_orders_the_weather_is_fine() -> None:
    """A file cannot crash."""
    weather = Weather(ORDERS)
    assert not weather.cut(1000.0)
    assert weather.crash(1000.0) is None


def test_half_of_the_workers_are_left_at_work() -> None:
    """With fewer, only submitters are hit."""
    violence = Violence(ORDERS)
    moving = [("worker", 0), ("submitter", 0), ("submitter", 1)]
    given = [blow for tick in range(12_000) for blow in violence.due(tick / 100, moving, (), 0)]
    assert {"submitter"} == {blow.role for blow in given}


def test_those_that_start_slowly_are_let_come_to_work() -> None:
    """While nobody is at work nobody is hit; a process that starts while others work, sometimes."""
    violence = Violence(ORDERS)
    starting, at_work = [("worker", 0), ("worker", 1)], [("worker", 2), ("worker", 3)]
    assert not [blow for tick in range(6_000) for blow in violence.due(tick / 100, (), starting, 0)]
    given = [
        blow
        for tick in range(6_000, 60_000)
        for blow in violence.due(tick / 100, at_work, starting, 0)
    ]
    early = [blow for blow in given if blow.number < 2]
    assert 0 < len(early) < len(given) / 5
    assert not [blow for blow in early if blow.seconds]
