"""Translate PostgreSQL errors: one table from SQLSTATE to MillpondErrors.

A server that refuses a connection does so before a driver can read its code, so Millpond recognises
those refusals by their English text. It reports a text in another language as it came, as a server
that is unreachable.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

import psycopg

from millpond.errors import (
    MillpondError,
    MissingRights,
    OutcomeUnknown,
    PoolerBetween,
    StoreCorrupt,
    StoreDenied,
    StoreError,
    StoreFailing,
    StoreFull,
    StoreLocked,
    StoreMissing,
    StoreNotWritable,
    StoreUnreachable,
    TooManyConnections,
    TransactionAborted,
    UnstorableText,
)
from millpond.store.postgres.quoting import quoted
from millpond.store.postgres.url import bad_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millpond.store.postgres.url import Address

Meaning: TypeAlias = tuple[type[StoreError], str]

_GONE: Meaning = (
    StoreUnreachable,
    "ended the connection; nothing was changed, and it is tried again with a new one",
)
_READ_ONLY: Meaning = (
    StoreNotWritable,
    (
        "may only be read: it is a replica, or its default_transaction_read_only is on; give the "
        "primary's address, or all hosts as host1,host2"
    ),
)
_DENIED: Meaning = (
    StoreDenied,
    "did not let this user in; see user and password in the URL, and the server's pg_hba.conf",
)
_NO_DATABASE: Meaning = (
    StoreMissing,
    "has no such database; create it (`createdb`), or correct the name after the last / of the URL",
)
_FULL_HOUSE: Meaning = (
    TooManyConnections,
    (
        "takes no further connections; close some, raise max_connections, or put a pooler before "
        "it (and pooler=1 into the URL)"
    ),
)
_IN_THE_WAY: Meaning = (
    StoreLocked,
    "undid a transaction that was in the way of another; nothing of it was changed: try again",
)
_NO_TABLES: Meaning = (
    StoreMissing,
    (
        "lacks the tables of the store, or their schema; open it once with migrate=True, or "
        "correct the schema in the URL"
    ),
)
_LETTERS: Meaning = (
    UnstorableText,
    (
        "cannot hold a character of a text in its encoding; nothing was changed: use a database "
        "that was created with ENCODING 'UTF8'"
    ),
)
_POOLED: Meaning = (
    PoolerBetween,
    "lost track of prepared statements, as it does behind a pooler; write pooler=1 into the URL",
)
_NO_OPTIONS: Meaning = (
    PoolerBetween,
    (
        "is reached through a pooler that takes no such setting at the start of a session; take it "
        "out of the URL (and of PGOPTIONS), and give it to the role: ALTER ROLE ... SET ..."
    ),
)

_MEANINGS: Mapping[str, Meaning] = {
    "08": _GONE,
    "22021": _LETTERS,
    "22P05": _LETTERS,
    "25006": _READ_ONLY,
    "25P02": (
        TransactionAborted,
        "got a submit in a transaction that has failed; roll it back and do its work again",
    ),
    "25P03": (
        StoreUnreachable,
        (
            "ended the connection because its transaction stood idle for too long, as in a process "
            "that was frozen; nothing of it was changed"
        ),
    ),
    "26000": _POOLED,
    "28": _DENIED,
    "3D000": _NO_DATABASE,
    "3F000": _NO_TABLES,
    "40001": _IN_THE_WAY,
    "40P01": _IN_THE_WAY,
    "42P01": _NO_TABLES,
    "42P05": _POOLED,
    "53100": (
        StoreFull,
        "has no room left on its disk; make room, then go on: nothing was changed",
    ),
    "53200": (StoreFailing, "has not enough memory; nothing was changed"),
    "53300": _FULL_HOUSE,
    "54000": (
        UnstorableText,
        (
            "cannot hold a key that long: keys, lanes and shares of one task may have some 2,600 "
            "bytes together; nothing was changed"
        ),
    ),
    "55P03": (
        StoreLocked,
        (
            "is locked: another transaction held a lock for too long; find it in "
            "pg_stat_activity (`millpond doctor` names it) and end it; nothing of ours was changed"
        ),
    ),
    "57014": (
        StoreLocked,
        (
            "cancelled a statement, because it took too long or on the order of an administrator; "
            "nothing was changed: look for a session that blocks others in pg_stat_activity"
        ),
    ),
    "57P04": _NO_DATABASE,
    "57": (StoreUnreachable, "is going down or starting up; it is tried again"),
    "58": (StoreFailing, "met an error of its disk or system; look into the server's log"),
    "XX001": (StoreCorrupt, "is damaged; stop its workers and restore a backup"),
    "XX002": (StoreCorrupt, "has a damaged index; stop its workers and REINDEX, or restore"),
}
"""By SQLSTATE, or by its first two characters (its class)."""

_SAID: tuple[tuple[re.Pattern[str], Meaning], ...] = tuple(
    (re.compile(words), meaning)
    for words, meaning in (
        (
            (
                r"password|authentication|pg_hba\.conf|role \".*\" does not exist|no such user"
                r"|not permitted"
            ),
            _DENIED,
        ),
        (r"database \".*\" does not exist|no such database", _NO_DATABASE),
        (r"unsupported startup parameter", _NO_OPTIONS),
        (r"too many (clients|connections)|connection slots|no more connections", _FULL_HOUSE),
        (r"read-only|not read-write|hot standby|not accept.* read-write", _READ_ONLY),
    )
)
_NOT_ALLOWED = re.compile(r"permission denied for database")
_BAD_URL = re.compile(r"invalid (URI|port|integer|.* value|connection option)|unknown host setting")

_UNREACHABLE = (
    "cannot be reached; see that the server runs, that host and port are right, and that no "
    "firewall is between"
)

RETRYABLE = frozenset({"40001", "40P01"})


def code_of(error: BaseException | None) -> str | None:
    """Return the SQLSTATE; None if the server did not raise this."""
    return error.sqlstate if isinstance(error, psycopg.Error) else None


def of_database(error: BaseException) -> bool:
    """Return whether the database or its driver raised this error, translated or not."""
    return isinstance(error, psycopg.Error) or isinstance(error.__cause__, psycopg.Error)


def is_retryable(error: BaseException | None) -> bool:
    """Return whether an immediate retry may succeed: it conflicted with another transaction."""
    return code_of(error) in RETRYABLE


def is_of_the_moment(error: BaseException | None) -> bool:
    """Return whether the cause is temporary, or outside of this statement.

    Other transactions, time, room, rights: the statement itself is not at fault.
    """
    code = code_of(error)
    return code is not None and code.startswith(("25", "40", "42501", "53", "55", "57", "58"))


_CHECK_VIOLATION = "23514"
"""Only counts have constraints: the arguments were not wrong."""


def is_of_value(error: psycopg.Error) -> bool:
    """Return whether the server or the driver refused one value."""
    code = error.sqlstate
    if code is None:
        return isinstance(error, psycopg.DataError)
    return code.startswith(("22", "23", "54"))


def is_gone(error: BaseException | None) -> bool:
    """Return whether the connection that raised this is lost.

    A driver that lost its connection raises an error without a code.
    """
    if not isinstance(error, psycopg.Error):
        return False
    code = error.sqlstate
    if code is None:
        return isinstance(error, psycopg.OperationalError)
    return code.startswith(("08", "57P")) or code == "25P03" or error.diag.severity == "FATAL"


def translated(error: psycopg.Error, address: Address, *, waited: float = 0.0) -> MillpondError:
    """Return the MillpondError for a PostgreSQL error; it names the server and says what to do."""
    code = code_of(error)
    ours = _by_code(code, error, address) if code is not None else _by_kind(error, address)
    if isinstance(ours, StoreLocked):
        ours.waited = waited
    elif isinstance(ours, StoreFailing):
        ours.sqlite = code or ""
    if isinstance(ours, StoreError):
        ours.of_counts = code == _CHECK_VIOLATION
        ours.of_value = ours.of_value or (is_of_value(error) and not ours.of_counts)
    ours.__cause__ = error
    return ours


def not_connected(error: psycopg.Error, address: Address) -> MillpondError:
    """Return the error for a failed connection attempt."""
    text = _one_line(error)
    ours: MillpondError
    if isinstance(error, psycopg.ProgrammingError) or _BAD_URL.search(text):
        ours = bad_url(address.shown, f"is not understood by the driver ({text})")
    elif _NOT_ALLOWED.search(text):
        ours = missing_rights(address, ["GRANT CONNECT ON DATABASE ... TO ..."], text)
    else:
        found = next((meaning for words, meaning in _SAID if words.search(text)), None)
        kind, advice = found or (StoreUnreachable, _UNREACHABLE)
        ours = kind(f"{address} {advice} ({text})", path=str(address))
    ours.__cause__ = error
    return ours


def commit_failed(error: psycopg.Error, address: Address) -> MillpondError:
    """Return the error for a COMMIT that raised: if the server refused, nothing is stored.

    Where the connection was lost, or the server went down, the commit may have happened.
    """
    if not is_gone(error):
        return translated(error, address)
    unknown = OutcomeUnknown(
        f"the connection to {address} was lost while it committed ({_one_line(error)}): whether "
        "the change is stored is not known; ask before doing it again, or repeat it with the "
        "same idempotency key",
        path=str(address),
    )
    unknown.__cause__ = error
    return unknown


def missing_rights(
    address: Address, grants: list[str], lacking: str, advice: str = ""
) -> MissingRights:
    """Return the error for missing privileges, with the grants that fix it."""
    return MissingRights(
        f"the user of {address} lacks rights ({lacking}); as an administrator run: "
        f"{'; '.join(grants)}{advice}. Nothing was changed",
        path=str(address),
        grants=tuple(grants),
    )


def aborted(address: Address) -> TransactionAborted:
    """Return the error for a transaction that failed before, and so commits nothing."""
    _, advice = _MEANINGS["25P02"]
    return TransactionAborted(f"{address} {advice}", path=str(address))


def may_only_be_read(address: Address) -> StoreError:
    """Return the error for a transaction that may not write."""
    kind, _ = _READ_ONLY
    return kind(
        f"the transaction on {address} may only read: begin one that may write", path=str(address)
    )


def of_driver(error: BaseException, address: Address) -> MillpondError | None:
    """Return the MillpondError for an error of any driver; None if the server did not raise it.

    Frameworks raise errors of their own, and have that of their driver behind them.
    """
    found: BaseException | None = error
    while found is not None:
        code = getattr(found, "sqlstate", None) or getattr(found, "pgcode", None)
        if isinstance(code, str):
            return _by_code(code, found, address)
        found = getattr(found, "orig", None) or found.__cause__
    return None


def _by_code(code: str, error: BaseException, address: Address) -> MillpondError:
    text = _one_line(error)
    if code == "42501":
        return missing_rights(address, _needed(text, quoted(address.schema)), text)
    kind, advice = _MEANINGS.get(code) or _MEANINGS.get(code[:2]) or (StoreError, "")
    if not advice:
        advice = "refused a statement"
    return kind(f"{address} {advice} ({code}: {text})", path=str(address))


def _needed(text: str, place: str) -> list[str]:
    """Return the missing grants, from the message of the server."""
    called = re.search(r"permission denied for function (\w+)", text)
    if called:
        return [f"GRANT EXECUTE ON FUNCTION {place}.{called[1]} TO ..."]
    return [
        f"GRANT USAGE ON SCHEMA {place} TO ...",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {place} TO ...",
    ]


def _by_kind(error: psycopg.Error, address: Address) -> MillpondError:
    """Return the error for what the driver itself refused."""
    text = _one_line(error)
    if isinstance(error, psycopg.DataError) and "NUL" in text:
        return UnstorableText(
            f"{address} cannot hold a NUL character in a text; nothing was changed: take it out "
            f"of the name, or pass it as bytes ({text})",
            path=str(address),
        )
    if isinstance(error, psycopg.OperationalError):
        kind, advice = _GONE
        return kind(f"{address} {advice} ({text})", path=str(address))
    return StoreError(f"{address} refused a statement ({text})", path=str(address))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
