"""`make demo`: a bulkhead and a fair pool at work, each promise checked while it is shown."""
