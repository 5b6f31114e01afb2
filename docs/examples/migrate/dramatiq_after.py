"""The same tasks with Millpond. Needs a worker: millpond worker dramatiq_after:mp"""

from millpond import Millpond, Retry, SyncContext, TaskFailed

mp = Millpond("sqlite:///shop.db")  # or postgresql://..., with workers on many machines
shop = mp.pool("shop", max_concurrent=8)
model = mp.pool("model", max_concurrent=1)  # one call at a time, over all workers


@shop.task
def price(cents: int) -> int:
    return cents * 119 // 100


@shop.task
def discounted(ctx: SyncContext, cents: int, percent: int) -> int:
    with_tax = ctx.once("price", lambda: price(cents))  # a retry does not repeat this step
    return with_tax * (100 - percent) // 100


@shop.task(retry=Retry.constant(0.1, attempts=3))
def send(ctx: SyncContext, to: str) -> str:
    if ctx.attempt < 3:
        raise ConnectionError("the mail server is busy")
    return f"sent to {to} at attempt {ctx.attempt}"


@shop.task(retry=Retry.never())
def charge(card: str) -> str:
    raise ValueError(f"no such card: {card}")


@model.task
def ask(question: str) -> str:
    return f"answer to {question}"


def main() -> None:
    with mp.sync:
        print("price:", price.sync.submit(1000).get(timeout=30))
        print("mail:", send.options(delay=0.1).sync.submit("ada@example.com").get(timeout=30))
        try:
            charge.sync.submit("4711").get(timeout=30)
        except TaskFailed as failed:
            print("charge:", failed.error_message)

        print("discount:", discounted.sync.submit(1000, 50).get(timeout=30))

        basket = shop.sync.submit_many(price.each([1000, 2000, 3000]))
        print("prices:", [handle.get(timeout=30) for handle in basket])

        for handle in model.sync.submit_many(ask.each(["one", "two"])):
            print(handle.get(timeout=30))


if __name__ == "__main__":
    main()
