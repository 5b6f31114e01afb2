"""Handlers in plain tests: no event loop, no waiting, the same outcome each time."""

import asyncio

from millpond import Context, Millpond, Retry, SyncHandle
from millpond.errors import StoreError
from millpond.testing import eager, lab

mp = Millpond()
mail = mp.pool("mail", max_concurrent=2, retry=Retry(attempts=3, initial=10.0, jitter=0.0))
outbox: list[str] = []
server = {"is_up": True}


@mail.task(timeout=30)
async def send(ctx: Context, to: str) -> str:
    if not server["is_up"]:
        raise ConnectionError("the mail server is down")
    await asyncio.sleep(2)
    outbox.append(to)
    return f"sent to {to} at attempt {ctx.attempt}"


def test_a_mail_is_sent() -> None:
    with lab(mp) as bench:
        handle = bench.submit(send.bind("ada@example.com"))
        bench.run_until_idle()  # the handler runs until it sleeps
        bench.advance(2)  # two seconds later it goes on
        assert bench.result(handle) == "sent to ada@example.com at attempt 1"


def sign_up(to: str) -> SyncHandle[str]:
    """Do what a view of Flask or Django does."""
    return send.sync.submit(to)


def test_a_view_sends_a_mail() -> None:
    with eager(mp) as bench:
        handle = sign_up("ada@example.com")  # it calls send.sync.submit(...)
        assert bench.snapshot(mail).running == 1  # it sleeps two seconds, in virtual time
        bench.advance(2)
        assert handle.get() == "sent to ada@example.com at attempt 1"


def test_a_mail_is_tried_again() -> None:
    server["is_up"] = False
    with lab(mp) as bench:
        handle = bench.submit(send.bind("ada@example.com"))
        bench.run_until_idle()
        print(bench.why(handle))  # retry in 10.0 s (attempt 1 of 3 failed: ConnectionError: ...)
        server["is_up"] = True
        assert bench.advance(10 + 2) == 1  # one task ended
        assert bench.result(handle).endswith("attempt 2")


def test_a_mail_that_cannot_be_sent_is_kept() -> None:
    server["is_up"] = False
    with lab(mp) as bench:
        handle = bench.submit(send.bind("ada@example.com"))
        bench.advance(3600)
        assert bench.sync(handle.wait()).attempt == 3
        assert bench.snapshot(mail).failed == 1
    server["is_up"] = True


def test_a_crash_in_the_middle_is_made_good() -> None:
    outbox.clear()
    with lab(mp, durable=True) as bench:
        handle = bench.submit(send.bind("ada@example.com"))
        bench.advance(1)  # the handler runs
        bench.restart()  # the process dies, and another one takes its place
        bench.advance(2)
        assert bench.result(handle) == "sent to ada@example.com at attempt 2"
        assert outbox == ["ada@example.com"]


def test_a_store_that_is_away_loses_nothing() -> None:
    with lab(mp, durable=True) as bench:
        lost = bench.fail_next("submit", when="after")
        try:
            bench.submit(send.bind("ada@example.com"), idempotency_key="welcome ada")
        except StoreError:
            print("the task was stored, but the answer was lost")
        handle = bench.submit(send.bind("ada@example.com"), idempotency_key="welcome ada")
        assert lost.left == 0
        assert handle.duplicate
        bench.advance(10)
        assert bench.snapshot(mail).completed == 1


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
