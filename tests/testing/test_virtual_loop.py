"""The virtual loop: time moves on for every wait, however short."""

import asyncio

from millpond.testing.clock import VirtualClock, run_virtual

MOMENT = 1014.0
JUST_BEFORE = 1013.9999999999998
"""So near to the moment that a timer of it is within the resolution of the clock."""


def test_time_moves_on_for_those_who_wait_again_for_the_rest() -> None:
    """Several of them do not keep each other busy just before the moment."""

    async def waits(turns: int) -> int:
        loop, count = asyncio.get_running_loop(), 0
        for _ in range(turns):
            await asyncio.sleep(0)
        while loop.time() < MOMENT and count < 100:
            count += 1
            come = loop.create_future()
            loop.call_at(MOMENT, come.set_result, None)
            await come
        return count

    async def main() -> list[int]:
        return await asyncio.gather(*(waits(turns) for turns in range(4)))

    assert [1, 1, 1, 1] == run_virtual(main(), clock=VirtualClock(JUST_BEFORE))
