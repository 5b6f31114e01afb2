"""Differential fuzzing of the PostgreSQL functions against the verbs: `make fuzz`."""
