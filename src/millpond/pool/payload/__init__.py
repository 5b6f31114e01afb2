"""Payloads: typed arguments and results as JSON bytes, and back to the same types."""
