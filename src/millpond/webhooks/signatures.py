"""Signatures: who may tell us something, and whether it is told for the first time.

Pure: a request's headers and body and the time go in, what was signed comes out, or a refusal. Each
scheme is HMAC-SHA256 under a secret that both sides know. Several secrets may be good at a time, so
that one can be exchanged for another without a gap.

    standard     the Standard Webhooks scheme: id, timestamp and body are signed
    timestamped  `t=...,v1=...` in one header, as Stripe has it: timestamp and body are signed
    github       `sha256=...`: only the body is signed, so there is no telling how old it is
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
"""Bytes that a secret must have at least."""

MOST_SIGNATURES = 16
"""How many signatures of one request are looked at: each costs a hash per secret."""

TOLERANCE = 300.0
"""Seconds that a request may be old, or ahead of our clock."""

PREFIX = "whsec_"


class Secret:
    """A secret that cannot be seen by looking at it."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def sign(self, content: bytes) -> bytes:
        """Return the signature of something."""
        return hmac.new(self._value, content, hashlib.sha256).digest()

    def __repr__(self) -> str:
        return "<secret>"

    def __reduce__(self) -> str:
        raise TypeError("a secret is not to be pickled")


class Scheme(Protocol):
    """How the requests of an endpoint are signed."""

    def verify(self, headers: Mapping[str, Sequence[str]], body: bytes, now: float) -> str | None:
        """Return the id that was signed with the body, if any; raise Refused if none was signed.

        The names of headers are in small letters.
        """
        ...


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

    Nothing says when that was. So the id of the event is a digest of the body, whatever the headers
    say: what is sent once more is the same event for as long as events are known.
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
        told_at = _one(headers, f"{self._prefix}-timestamp")
        given = _one(headers, f"{self._prefix}-signature")
        versions = [one.partition(",") for one in given.split(" ")]
        found = [_base64(signature) for version, _, signature in versions if version == "v1"]
        _must_match(self._secrets, found, _content(identity, told_at, body=body))
        _must_be_recent(told_at, now, self._tolerance)
        return identity

    def sign(self, event_id: str, body: bytes, now: float) -> dict[str, str]:
        """Return the headers that a sender with our first secret would send."""
        told_at = str(int(now))
        signed = self._secrets[0].sign(_content(event_id, told_at, body=body))
        return {
            f"{self._prefix}-id": event_id,
            f"{self._prefix}-timestamp": told_at,
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
        """Return nothing: the id of what happened is in the body, where there is one."""
        parts = [one.strip().partition("=") for one in _one(headers, self._header).split(",")]
        times = [value for name, _, value in parts if name == "t"]
        if len(times) != 1:
            raise unsigned(f"the header {self._header} must tell one timestamp, t=...")
        found = [_hexadecimal(value) for name, _, value in parts if name == self._version]
        _must_match(self._secrets, found, _content(times[0], body=body))
        _must_be_recent(times[0], now, self._tolerance)
        return None

    def sign(self, body: bytes, now: float) -> dict[str, str]:
        """Return the header that a sender with our first secret would send."""
        told_at = str(int(now))
        signed = self._secrets[0].sign(_content(told_at, body=body)).hex()
        return {self._header: f"t={told_at},{self._version}={signed}"}


class BodyOnly:
    """A signature of the body and nothing else."""

    def __init__(self, secrets: tuple[Secret, ...], header: str) -> None:
        self._secrets = secrets
        self._header = header

    def verify(self, headers: Mapping[str, Sequence[str]], body: bytes, now: float) -> str | None:  # noqa: ARG002 - it tells no time
        """Return a digest of the body: nothing else was signed."""
        kind, _, signature = _one(headers, self._header).partition("=")
        found = [_hexadecimal(signature)] if kind == "sha256" else []
        _must_match(self._secrets, found, body)
        return digest(body)

    def sign(self, body: bytes) -> dict[str, str]:
        """Return the header that a sender with our first secret would send."""
        return {self._header: f"sha256={self._secrets[0].sign(body).hex()}"}


def digest(body: bytes) -> str:
    """Return what stands for the id of an event that tells none."""
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


# What the schemes have in common


def _secrets(given: Sequence[str | bytes], *, encoded: bool = False) -> tuple[Secret, ...]:
    if not given:
        raise ConfigError("secrets", "none", "must be given, one or several: anybody could sign")
    return tuple(Secret(_secret(one, encoded=encoded)) for one in given)


def _secret(given: str | bytes, *, encoded: bool) -> bytes:
    """Return the bytes of a secret; no error tells what they are."""
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
        told = "is missing" if not found else "was sent more than once"
        raise unsigned(f"the header {name} {told}")
    return found[0]


def _content(*told: str, body: bytes) -> bytes:
    """Return what is signed: the parts, with dots between them."""
    return b".".join([*(one.encode("utf-8", "surrogateescape") for one in told), body])


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
    """Object unless one of the signatures is that of one of the secrets.

    All are compared, whichever fits: how long it takes tells nothing.
    """
    if not found or len(found) > MOST_SIGNATURES:
        raise unsigned("there is no signature of a kind that is known here, or there are too many")
    expected = [secret.sign(content) for secret in secrets]
    fits = [hmac.compare_digest(ours, theirs) for ours in expected for theirs in found]
    if not any(fits):
        raise unsigned("the signature does not fit the request, under any secret in use")


def _must_be_recent(told_at: str, now: float, tolerance: float) -> None:
    """Object to a request that is too old, or from the future; it was signed, so it may be told."""
    if not (told_at.isascii() and told_at.isdecimal() and len(told_at) <= 12):
        raise Refused(400, "bad_timestamp", "the timestamp must be whole seconds since 1970")
    away = now - int(told_at)
    if abs(away) > tolerance:
        told = f"{abs(away):.0f} s {'old' if away > 0 else 'ahead of our clock'}"
        raise Refused(
            403, "replayed", f"the request is {told}; at most {tolerance:g} s are allowed"
        )
