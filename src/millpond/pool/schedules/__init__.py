"""Schedules: tasks that are submitted at the moments of a crontab line or interval."""
