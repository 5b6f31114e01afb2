"""An application in several processes: one submits, one is killed, one works. They print spans.

`python traced_app.py submit|die|work FILE`; a line of JSON for each span that has ended.
"""

import asyncio
import json
import sys
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.waiting import never_ends

from millpond import Millpond
from millpond.telemetry.otel import instrument

KEPT = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(KEPT))

mp = Millpond(lease=3.0)
mail = mp.pool("mail", max_concurrent=4)
instrument(mp, tracer_provider=provider)


@mail.task
async def send(to: str) -> str:
    """Hang where it is to be killed."""
    if "die" in sys.argv:
        print("began", flush=True)  # noqa: T201
        await never_ends()
    return to


@mail.task(executor="process")
def render(to: str) -> list[str]:
    """Return the trace and the span that are under way in this process of its own."""
    found = trace.get_current_span().get_span_context()
    return [f"{found.trace_id:032x}", f"{found.span_id:016x}", to]


async def main(role: str) -> None:
    """Do one thing and print its spans."""
    async with mp:
        if role == "submit":
            with provider.get_tracer("test").start_as_current_span("request"):
                await send.submit("ada")
        else:
            async with mp.worker():
                if role == "work":
                    result = await (await render.submit("bob"))
                    print(json.dumps({"render": result}))  # noqa: T201
                    await mail.drain()
                else:
                    await never_ends()
    for span in KEPT.get_finished_spans():
        print(span.to_json(indent=None))  # noqa: T201


if __name__ == "__main__":
    mp.url = f"sqlite:///{Path(sys.argv[2])}"
    asyncio.run(main(sys.argv[1]))
