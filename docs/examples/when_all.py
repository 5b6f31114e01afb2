"""When all of these tasks are done, run that one: durable, once, with their results."""

import asyncio
import tempfile

from millpond import Millpond, RunOutcome

folder = tempfile.mkdtemp()
mp = Millpond(f"sqlite:///{folder}/work.db")
photos = mp.pool("photos", max_concurrent=4)
published: list[str] = []


@photos.task
async def shrink(photo: str) -> int:
    return len(photo)  # the size of the thumbnail


@photos.task
async def publish(outcome: RunOutcome, album: str) -> None:
    if outcome.ok:
        published.append(f"{album}: {sum(outcome.results)} bytes in {outcome.total} thumbnails")
    else:
        failed = [task.error for task in outcome.tasks if not task.ok]
        published.append(f"{album}: {outcome.failed} failed, first: {failed[0]}")


async def submit_at_once() -> None:
    names = ["beach.jpg", "boat.jpg", "sun.jpg"]
    await photos.when_all(
        [shrink.bind(name) for name in names], then=publish.bind("summer"), run="album-7"
    )


async def submit_bit_by_bit() -> None:
    async with photos.run("album-8") as run:
        await run.on_complete(publish.bind("winter"))
        for name in ("snow.jpg", "ice.jpg"):
            await run.submit(shrink.bind(name))


async def main() -> None:
    async with mp, mp.worker():
        await submit_at_once()
        await submit_bit_by_bit()
        await photos.drain()  # waits for the callbacks, too
    print("\n".join(sorted(published)))
    assert sorted(published) == [
        "summer: 24 bytes in 3 thumbnails",
        "winter: 15 bytes in 2 thumbnails",
    ]


asyncio.run(main())
