"""Signed HTTP requests become events: verified and stored before the answer."""

import asyncio
import time
from typing import Any

from millpond import Millpond
from millpond.webhooks import Webhooks, github, standard, timestamped

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - read yours from the environment
OLD_SECRET = b"the one before it, still in use"

mp = Millpond("sqlite:///hooks.db", work=True)
orders = mp.pool("orders", max_concurrent=4)


@orders.task
async def ship(order: dict[str, int]) -> str:
    return f"order {order['number']}"


mp.trigger("orders", on="orders", into=orders, task=ship, priority_from="payload.urgency")

app = Webhooks(mp)
app.add("/hooks/orders", emits="orders", verify=standard(SECRET, OLD_SECRET))

app.add(
    "/hooks/stripe",
    emits="stripe",
    verify=timestamped("the signing secret of the endpoint"),
    id_from="id",
    name_from="type",
    first_wins=True,
)
app.add(
    "/hooks/github",
    emits="github",
    verify=github("the secret of the webhook"),
    name_from="header:X-GitHub-Event",
)


async def main() -> None:
    """Post a request, as a sender with the same secret would, without a server."""
    body = b'{"number": 7, "urgency": 3}'
    signed = standard(SECRET).sign("msg_1", body, time.time())
    headers = {"content-type": "application/json", **signed}
    sent = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:  # noqa: ANN401 - as in ASGI
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/hooks/orders",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    async with mp:
        await app(scope, receive, send)
        print(sent[0]["status"], sent[1]["body"].decode())
        assert sent[0]["status"] == 202
        (event,) = await mp.events("orders")
        emission = await mp.emit("orders", event.payload, event_id=event.id)  # the same event
        for handle in await emission.handles():
            print(await handle)


if __name__ == "__main__":
    asyncio.run(main())
