"""The name of the user who gives a command, for `submitted_by`."""

from __future__ import annotations


def operator() -> str:
    """Return `cli:` and the name of the user, or `cli` alone."""
    import getpass

    try:
        return f"cli:{getpass.getuser()}"
    except (ImportError, KeyError, OSError):
        return "cli"
