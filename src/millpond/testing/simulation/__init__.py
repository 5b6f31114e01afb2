"""Seeded simulation over any store, with the trace model and the invariants that judge it."""
