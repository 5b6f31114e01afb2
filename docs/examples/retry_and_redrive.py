"""Failures: retried, given up, kept as dead letters, and redriven."""

import asyncio

from millpond import Context, DeadLetter, GiveUp, Millpond, Retry, RetryLater, TaskFailed

dead: list[DeadLetter] = []
mp = Millpond()
mails = mp.pool("mails", retry=Retry(attempts=3, initial=0.01), on_dead_letter=dead.append)

server_is_up = False
busy = True


@mails.task
async def send(address: str) -> str:
    if "@" not in address:
        raise GiveUp(f"{address!r} is no address")  # no further attempt would help
    if not server_is_up:
        raise ConnectionError("no answer")
    return f"sent to {address}"


@mails.task(retry=Retry(attempts=5, initial=0.01, on=ConnectionError, never=TimeoutError))
async def fetch(name: str) -> str:
    raise KeyError(name)  # not in `on`, so not retried


@mails.task
async def poll() -> str:
    global busy  # noqa: PLW0603 - it stands for an outside system
    if busy:
        busy = False
        raise RetryLater(0.01, spend=False)  # not a failure: retry later, and do not charge it
    return "ready"


def patience(attempt: int, error: BaseException) -> float | None:
    """Seconds until the next attempt, or None to give up."""
    return 0.01 * attempt if isinstance(error, OSError) and attempt < 4 else None


@mails.task(retry=patience)
async def upload(name: str) -> None:
    raise OSError(name)


charges: list[str] = []


async def charge_card() -> str:
    charges.append("charged")
    return "receipt 1"


@mails.task
async def buy(ctx: Context) -> str:
    receipt = await ctx.once("charge", charge_card)  # a later attempt gets this result
    if not ctx.is_retry:
        raise ConnectionError("after the charge")
    return receipt


async def main() -> None:
    global server_is_up  # noqa: PLW0603
    async with mp:
        handle = await send.submit("ann@example.org")
        try:
            await handle
        except TaskFailed as failed:
            print(failed.attempts, failed.error_type, failed.error_message, repr(failed.__cause__))
        assert handle.attempt == 3

        hopeless = await (await send.submit("no-address")).wait()
        assert (hopeless.status, hopeless.attempt) == ("failed", 1)
        assert (await (await fetch.submit("x")).wait()).attempt == 1
        assert (await (await upload.submit("x")).wait()).attempt == 4
        polled = await poll.submit()
        assert (await polled, polled.attempt) == ("ready", 1)

        assert await (await buy.submit()) == "receipt 1"
        assert charges == ["charged"]  # two attempts, one charge

        # The pool lists four dead letters with their errors; the hook was called for each.
        letters = await mails.tasks(status="failed")
        for letter in letters:
            print(letter.id, letter.function, letter.attempt, letter.error)
        assert [letter.task_id for letter in dead] == [letter.id for letter in letters]

        server_is_up = True
        await mails.redrive([handle])  # queued again, at the tail, with three new attempts
        print(await (await handle.refresh()))
        assert handle.status == "completed"


asyncio.run(main())
