"""What an endpoint says to a request that it does not take."""

from __future__ import annotations


class Refused(Exception):
    """A request is not taken; what is said of it tells its sender nothing that helps to forge."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers


def unsigned(message: str) -> Refused:
    """Return the refusal of a request that is not signed as it must be."""
    return Refused(401, "bad_signature", message)
