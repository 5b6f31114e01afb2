"""Both side by side: callers still use Celery, and the work runs in Millpond."""

import os

from celery import Celery, Task
from celery_after import mp, send, shop

REDIS = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
app = Celery("celery_bridge", broker=REDIS, backend=REDIS)


@app.task(bind=True, name="celery_before.send", acks_late=True)
def forward(self: Task, to: str) -> int:
    mp.sync.open()  # once per process, after the fork; then it does nothing
    return shop.sync.submit(send.bind(to), idempotency_key=f"celery:{self.request.id}").id


def main() -> None:
    with mp.sync:
        first = app.send_task("celery_before.send", ("ada@example.com",))
        # Celery delivers a message again if its worker died before the acknowledgement.
        app.send_task("celery_before.send", ("ada@example.com",), task_id=first.id)
        last = app.send_task("celery_before.send", ("bob@example.com",))

        for sent in (first, last):
            print("mail:", mp.sync.handle(sent.get(timeout=30), of=send).get(timeout=30))
        tasks = [task for task in shop.sync.tasks() if task.function == "send"]
        print("messages: 3, tasks:", len(tasks))


if __name__ == "__main__":
    main()
