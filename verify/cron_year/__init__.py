"""A year of schedules on virtual time, and an oracle that knows when each had to fire."""
