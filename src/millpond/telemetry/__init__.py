"""Telemetry: traces, metrics and log records of pools, for tools that others made.

    millpond.telemetry.otel         spans and metrics for OpenTelemetry; extra `otel`
    millpond.telemetry.prometheus   a collector that is read at scrape time; extra `prometheus`
    millpond.telemetry.logs         pool and task on log records; needs nothing

Each is imported by whoever wants it. Nothing else of the library imports any of them.
"""
