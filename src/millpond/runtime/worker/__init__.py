"""The worker: leases tasks, runs their handlers, settles their attempts."""
