"""Verify the signatures of requests.

Pure functions of headers, body and time: they return the signed id or raise a refusal. Each scheme
is HMAC-SHA256 with a shared secret. Several secrets may be valid at a time, so that one can be
rotated without a gap.

    standard     the Standard Webhooks scheme: id, timestamp and body are signed
    timestamped  `t=...,v1=...` in one header, as Stripe has it: timestamp and body are signed
    github       `sha256=...`: only the body is signed, so its age is not known
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import TYPE_CHECKING, Protocol

from millpond.core import validation as check
from millpond.errors import ConfigError
from millpond.webhooks.refusal import Refused, unsigned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from millpond.core.validation import Seconds

SHORTEST = 16
"""Shortest secret in bytes."""

MOST_SIGNATURES = 16
"""Most signatures to check per request: each costs a comparison per secret."""

TOLERANCE = 300.0
"""Most seconds between the timestamp of a request and our clock."""

PREFIX = "whsec_"


class Secret:
    """A secret that repr() and pickle do not reveal."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def sign(self, content: bytes) -> bytes:
        """Return the signature of the content."""
        return hmac.new(self._value, content, hashlib.sha256).digest()

    def __repr__(self) -> str:
        return "<secret>"

    def __reduce__(self) -> str:
        raise TypeError("a secret cannot be pickled")


class Scheme(Protocol):
    """A signature scheme."""

    def verify(self, headers: Mapping[str, Sequence[str]], body: bytes, now: float) -> str | None:
        """Return the signed id, if the scheme has one; raise Refused for a bad signature.

        Header names are in lower case.
        """


def standard(
    *secrets: str | bytes, tolerance: Seconds = TOLERANCE, prefix: str = "webhook"
) -> Standard:
    """Standard Webhooks: `webhook-id`, `webhook-timestamp`, `webhook-signature`.

    Secrets are `whsec_` and base64, or the bytes themselves. `prefix="svix"` is for senders that
    name their headers so.
    """
    return Standard(
        _secrets(secrets, encoded=True), check.seconds("tolerance", tolerance), prefix.lower()
    )


def timestamped(
    *secrets: str | bytes,
    tolerance: Seconds = TOLERANCE,
    header: str = "stripe-signature",
    version: str = "v1",
) -> Timestamped:
    """`t=1492774577,v1=5257a8...` in one header: hexadecimal, over timestamp, a dot and body."""
    return Timestamped(
        _secrets(secrets), check.seconds("tolerance", tolerance), header.lower(), version
    )


def github(*secrets: str | bytes, header: str = "x-hub-signature-256") -> BodyOnly:
    """`sha256=...` over the body alone, as GitHub and many others sign.

    No timestamp is signed. So the id of the event is a digest of the body, whatever the headers
    say: the same body, sent again, is the same event for as long as events are kept.
    """
    return BodyOnly(_secrets(secrets), header.lower())


class Standard:
    """The Standard Webhooks scheme."""

    def __init__(self, secrets: tuple[Secret, ...], tolerance: float, prefix: str) -> None:
        self._secrets = secrets
        self._tolerance = tolerance
        self._prefix = prefix

    def verify(self, headers: Mapping[str, Sequence[str]], body: bytes, now: float) -> str | None:
        """Return the id that was signed."""
        identity = _one(headers, f"{self._prefix}-id")
        timestamp = _one(headers, f"{self._prefix}-timestamp")
        given = _one(headers, f"{self._prefix}-signature")
        versions = [one.partition(",") for one in given.split(" ")]
        found = [_base64(signature) for version, _, signature in versions if version == "v1"]
        _must_match(self._secrets, found, _content(identity, timestamp, body=body))
        _must_be_recent(timestamp, now, self._tolerance)
        return identity

    def sign(self, event_id: str, body: bytes, now: float) -> dict[str, str]:
        """Return the headers that a sender with our first secret would send."""
        timestamp = str(int(now))
        signed = self._secrets[0].sign(_content(event_id, timestamp, body=body))
        return {
            f"{self._prefix}-id": event_id,
            f"{self._prefix}-timestamp": timestamp,
            f"{self._prefix}-signature": f"v1,{base64.b64encode(signed).decode()}",
        }


class Timestamped:
    """Timestamp and signatures in one header."""

    def __init__(
        self, secrets: tuple[Secret, ...], tolerance: float, header: str, version: str
    ) -> None:
        self._secrets = secrets
        self._tolerance = tolerance
        self._header = header
        self._version = version

    def verify(self, headers: Mapping[str, Sequence[str]], body: bytes, now: float) -> str | None:
        """Return None: the id of the event, if there is one, is in the body."""
        parts = [one.strip().partition("=") for one in _one(headers, self._header).split(",")]
        times = [value for name, _, value in parts if name == "t"]
        if len(times) != 1:
            raise unsigned(f"the header {self._header} must have one timestamp, t=...")
        found = [_hexadecimal(value) for name, _, value in parts if name == self._version]
        _must_match(self._secrets, found, _content(times[0], body=body))
        _must_be_recent(times[0], now, self._tolerance)
        return None

    def sign(self, body: bytes, now: float) -> dict[str, str]:
        """Return the header that a sender with our first secret would send."""
        timestamp = str(int(now))
        signed = self._secrets[0].sign(_content(timestamp, body=body)).hex()
        return {self._header: f"t={timestamp},{self._version}={signed}"}


class BodyOnly:
    """A signature of the body and nothing else."""

    def __init__(self, secrets: tuple[Secret, ...], header: str) -> None:
        self._secrets = secrets
        self._header = header

    def verify(self, headers: Mapping[str, Sequence[str]], body: bytes, now: float) -> str | None:  # noqa: ARG002 - no timestamp is signed
        """Return a digest of the body: nothing else is signed."""
        kind, _, signature = _one(headers, self._header).partition("=")
        found = [_hexadecimal(signature)] if kind == "sha256" else []
        _must_match(self._secrets, found, body)
        return digest(body)

    def sign(self, body: bytes) -> dict[str, str]:
        """Return the header that a sender with our first secret would send."""
        return {self._header: f"sha256={self._secrets[0].sign(body).hex()}"}


def digest(body: bytes) -> str:
    """Return the id of an event without one: a digest of its body."""
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


# What the schemes have in common


def _secrets(given: Sequence[str | bytes], *, encoded: bool = False) -> tuple[Secret, ...]:
    if not given:
        raise ConfigError("secrets", "none", "must be given, one or several")
    return tuple(Secret(_secret(one, encoded=encoded)) for one in given)


def _secret(given: str | bytes, *, encoded: bool) -> bytes:
    """Return the bytes of a secret; errors do not reveal them."""
    if not isinstance(given, (str, bytes)):
        raise ConfigError("secrets", type(given).__name__, "must be text or bytes")
    if isinstance(given, bytes):
        value = given
    elif encoded:
        value = _decoded(given.removeprefix(PREFIX))
    else:
        value = given.encode()
    if len(value) < SHORTEST:
        reason = f"has {len(value)} bytes, and must have at least {SHORTEST}: it could be guessed"
        raise ConfigError("secrets", "...", reason)
    return value


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        reason = f"must be {PREFIX} and base64, as the sender shows it, or bytes"
        raise ConfigError("secrets", "...", reason) from None


def _one(headers: Mapping[str, Sequence[str]], name: str) -> str:
    found = headers.get(name, ())
    if len(found) != 1:
        problem = "is missing" if not found else "was sent more than once"
        raise unsigned(f"the header {name} {problem}")
    return found[0]


def _content(*parts: str, body: bytes) -> bytes:
    """Return the signed content: the parts and the body, joined by dots."""
    return b".".join([*(one.encode("utf-8", "surrogateescape") for one in parts), body])


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _hexadecimal(text: str) -> bytes:
    try:
        return binascii.unhexlify(text)
    except (binascii.Error, ValueError):
        return b""


def _must_match(secrets: tuple[Secret, ...], found: list[bytes], content: bytes) -> None:
    """Refuse unless one of the signatures matches one of the secrets.

    It compares all, so that the time it takes reveals nothing.
    """
    if not found or len(found) > MOST_SIGNATURES:
        raise unsigned("no signature of a known kind, or too many")
    expected = [secret.sign(content) for secret in secrets]
    fits = [hmac.compare_digest(ours, theirs) for ours in expected for theirs in found]
    if not any(fits):
        raise unsigned("the signature does not match the request with any secret in use")


def _must_be_recent(timestamp: str, now: float, tolerance: float) -> None:
    """Refuse a request that is too old or from the future. Only its signer sees this message."""
    if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 12):
        raise Refused(400, "bad_timestamp", "the timestamp must be whole seconds since 1970")
    away = now - int(timestamp)
    if abs(away) > tolerance:
        age = f"{abs(away):.0f} s {'old' if away > 0 else 'ahead of our clock'}"
        raise Refused(403, "replayed", f"the request is {age}; at most {tolerance:g} s are allowed")
