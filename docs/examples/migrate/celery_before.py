"""A shop's background tasks with Celery. Needs a worker: celery -A celery_before worker -B"""

import os
import time
from pathlib import Path

from celery import Celery, Task, chord

REDIS = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
SWEEPS = Path("sweeps.txt")

app = Celery("celery_before", broker=REDIS, backend=REDIS)
app.conf.beat_schedule = {"sweep": {"task": "celery_before.sweep", "schedule": 1.0}}


@app.task
def price(cents: int) -> int:
    return cents * 119 // 100


@app.task(bind=True, autoretry_for=(ConnectionError,), max_retries=2, default_retry_delay=0.1)
def send(self: Task, to: str) -> str:
    if self.request.retries < 2:
        raise ConnectionError("the mail server is busy")
    return f"sent to {to} at attempt {self.request.retries + 1}"


@app.task
def charge(card: str) -> str:
    raise ValueError(f"no such card: {card}")


@app.task
def total(prices: list[int]) -> int:
    return sum(prices)


@app.task(ignore_result=True)
def sweep() -> None:
    with SWEEPS.open("a") as file:
        file.write("swept\n")


def main() -> None:
    print("price:", price.delay(1000).get(timeout=30))
    print("mail:", send.apply_async(("ada@example.com",), countdown=0.1).get(timeout=30))
    try:
        charge.delay("4711").get(timeout=30)
    except ValueError as error:
        print("charge:", error)

    late = price.apply_async((1,), countdown=3600)
    late.revoke()

    basket = chord(price.s(cents) for cents in (1000, 2000, 3000))
    print("total:", basket(total.s()).get(timeout=30))

    while not SWEEPS.exists() or len(SWEEPS.read_text().splitlines()) < 2:
        time.sleep(0.1)
    print("swept")


if __name__ == "__main__":
    main()
