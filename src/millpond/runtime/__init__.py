"""The runtime: carries out what the core decides, the same way over every store."""
