"""A shop's background tasks with dramatiq. Needs a worker: dramatiq dramatiq_before"""

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage
from dramatiq.rate_limits import ConcurrentRateLimiter
from dramatiq.rate_limits.backends import RedisBackend as LimiterBackend
from dramatiq.results import ResultFailure, Results
from dramatiq.results.backends import RedisBackend as ResultBackend

REDIS = os.environ.get("REDIS_URL", "redis://localhost:6379/0")

broker = RedisBroker(url=REDIS)
broker.add_middleware(Results(backend=ResultBackend(url=REDIS)))
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)

model = ConcurrentRateLimiter(LimiterBackend(url=REDIS), "model", limit=1)


@dramatiq.actor(store_results=True)
def price(cents: int) -> int:
    return cents * 119 // 100


@dramatiq.actor(store_results=True)
def discount(percent: int, cents: int) -> int:
    return cents * (100 - percent) // 100


@dramatiq.actor(store_results=True, max_retries=2, min_backoff=100, max_backoff=100)
def send(to: str) -> str:
    attempt = CurrentMessage.get_current_message().options.get("retries", 0) + 1
    if attempt < 3:
        raise ConnectionError("the mail server is busy")
    return f"sent to {to} at attempt {attempt}"


@dramatiq.actor(store_results=True, max_retries=0)
def charge(card: str) -> str:
    raise ValueError(f"no such card: {card}")


@dramatiq.actor(store_results=True, max_retries=20, min_backoff=50, max_backoff=50)
def ask(question: str) -> str:
    with model.acquire():  # raises if the model is busy; the retry is the wait
        return f"answer to {question}"


def main() -> None:
    def result(message: dramatiq.Message) -> object:
        return message.get_result(block=True, timeout=30_000)

    print("price:", result(price.send(1000)))
    print("mail:", result(send.send_with_options(args=("ada@example.com",), delay=100)))
    try:
        result(charge.send("4711"))
    except ResultFailure as failure:
        print("charge:", failure.orig_exc_msg)

    pipeline = (price.message(1000) | discount.message(50)).run()
    print("discount:", pipeline.get_result(block=True, timeout=30_000))

    basket = dramatiq.group([price.message(cents) for cents in (1000, 2000, 3000)]).run()
    print("prices:", list(basket.get_results(block=True, timeout=30_000)))

    for message in [ask.send("one"), ask.send("two")]:
        print(result(message))


if __name__ == "__main__":
    main()
