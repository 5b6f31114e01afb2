"""A shop's background jobs with RQ. Needs a worker: rq worker --with-scheduler"""

import os
import time
from datetime import timedelta
from pathlib import Path

from redis import Redis
from rq import Queue, Retry, get_current_job
from rq.exceptions import DuplicateJobError
from rq.job import Job

shop = Queue(connection=Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost:6379/0")))
RECEIPT = Path("receipt.txt")


def price(cents: int) -> int:
    return cents * 119 // 100


def send(to: str) -> str:
    attempt = 3 - get_current_job().retries_left
    if attempt < 3:
        raise ConnectionError("the mail server is busy")
    return f"sent to {to} at attempt {attempt}"


def charge(card: str) -> str:
    raise ValueError(f"no such card: {card}")


def receipt() -> None:
    (paid,) = get_current_job().fetch_dependencies()
    RECEIPT.write_text(f"receipt for {paid.return_value()}")


def wait(job: Job) -> Job:
    while not (job.is_finished or job.is_failed):
        time.sleep(0.05)
        job.refresh()
    return job


def main() -> None:
    print("price:", wait(shop.enqueue(price, 1000)).return_value())

    mail = shop.enqueue(send, "ada@example.com", retry=Retry(max=2))
    print("mail:", wait(mail).return_value())

    failed = wait(shop.enqueue(charge, "4711"))
    print("charge:", failed.latest_result().exc_string.splitlines()[-1])

    late = shop.enqueue_in(timedelta(hours=1), price, 1)
    late.cancel()

    shop.enqueue_in(timedelta(hours=1), price, 7, job_id="order-7", unique=True)
    try:
        shop.enqueue(price, 7, job_id="order-7", unique=True)
    except DuplicateJobError:
        print("order-7: known")

    paid = shop.enqueue(price, 1000)
    wait(shop.enqueue(receipt, depends_on=paid))
    print("then:", RECEIPT.read_text())


if __name__ == "__main__":
    from rq_before import main as main_of_the_module  # RQ refuses functions of __main__

    main_of_the_module()
