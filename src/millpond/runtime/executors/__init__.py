"""Executors: where handlers run that do not run on the event loop."""
