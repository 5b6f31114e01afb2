"""The same API for threads: thin classes over the loop of an open Millpond."""
