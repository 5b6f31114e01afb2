"""The fleet: registration, heartbeats, leadership, recovery and hints between processes."""
