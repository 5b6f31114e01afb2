"""Both side by side: callers still use RQ, and the work runs in Millpond."""

from rq import get_current_job
from rq_after import mp
from rq_after import send as send_mail
from rq_after import shop as pool
from rq_before import shop, wait


def send(to: str) -> int:
    key = f"rq:{get_current_job().id}"
    with mp.sync:  # RQ forks a process for each job
        return pool.sync.submit(send_mail.bind(to), idempotency_key=key).id


def main() -> None:
    first = wait(shop.enqueue(send, "ada@example.com"))
    wait(shop.enqueue(send, "ada@example.com", job_id=first.id))  # the same job again
    last = wait(shop.enqueue(send, "bob@example.com"))

    with mp.sync:
        for job in (first, last):
            print("mail:", mp.sync.handle(job.return_value(), of=send_mail).get(timeout=30))
        tasks = [task for task in pool.sync.tasks() if task.function == "send"]
        print("jobs: 3, tasks:", len(tasks))


if __name__ == "__main__":
    from rq_bridge import main as main_of_the_module

    main_of_the_module()
