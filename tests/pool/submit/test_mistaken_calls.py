"""A call that is nearly right raises an error that shows the right one."""

from typing import Any

import pytest

from millpond import BadPayload, Context, Millpond

pytestmark = pytest.mark.rows("TR-21")


class Shop:
    """A pool and a task, typed as Any: a type checker refuses the calls of these tests."""

    def __init__(self) -> None:
        self.mp: Any = Millpond()
        self.pool: Any = self.mp.pool("work")

        @self.pool.task
        async def add(number: int, more: int = 1) -> int:
            return number + more

        self.add: Any = add


def plain(number: int) -> int:
    return number


async def test_arguments_after_a_function_are_refused_with_a_hint_to_bind() -> None:
    """For registered functions and plain ones, for each verb, and for threads too."""
    shop = Shop()
    async with shop.mp:
        for verb in ("submit", "try_submit"):
            with pytest.raises(TypeError, match=rf"pool\.{verb}\(add\.bind\(1, 'x'\)\)"):
                await getattr(shop.pool, verb)(shop.add, 1, "x")
            with pytest.raises(TypeError, match=rf"pool\.{verb}\(functools\.partial\(plain, 1\)\)"):
                await getattr(shop.pool, verb)(plain, 1)
            with pytest.raises(TypeError, match=rf"pool\.{verb}\(add\.bind\(1\)\)"):
                getattr(shop.pool.sync, verb)(shop.add, 1)
        with pytest.raises(TypeError, match=r"or add\.submit\(1\)"):
            await shop.pool.submit(shop.add, 1)
        with pytest.raises(TypeError, match=r"pool\.submit_many\(add\.each\(items\)\)"):
            await shop.pool.submit_many(shop.add, [1, 2])
        with pytest.raises(TypeError, match=r"functools\.partial\(plain, item\)"):
            await shop.pool.submit_many(plain, [1, 2])
        with pytest.raises(TypeError, match=r"pool\.submit_many\(\[\.\.\.\]\)"):
            await shop.pool.submit(shop.add.bind(1), shop.add.bind(2))
        assert 0 == await shop.pool.size(), "nothing was submitted"


async def test_an_option_in_the_wrong_call_is_refused_with_its_right_place() -> None:
    """The error shows the call that takes the option, or the option with the nearest name."""
    shop = Shop()
    async with shop.mp:
        with pytest.raises(TypeError, match=r"pool\.drain\(calls, progress=True\)"):
            await shop.pool.submit(shop.add.bind(1), progress=True)
        with pytest.raises(TypeError, match="did you mean 'priority'"):
            await shop.pool.submit(shop.add.bind(1), prioritiy=3)
        with pytest.raises(TypeError, match="it is delay, in seconds"):
            await shop.pool.submit(shop.add.bind(1), countdown=3)
        with pytest.raises(BadPayload, match=r"fn\.options\(priority=\.\.\.\)\.submit"):
            await shop.add.submit(1, priority=3)


async def test_pool_methods_on_a_millpond_raise_with_the_right_call() -> None:
    """mp.submit names pool.submit; any other missing name is an ordinary AttributeError."""
    shop = Shop()
    with pytest.raises(AttributeError, match=r"pool\.map\(\.\.\.\)"):
        shop.mp.map(shop.add, [1])
    for work in (shop.add, shop.add.bind(1), print):
        with pytest.raises(TypeError, match=r"pool\.submit\(\.\.\.\)"):
            await shop.mp.submit(work)
        with pytest.raises(TypeError, match=r"pool\.submit\(\.\.\.\)"):
            shop.mp.sync.submit(work)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = shop.mp.nonsense
    assert not hasattr(shop.mp, "map")


def test_a_first_parameter_named_ctx_without_annotation_is_warned_of() -> None:
    """It counts as data: a warning at registration says what to write in either case."""
    shop = Shop()

    async def review(ctx, number):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return number

    with pytest.warns(
        UserWarning, match="task 'review' is named ctx.*ctx: millpond.Context"
    ) as got:
        shop.pool.task(review)
    assert __file__ == got[0].filename

    @shop.pool.task  # type: ignore[untyped-decorator]
    async def fine(ctx: Context, number: int) -> int:
        return number

    @shop.pool.task  # type: ignore[untyped-decorator]
    async def data(ctx: object, number: int) -> int:
        return number
