"""The same tasks with Millpond. Needs a worker: millpond worker celery_after:mp"""

import time
from pathlib import Path

from millpond import Millpond, Retry, RunOutcome, SyncContext, TaskFailed

SWEEPS = Path("sweeps.txt")
TOTAL = Path("total.txt")

mp = Millpond("sqlite:///shop.db")  # or postgresql://..., with workers on many machines
shop = mp.pool("shop", max_concurrent=8, retry=Retry.never())


@shop.task
def price(cents: int) -> int:
    return cents * 119 // 100


@shop.task(retry=Retry.constant(0.1, attempts=3, on=ConnectionError))
def send(ctx: SyncContext, to: str) -> str:
    if ctx.attempt < 3:
        raise ConnectionError("the mail server is busy")
    return f"sent to {to} at attempt {ctx.attempt}"


@shop.task
def charge(card: str) -> str:
    raise ValueError(f"no such card: {card}")


@shop.task
def total(basket: RunOutcome) -> None:
    TOTAL.write_text(str(sum(task.result for task in basket.tasks)))


@shop.task(ignore_result=True)
def sweep() -> None:
    with SWEEPS.open("a") as file:
        file.write("swept\n")


mp.cron("sweep", every=1, task=sweep)


def main() -> None:
    with mp.sync:
        print("price:", price.sync.submit(1000).get(timeout=30))
        print("mail:", send.options(delay=0.1).sync.submit("ada@example.com").get(timeout=30))
        try:
            charge.sync.submit("4711").get(timeout=30)
        except TaskFailed as failed:
            print("charge:", failed.error_message)

        late = price.options(delay=3600).sync.submit(1)
        late.cancel()

        shop.sync.when_all(price.each([1000, 2000, 3000]), then=total.bind())
        while not (TOTAL.exists() and TOTAL.read_text()):
            time.sleep(0.05)
        print("total:", TOTAL.read_text())

        while not SWEEPS.exists() or len(SWEEPS.read_text().splitlines()) < 2:
            time.sleep(0.1)
        print("swept")


if __name__ == "__main__":
    main()
