"""Jobs: one attempt of one task, the code that runs it, and what its exception means."""
