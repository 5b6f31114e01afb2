"""Both side by side: callers still use dramatiq, and the work runs in Millpond."""

import dramatiq
from dramatiq.middleware import CurrentMessage
from dramatiq_after import mp
from dramatiq_after import send as send_mail
from dramatiq_after import shop as pool
from dramatiq_before import broker


@dramatiq.actor(actor_name="send_by_millpond", store_results=True, max_retries=1000)
def send(to: str) -> int:
    mp.sync.open()  # once per process; then it does nothing
    key = f"dramatiq:{CurrentMessage.get_current_message().message_id}"
    return pool.sync.submit(send_mail.bind(to), idempotency_key=key).id


def main() -> None:
    first = send.send("ada@example.com")
    first.get_result(block=True, timeout=30_000)
    broker.enqueue(first)  # dramatiq delivers a message again if its worker died
    last = send.send("bob@example.com")

    with mp.sync:
        for message in (first, last):
            task = message.get_result(block=True, timeout=30_000)
            print("mail:", mp.sync.handle(task, of=send_mail).get(timeout=30))
        broker.join(send.queue_name, timeout=30_000)
        tasks = [task for task in pool.sync.tasks() if task.function == "send"]
        print("messages: 3, tasks:", len(tasks))


if __name__ == "__main__":
    main()
