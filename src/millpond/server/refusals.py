"""Refusals: what the server does not do, with the HTTP status, a code and a sentence for each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from millpond import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

DOCS = "millpond docs http-api"
RETRY_SOON = 1.0
"""Seconds after which to ask a full pool again."""

RETRY_STORE = 5.0
"""Seconds after which to ask a store again that failed."""


class Refused(Exception):
    """A request that is not carried out."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        fields: Mapping[str, Any] | None = None,
        docs: str = DOCS,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.fields = dict(fields or {})
        self.docs = docs
        self.headers = dict(headers or {})
        if retry_after is not None:
            # Whole seconds, as the header has them, and never less than one.
            self.headers["retry-after"] = str(max(math.ceil(retry_after), 1))

    def response(self) -> Response:
        """Return it as a response."""
        error = {
            "code": self.code,
            "message": self.message,
            "fields": self.fields,
            "docs": self.docs,
        }
        return Response(
            msgspec.json.encode({"error": error}, enc_hook=str),
            self.status,
            self.headers,
            "application/json",
        )


_STATUS: tuple[tuple[type[errors.MillpondError], int, float | None], ...] = (
    (errors.PoolFull, 429, RETRY_SOON),
    (errors.NoCapacity, 503, RETRY_SOON),
    (errors.PayloadTooLarge, 413, None),
    (errors.BatchTooLarge, 413, None),
    (errors.UnknownPool, 404, None),
    (errors.UnknownTask, 404, None),
    (errors.UnknownTrigger, 404, None),
    (errors.UnknownEvent, 404, None),
    (errors.IdempotencyConflict, 409, None),
    (errors.StaleRevision, 409, None),
    (errors.NotWaiting, 409, None),
    (errors.ConfigConflict, 409, None),
    (errors.PoolClosed, 409, None),
    (errors.NewerPool, 409, None),
    (errors.NotSupported, 409, None),
    (errors.ConfigError, 422, None),
    (errors.BadPayload, 422, None),
    (errors.Unstorable, 422, None),
    (errors.UnstorableText, 422, None),
    (errors.NotOpen, 503, RETRY_STORE),
    (errors.StoreError, 503, RETRY_STORE),
)
"""The HTTP status of each error, the first that fits, and when to try again."""

_SECRET = ("path", "value")
"""Fields of errors that may hold where the store is, or what a client sent."""


def refusal_of(error: errors.MillpondError) -> Refused:
    """Return the refusal that stands for an error of the library."""
    status, retry_after = next(
        ((status, after) for kind, status, after in _STATUS if isinstance(error, kind)),
        (500, None),
    )
    fields = {
        # An id has 63 bits, and many readers of JSON round what has more than 53.
        name: str(value) if name == "task_id" and value is not None else value
        for name, value in vars(error).items()
        if _may_show(name, value)
    }
    return Refused(
        status,
        error.code,
        error.message,
        fields=fields,
        docs=error.docs,
        retry_after=retry_after,
    )


def _may_show(name: str, value: object) -> bool:
    return (
        not name.startswith("_")
        and name not in (*_SECRET, "message")
        and isinstance(value, (str, int, float, bool, type(None)))
    )
