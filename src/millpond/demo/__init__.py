"""`make demo`: pools and a bulkhead at work, each promise checked while it is shown."""
