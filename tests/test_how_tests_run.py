"""What this suite promises to its own tests."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st


async def test_an_hour_on_virtual_time_is_an_hour_that_costs_nothing() -> None:
    """The loop's clock moves by exactly what was waited for; the test's timeout is 20 s."""
    loop = asyncio.get_running_loop()
    before = loop.time()
    await asyncio.sleep(3600)
    assert 3600 == pytest.approx(loop.time() - before)


@given(st.integers(min_value=1, max_value=1000))
async def test_every_example_of_a_property_has_its_own_loop(seconds: int) -> None:
    """Hypothesis can drive `async def` tests, on virtual time too."""
    before = asyncio.get_running_loop().time()
    await asyncio.sleep(seconds)
    assert seconds == pytest.approx(asyncio.get_running_loop().time() - before)


@pytest.mark.real_loop
async def test_a_test_may_ask_for_a_real_loop() -> None:
    """The marker gives asyncio's own loop."""
    assert type(asyncio.get_running_loop()).__module__.startswith("asyncio")
