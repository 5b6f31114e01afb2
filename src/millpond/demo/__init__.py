"""`make demo`: a bulkhead, a fair pool and a fleet at work, each promise checked while shown."""
