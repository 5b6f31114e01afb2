"""Queue order: which queued task is next, and the structures that answer in O(log n)."""
