"""OpenTelemetry: spans `submit <pool>` and `process <pool>`, the second linked to the first.

    from millpond.telemetry.otel import instrument

    instrument(mp)

The trace of a submit is stored with its task, so the link holds whichever process runs the task,
and after a restart. Only the API is needed here; spans go where the application's SDK sends them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.validation import Seconds, seconds
from millpond.errors import ConfigError, DriverMissing
from millpond.pool.internals import internals_of
from millpond.telemetry import names
from millpond.telemetry.store_reader import Reader

try:
    from opentelemetry import metrics, trace
except ImportError as missing:
    raise DriverMissing(
        "OpenTelemetry is not installed: pip install 'millpond[otel]'", extra="otel"
    ) from missing

from millpond.telemetry.metrics import MOST_POOLS, Metering
from millpond.telemetry.spans import Tracing

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from millpond.pool.millpond import Millpond


def instrument(
    mp: Millpond,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    one_trace: bool = False,
    timeout: Seconds = 5.0,
) -> Callable[[], None]:
    """Send spans and metrics of a Millpond to OpenTelemetry; return a function that stops it.

    Without providers the global ones are used, also if they are set later. `one_trace` makes the
    span of an attempt a child of its submit, and not only linked to it: one trace from end to end,
    as long as the task may wait. `timeout` is for how long reading the pools may take.
    """
    if any(isinstance(probe, Tracing) for probe in internals_of(mp).owner.hooks.attached):
        reason = "is already instrumented; first call the function that instrument() returned"
        raise ConfigError("mp", mp, reason)
    tracing = Tracing(trace.get_tracer(names.MILLPOND, tracer_provider=tracer_provider), one_trace)
    patience = seconds("timeout", timeout, above=0.0)
    # An export reads the gauges one after another: they share one reading of the store.
    reader = Reader(mp, MOST_POOLS, patience, fresh=0.5)
    metering = Metering(metrics.get_meter(names.MILLPOND, meter_provider=meter_provider), reader)
    ends = [
        internals_of(mp).owner.hooks.attach(tracing),
        internals_of(mp).owner.hooks.attach(metering),
    ]

    def stop() -> None:
        metering.on = False
        for end in ends:
            end()

    return stop
