"""The memory store: the in-process default, and the reference that every other store must match."""

from millpond.store.memory.store import MemoryStore as MemoryStore

__all__ = ["MemoryStore"]
