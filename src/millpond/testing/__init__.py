"""The public test kit: virtual time, simulation, and the suite every store must pass."""
