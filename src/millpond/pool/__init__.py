"""Pools: the public API over the runtime."""
