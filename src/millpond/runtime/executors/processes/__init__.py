"""The process executor: handlers in child processes, which the parent can kill."""
