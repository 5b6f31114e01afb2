"""A pool with OpenTelemetry, Prometheus and log records."""

import asyncio
import logging
import sys
import urllib.request

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from prometheus_client import REGISTRY, start_http_server

from millpond import Millpond, PoolFull, Retry, bounded
from millpond.telemetry.logs import TaskFilter
from millpond.telemetry.otel import instrument
from millpond.telemetry.prometheus import Collector

mp = Millpond()
mail = mp.pool(
    "mail",
    max_concurrent=2,
    retry=Retry(attempts=2, initial=0.01),
    backpressure=bounded(5, on_full="fail_submitter"),
)
log = logging.getLogger("my.mail")
tracer = trace.get_tracer("my.app")

instrument(mp)  # sends spans and metrics to the providers that the application sets up

collector = Collector(mp)
REGISTRY.register(collector)


@mail.task(key="to")
async def send(to: str) -> str:
    log.info("connecting for %s", to)
    with tracer.start_as_current_span("smtp"):  # part of the trace of the attempt
        await asyncio.sleep(0.01)
    if to == "bob":
        raise ConnectionError("no such mailbox")
    return to


def set_up_traces() -> None:
    exporter = ConsoleSpanExporter(formatter=one_line)  # yours sends them to a collector
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def set_up_logs() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.addFilter(TaskFilter())
    handler.setFormatter(logging.Formatter("log   pool=%(pool)s task=%(task)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def one_line(span: ReadableSpan) -> str:
    attributes = dict(span.attributes or {})
    links = [f"{link.context.span_id:016x}" for link in span.links]
    own = span.get_span_context()
    assert own is not None
    outcome = attributes.get("millpond.outcome") or attributes.get("error.type") or ""
    return f"span  {own.span_id:016x} {span.name}, linked to {links}: {outcome}\n"


async def metrics_for_my_web_application() -> bytes:
    return await collector.text()  # the response body, as text/plain


def scrape(port: int) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return [line for line in answer.read().decode().splitlines() if line.startswith("millpond")]


async def main() -> None:
    set_up_traces()
    set_up_logs()
    server, _ = start_http_server(0, addr="127.0.0.1")  # yours has a port of its own, say 9464
    async with mp:
        with tracer.start_as_current_span("request"):
            await mail.submit_many(send.each(["ada", "bob", "cleo"]))
        await mail.drain()

        await mail.pause()
        for number in range(6):
            try:
                await send.submit(f"reader-{number}")
            except PoolFull:
                log.info("refused: %d", number)

        series = await asyncio.to_thread(scrape, server.server_port)
        for line in series:
            if "_bucket" not in line and not line.endswith(" 0.0"):
                print(line)
        assert 'millpond_pool_tasks{pool="mail",state="ready"} 5.0' in series
        assert 'millpond_rejected_tasks_total{pool="mail",reason="queue_full"} 1.0' in series
        assert b"millpond_up 1.0" in await metrics_for_my_web_application()
        await mail.purge()
    server.shutdown()
    server.server_close()


asyncio.run(main())
