"""Keep worker processes running: heartbeats, health, systemd, restarts and reloads."""
