"""Millpond in the frameworks of others. Each module imports its framework, and only that one."""
