"""URLs of PostgreSQL stores: `postgresql://user:password@host/database`, as libpq has them.

Whatever libpq takes after the `?` (sslmode, target_session_attrs, ...) is passed on to it. These
are ours: `schema` (or `millpond_schema`) is where the tables are; `pooler=1` says that a pooler
such as PgBouncer stands between, which may give every transaction another session, and 0 that none
does (or one that lends whole sessions); `listen` is the URL of the same database without a pooler,
for LISTEN, or 0 to do without.
"""

from __future__ import annotations

import re
from typing import NoReturn
from urllib.parse import unquote, unquote_to_bytes

import msgspec

from millpond.errors import BadStoreURL, DriverMissing
from millpond.store.postgres.quoting import why_no_schema
from millpond.store.url_redaction import shown

SCHEMES = frozenset({"postgresql", "postgres"})
DEFAULT_SCHEMA = "millpond"

_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]@]*)(:\d{0,5})?")
_SCHEMA_OPTIONS = ("schema", "millpond_schema")
_SWITCH = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
_ADVICE = (
    "write postgresql://user:password@host/database; in user, password and database "
    "write @ as %40, / as %2F, : as %3A, ? as %3F, # as %23 and % as %25"
)


class Address(msgspec.Struct, frozen=True):
    """Where a store is. It can be shown: what is secret is in `conninfo` alone."""

    conninfo: str
    """For libpq, with the password."""
    shown: str
    """For people, without it."""
    schema: str = DEFAULT_SCHEMA
    pooler: bool | None = None
    """Whether a pooler stands between; None = each connection finds out."""
    several_hosts: bool = False
    listens: bool = True
    """Whether a connection is kept that listens to other processes."""
    listens_at: Address | None = None
    """Where it does, if not here."""

    @property
    def listener(self) -> Address | None:
        """Where to listen to other processes; None = nowhere."""
        if not self.listens:
            return None
        return self.listens_at or self

    def __str__(self) -> str:
        if self.schema == DEFAULT_SCHEMA:
            return self.shown
        return f"{self.shown} (schema {self.schema})"

    def __repr__(self) -> str:
        return f"<address {self}>"


def is_postgres(url: object) -> bool:
    """Return whether a URL asks for a PostgreSQL store, well or badly written."""
    if not isinstance(url, str):
        return False
    return url.partition(":")[0].partition("+")[0].lower() in SCHEMES


def address_of(url: str) -> Address:
    """Return the address a URL names. Nothing is connected."""
    if any(ord(character) <= 32 or ord(character) == 127 for character in url):
        _refuse(url, "has a space or a control character; write a space as %20")
    scheme, strokes, rest = url.partition("://")
    if "+" in scheme:
        _refuse(url, "names a driver; there is one only, so none is named")
    if not strokes:
        _refuse(url, "lacks the slashes after its scheme")
    if "#" in rest:
        _refuse(url, "has a fragment; write a # as %23")
    if _PERCENT.search(rest):
        _refuse(url, "has a % that begins no code; write a % as %25")
    place, mark, query = rest.partition("?")
    hosts = _checked_place(url, place)
    ours, theirs = _options(url, query if mark else "")
    pooler = _switch(url, "pooler", ours["pooler"]) if "pooler" in ours else None
    # Through a pooler that lends sessions nothing is ever heard.
    listens, listens_at = _listening(url, ours.get("listen", "0" if pooler else "1"))
    return Address(
        conninfo=f"postgresql://{place}" + (f"?{'&'.join(theirs)}" if theirs else ""),
        shown=shown(url),
        schema=_schema(url, ours),
        pooler=pooler,
        several_hosts=hosts > 1 or _names_several(theirs),
        listens=listens,
        listens_at=listens_at,
    )


def _checked_place(url: str, place: str) -> int:
    """Look at user, hosts and database; return how many hosts there are."""
    authority, _, database = place.partition("/")
    who, _, where = authority.rpartition("@")
    if "@" in who or "@" in database:
        _refuse(url, "has an @ too many; write one in a user or password as %40")
    hosts = where.split(",")
    if not all(_HOST.fullmatch(host) for host in hosts):
        # It may be the rest of a password: it is not repeated.
        _refuse(url, "has a host or a port that cannot be one; write a : or / elsewhere in %")
    if "/" in database:
        _refuse(url, "names more than a database; write a / in its name as %2F")
    for part in (who, database):
        _decoded(url, part)
    return len(hosts)


def _options(url: str, query: str) -> tuple[dict[str, str], list[str]]:
    """Return our options by name, decoded, and those of libpq as they were written."""
    ours: dict[str, str] = {}
    theirs: list[str] = []
    for part in query.split("&") if query else ():
        name, equals, value = part.partition("=")
        if not equals or not name:
            _refuse(url, "has an option without a value; write name=value")
        if name not in (*_SCHEMA_OPTIONS, "pooler", "listen"):
            _decoded(url, value)
            theirs.append(part)
            continue
        name = "schema" if name in _SCHEMA_OPTIONS else name
        if name in ours:
            _refuse(url, f"has the option {name} twice")
        ours[name] = _decoded(url, value)
    return ours, theirs


def _names_several(theirs: list[str]) -> bool:
    """Return whether an option names more than one host."""
    named = (part.partition("=") for part in theirs)
    return any(name in ("host", "hostaddr") and "," in unquote(value) for name, _, value in named)


def _schema(url: str, ours: dict[str, str]) -> str:
    name = ours.get("schema", DEFAULT_SCHEMA)
    why_not = why_no_schema(name)
    if why_not is not None:
        text = ascii(name)
        text = text if len(text) < 80 else f"{text[:77]}..."
        _refuse(url, f"asks for the schema {text}, which {why_not}")
    return name


def _switch(url: str, name: str, value: str) -> bool:
    if value.lower() not in _SWITCH:
        _refuse(url, f"has the option {name} with a value that is neither 0 nor 1")
    return _SWITCH[value.lower()]


def _listening(url: str, value: str) -> tuple[bool, Address | None]:
    """Return whether to listen to other processes, and where if not at the address itself."""
    if value.lower() in _SWITCH:
        return _SWITCH[value.lower()], None
    if not is_postgres(value):
        _refuse(url, "has the option listen with a value that is neither 0 nor 1 nor a URL")
    try:
        return True, address_of(value)
    except BadStoreURL as error:
        # It may have a password in it, as the whole has.
        _refuse(url, f"has a URL as its option listen that {error.reason}")


def _decoded(url: str, text: str) -> str:
    try:
        decoded = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        _refuse(url, "does not decode to UTF-8")
    if "\0" in decoded:
        _refuse(url, "has a zero byte in it")
    return decoded


def _refuse(url: str, reason: str) -> NoReturn:
    raise bad_url(shown(url), reason)


def bad_url(shown_url: str, reason: str) -> BadStoreURL:
    """Return the error for a URL, given as it may be shown."""
    text = ascii(shown_url)
    return BadStoreURL(
        f"the store URL {text if len(text) < 200 else text[:197] + '...'} {reason}; {_ADVICE}",
        url=shown_url,
        reason=reason,
    )


def check_driver() -> None:
    """Refuse to go on where the driver is not installed, or does not work."""
    try:
        import psycopg  # noqa: F401, PLC0415 - memory and SQLite need nothing of it
    except ImportError as error:
        raise DriverMissing(
            f"a PostgreSQL store needs the driver psycopg ({error}): "
            "run `pip install 'millpond[postgres]'`",
            extra="postgres",
        ) from error
