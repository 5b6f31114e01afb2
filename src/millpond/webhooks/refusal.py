"""The refusal of a request."""

from __future__ import annotations


class Refused(Exception):
    """A request is refused. The message contains nothing that helps to forge a request."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers


def unsigned(message: str) -> Refused:
    """Return the refusal of a request with a bad signature."""
    return Refused(401, "bad_signature", message)
