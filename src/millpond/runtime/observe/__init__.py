"""Observing: hooks, probes, log records, the minute report, the watchdog and outages."""
