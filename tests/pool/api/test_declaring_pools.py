"""Declaring a pool: the order by name, a name from the code, and the default limit."""

import subprocess
import sys
from pathlib import Path

import pytest

from millpond import ConfigError, Millpond, fair_round_robin, fifo, lifo, priority
from millpond.errors import DuplicateName

mp = Millpond()
mail = mp.pool()
other = reports = mp.pool(
    max_concurrent=4,
    queue="fifo",
)
threads = mp.sync.pool()


class App:
    """Has a pool as an attribute."""

    def __init__(self) -> None:
        self.mp = Millpond()
        self.news = self.mp.pool(max_concurrent=2)


def make() -> Millpond:
    """Make an application in a function, with a closure over its pool."""
    made = Millpond()
    jobs = made.pool()

    @jobs.task
    async def job() -> str:
        return jobs.name

    return made


# The order by name


@pytest.mark.parametrize(
    ("name", "order"), [("fifo", fifo()), ("lifo", lifo()), ("priority", priority())]
)
def test_an_order_may_be_given_by_name(name: str, order: object) -> None:
    """It is the order without settings."""
    pool = Millpond().pool("named", queue=name)  # type: ignore[arg-type]
    assert order == pool.spec.order


@pytest.mark.parametrize("name", ["", "FIFO", "fair", "fair_round_robin", fair_round_robin, 1])
def test_another_order_is_refused(name: object) -> None:
    """Unknown names, and orders that need settings such as fair_round_robin, are refused."""
    with pytest.raises(ConfigError, match="queue"):
        Millpond().pool("named", queue=name)  # type: ignore[arg-type]


# A name from the code


def test_a_pool_is_named_by_module_and_variable() -> None:
    """Of two variables the first counts; function and class are part of the name."""
    assert f"{__name__}.mail" == mail.name
    assert f"{__name__}.other" == reports.name
    assert f"{__name__}.threads" == threads.name
    assert f"{__name__}.App.__init__.news" == App().news.name
    assert [f"{__name__}.make.jobs"] == [pool.name for pool in make().pools()]


def test_a_pool_without_a_variable_needs_a_name() -> None:
    """There is no variable to name it after."""
    with pytest.raises(ConfigError, match="not assigned to a variable"):
        Millpond().pool()
    with pytest.raises(ConfigError, match="not assigned to a variable"):
        [Millpond().pool()]


def test_one_place_names_one_pool() -> None:
    """A second pool made at the same place, as in a loop, is refused."""
    made = Millpond()
    with pytest.raises(DuplicateName):
        for _ in range(2):
            pool = made.pool()
    assert [pool] == made.pools()


def test_a_script_has_the_name_under_which_others_import_it(tmp_path: Path) -> None:
    """A worker imports the module that the submitter runs as a script."""
    code = "from millpond import Millpond\n\nmp = Millpond()\nmail = mp.pool()\nprint(mail.name)\n"
    (tmp_path / "shop.py").write_text(code, "utf-8")
    for line in (["shop.py"], ["-m", "shop"], ["-c", "import shop"]):
        found = subprocess.run(
            [sys.executable, *line], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert "shop.mail\n" == found.stdout


# The default limit


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings about default limits."""
    return [
        one.message
        for one in caplog.records
        if getattr(one, "event", "") == "pool.serial_by_default"
    ]


async def test_a_pool_warns_once_that_its_default_limit_costs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """When ten tasks wait, and never again."""
    made = Millpond(work=False)
    pool = made.pool("mail")

    @pool.task
    async def send(number: int) -> None: ...

    async with made:
        for number in range(9):
            await send.submit(number)
        assert [] == said(caplog)
        await send.submit(9)
        await pool.submit_many(send.each(range(20)))
        (warning,) = said(caplog)
        assert "pool mail runs one task at a time over all workers, and 10 tasks wait" in warning
        await pool.purge()


async def test_a_pool_with_a_limit_does_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    """An explicit limit of one, and lanes, are no accident."""
    made = Millpond(work=False)
    for pool in (made.pool("one", max_concurrent=1), made.pool("lanes", lanes=2)):

        async def send() -> None: ...

        task = pool.task(name=f"send_{pool.name}")(send)
        async with made:
            await pool.submit_many([task.bind().options(key="a") for _ in range(30)])
            await pool.purge()
    assert [] == said(caplog)
