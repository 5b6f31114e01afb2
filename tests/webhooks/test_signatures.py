"""Signatures of webhooks: known answers, every way to be wrong, and nothing said of the secrets."""

from __future__ import annotations

import base64
import pickle
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from millpond.errors import ConfigError
from millpond.webhooks import github, standard, timestamped
from millpond.webhooks.refusal import Refused

OLD, NEW = b"o" * 24, b"n" * 32
NOW = 1_700_000_000.0


def headers(answer: dict[str, str]) -> dict[str, list[str]]:
    return {name: [value] for name, value in answer.items()}


def refused(scheme: Any, answer: dict[str, list[str]], body: bytes, now: float = NOW) -> Refused:
    with pytest.raises(Refused) as caught:
        scheme.verify(answer, body, now)
    return caught.value


def test_the_example_of_the_standard() -> None:
    scheme = standard("whsec_plJ3nmyCDGBKInavdOK15jsl")
    answer = {
        "webhook-id": ["msg_loFOjxBNrRLzqYUf"],
        "webhook-timestamp": ["1731705121"],
        "webhook-signature": ["v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0="],
    }
    body = b'{"event_type":"ping","data":{"success":true}}'
    assert "msg_loFOjxBNrRLzqYUf" == scheme.verify(answer, body, 1731705121.0)


def test_the_example_of_github() -> None:
    scheme = github("It's a Secret to Everybody")
    answer = {
        "x-hub-signature-256": [
            "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
        ]
    }
    identity = scheme.verify(answer, b"Hello, World!", NOW)
    assert identity is not None
    assert identity.startswith("sha256:dffd6021bb2bd5b0af676290809ec3a5")


@pytest.mark.rows("WH-02")
@given(st.binary(max_size=200), st.integers(0, 10**10), st.text("abc_-0", min_size=1))
def test_what_was_signed_is_taken_and_nothing_else_is(
    body: bytes, moment: int, identity: str
) -> None:
    scheme = standard(NEW)
    answer = headers(scheme.sign(identity, body, moment))
    assert identity == scheme.verify(answer, body, float(moment))
    assert 401 == refused(scheme, answer, body + b" ", float(moment)).status
    other = {**answer, "webhook-id": [identity + "x"]}
    assert 401 == refused(scheme, other, body, float(moment)).status
    later = {**answer, "webhook-timestamp": [str(moment + 1)]}
    assert 401 == refused(scheme, later, body, float(moment)).status
    assert 401 == refused(standard(OLD), answer, body, float(moment)).status


@given(st.binary(max_size=60), st.integers(0, 255), st.integers(0, 31))
def test_one_bit_is_enough(body: bytes, flip: int, place: int) -> None:
    assume(flip)
    for scheme in (timestamped(NEW), github(NEW)):
        answer = scheme.sign(body, NOW) if hasattr(scheme, "_tolerance") else scheme.sign(body)  # type: ignore[call-arg]
        name, value = next(iter(answer.items()))
        start, _, signature = value.rpartition("=")
        broken = bytearray.fromhex(signature)
        broken[place] ^= flip
        scheme.verify(headers(answer), body, NOW)
        wrong = {name: [f"{start}={broken.hex()}"]}
        assert 401 == refused(scheme, wrong, body).status


@pytest.mark.rows("WH-02")
def test_a_secret_is_exchanged_without_a_gap() -> None:
    sender_old, sender_new = standard(OLD), standard(NEW)
    receiver = standard(NEW, OLD)
    for sender in (sender_old, sender_new):
        assert "a" == receiver.verify(headers(sender.sign("a", b"{}", NOW)), b"{}", NOW)
    # Or the sender signs with both.
    one, other = (sender.sign("a", b"{}", NOW) for sender in (sender_old, sender_new))
    both = {
        **one,
        "webhook-signature": f"{one['webhook-signature']} {other['webhook-signature']}",
    }
    assert "a" == sender_new.verify(headers(both), b"{}", NOW)
    assert "a" == sender_old.verify(headers(both), b"{}", NOW)
    assert 401 == refused(standard(b"x" * 24), headers(both), b"{}").status


@pytest.mark.rows("WH-02")
@pytest.mark.parametrize("away", [-301, 301, 10**6])
def test_a_request_too_old_or_from_the_future_is_refused(away: int) -> None:
    for scheme in (standard(NEW), timestamped(NEW)):
        found = (
            scheme.sign("a", b"{}", NOW)  # type: ignore[call-arg, arg-type]
            if hasattr(scheme, "_prefix")
            else scheme.sign(b"{}", NOW)
        )
        answer = refused(scheme, headers(found), b"{}", NOW + away)
        assert (403, "replayed") == (answer.status, answer.code)
        scheme.verify(headers(found), b"{}", NOW + 300)
        # Without a valid signature, the age is not revealed.
        assert 401 == refused(scheme, headers(found), b"[]", NOW + away).status


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"webhook-id": ["a"]},
        {"webhook-id": ["a"], "webhook-timestamp": ["1"], "webhook-signature": [""]},
        {"webhook-id": ["a"], "webhook-timestamp": ["1"], "webhook-signature": ["v1,"]},
        {"webhook-id": ["a"], "webhook-timestamp": ["1"], "webhook-signature": ["v1,!!!"]},
        {"webhook-id": ["a"], "webhook-timestamp": ["1"], "webhook-signature": ["v2,AAAA"]},
        {"webhook-id": ["a"], "webhook-timestamp": ["1"], "webhook-signature": ["v1,AA"] * 2},
        {"webhook-id": ["a"], "webhook-timestamp": ["1"], "webhook-signature": ["v1,AA " * 99]},
        {"webhook-id": ["\udcff"], "webhook-timestamp": ["1"], "webhook-signature": ["v1,\udcff"]},
    ],
)
def test_a_request_without_a_good_signature(found: dict[str, list[str]]) -> None:
    assert 401 == refused(standard(NEW), found, b"{}").status


@pytest.mark.parametrize(
    "value",
    ["", "t=1", "v1=00", "t=1,t=2,v1=00", "t=1,v1=zz", "t=1,v0=00", "sha1=00", "t=,v1="],
)
def test_headers_that_make_no_sense(value: str) -> None:
    assert 401 == refused(timestamped(NEW), {"stripe-signature": [value]}, b"{}").status
    assert 401 == refused(github(NEW), {"x-hub-signature-256": [value]}, b"{}").status


@pytest.mark.parametrize("timestamp", ["", "1e9", "-5", "٣", "9" * 400, " 1", "0x10"])
def test_a_signed_timestamp_that_is_none(timestamp: str) -> None:
    scheme = standard(NEW)
    content = f"a.{timestamp}.{{}}".encode()
    signed = base64.b64encode(scheme._secrets[0].sign(content)).decode()
    answer = {
        "webhook-id": ["a"],
        "webhook-timestamp": [timestamp],
        "webhook-signature": [f"v1,{signed}"],
    }
    assert 400 == refused(scheme, answer, b"{}").status


@pytest.mark.rows("WH-04")
def test_secrets_are_never_shown() -> None:
    scheme = standard(b"correct horse battery staple")
    answer = f"{scheme!r} {scheme._secrets!r} {vars(scheme)!r}"
    assert "horse" not in answer
    with pytest.raises(TypeError):
        pickle.dumps(scheme._secrets[0])
    for bad in ("whsec_horse battery", "whsec_aG9yc2U=", b"horse", ""):
        with pytest.raises(ConfigError) as caught:
            standard(bad)
        assert "horse" not in str(caught.value)
        assert "aG9yc2U" not in str(caught.value)
    for make in (standard, timestamped, github):
        with pytest.raises(ConfigError, match="one or several"):
            make()
    with pytest.raises(ConfigError, match="text or bytes"):
        standard(7)  # type: ignore[arg-type]
