"""The same jobs with Millpond. Needs a worker: millpond worker rq_after:mp"""

import time
from pathlib import Path

from millpond import Millpond, Outcome, Retry, SyncContext, TaskFailed

RECEIPT = Path("receipt.txt")

mp = Millpond("sqlite:///shop.db")  # or postgresql://..., with workers on many machines
shop = mp.pool("shop", max_concurrent=8, retry=Retry.never())


@shop.task
def price(cents: int) -> int:
    return cents * 119 // 100


@shop.task(retry=Retry.constant(0, attempts=3))
def send(ctx: SyncContext, to: str) -> str:
    if ctx.attempt < 3:
        raise ConnectionError("the mail server is busy")
    return f"sent to {to} at attempt {ctx.attempt}"


@shop.task
def charge(card: str) -> str:
    raise ValueError(f"no such card: {card}")


@shop.task
def receipt(paid: Outcome) -> None:
    RECEIPT.write_text(f"receipt for {paid.result}")


def main() -> None:
    with mp.sync:
        print("price:", price.sync.submit(1000).get())

        mail = send.sync.submit("ada@example.com")
        print("mail:", mail.get())

        try:
            charge.sync.submit("4711").get()
        except TaskFailed as failed:
            print(f"charge: {failed.error_type}: {failed.error_message}")

        late = price.options(delay=3600).sync.submit(1)
        late.cancel()

        once = price.options(idempotency_key="order-7", delay=3600)
        once.sync.submit(7)
        if once.sync.submit(7).duplicate:
            print("order-7: known")

        price.options(on_complete=receipt.bind()).sync.submit(1000)
        while not (RECEIPT.exists() and RECEIPT.read_text()):
            time.sleep(0.05)
        print("then:", RECEIPT.read_text())


if __name__ == "__main__":
    main()
