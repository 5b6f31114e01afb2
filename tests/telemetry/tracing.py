"""An application whose spans are kept: what tests of tracing look at."""

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from millpond import Millpond
from millpond.telemetry.otel import instrument


class Traced:
    """A Millpond that is instrumented, with an exporter of its own."""

    def __init__(self, mp: Millpond | None = None, *, one_trace: bool = False) -> None:
        self.mp = mp or Millpond()
        self._kept = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = self.provider.get_tracer("test")
        self._reader = InMemoryMetricReader()
        meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.stop = instrument(
            self.mp, tracer_provider=self.provider, meter_provider=meters, one_trace=one_trace
        )

    def spans(self, name: str = "") -> Sequence[ReadableSpan]:
        """Those that have ended, of one name or of all."""
        return [span for span in self._kept.get_finished_spans() if name in ("", span.name)]

    def span(self, name: str) -> ReadableSpan:
        """The one of that name."""
        (span,) = self.spans(name)
        return span

    def attributes(self, span: ReadableSpan) -> dict[str, Any]:
        """Its attributes."""
        return dict(span.attributes or {})

    def measured(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """The points of a metric: attributes and value, or how many were measured."""
        data = self._reader.get_metrics_data()
        found = [
            (
                dict(point.attributes or {}),
                getattr(point, "count", None) or getattr(point, "value", 0),
            )
            for resource in (data.resource_metrics if data is not None else [])
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]
        return sorted(found, key=str)


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    """The traces and spans that it is linked to."""
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def identity(span: ReadableSpan) -> tuple[int, int]:
    """Its trace and its own id."""
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    """The trace and the id of the one it is part of."""
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)
