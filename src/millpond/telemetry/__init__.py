"""Telemetry: traces, metrics and log records of pools, for OpenTelemetry, Prometheus and logging.

    millpond.telemetry.otel         spans and metrics for OpenTelemetry; extra `otel`
    millpond.telemetry.prometheus   a collector that is read at scrape time; extra `prometheus`
    millpond.telemetry.logs         pool and task on log records; needs nothing

Import the one you need. The rest of the library imports none of them.
"""
