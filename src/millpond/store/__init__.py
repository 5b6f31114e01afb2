"""Stores: where tasks are kept. One protocol, one behaviour; see `millpond.store.protocol`."""
