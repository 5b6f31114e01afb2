"""Runs: a seed of tasks and everything they submit, watched to its end."""
