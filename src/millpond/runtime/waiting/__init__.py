"""Waiting: how results, progress and the end of runs reach the code that awaits them."""
