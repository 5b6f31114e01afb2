"""`millpond migrate`: migrate the tables of a store to this release."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from millpond.cli.exits import Exit
from millpond.cli.render import answer, emit, say
from millpond.cli.store_options import command, refusal_for
from millpond.core.escape import plain

if TYPE_CHECKING:
    from millpond.pool.store_url import Place


@command("migrate", json="Print one JSON document: the versions before and now.")
@click.option(
    "--check", is_flag=True, help="Change nothing; exit code 1 means that a migration is needed."
)
@click.option(
    "--grants",
    "grants_wanted",
    metavar="ROLE=USER",
    multiple=True,
    help="Only print the statements that give a user of the server the role owner, worker, "
    "submitter or reader; may be repeated.",
)
@click.option("--apply", is_flag=True, help="Migrate, then run the statements of --grants.")
def main(
    *,
    check: bool,
    grants_wanted: tuple[str, ...],
    apply: bool,
    as_json: bool,
    store: str | None,
    app: str | None,
) -> int:
    """Migrate the tables of a store to this release; create them if there are none.

    A Millpond migrates when it opens the store, unless it has migrate=False. Then run this command
    before starting its processes.
    """
    from millpond.cli.choose_store import url_of
    from millpond.errors import MillpondError
    from millpond.pool.store_url import place_of
    from millpond.store.url_redaction import shown

    url = url_of(store, app)
    try:
        place = place_of(url)
        assert place is not None  # noqa: S101 - a URL is never memory
        statements = _statements(grants_wanted, place)
        if statements and not apply:
            return _print(statements, as_json=as_json)
        if apply:
            _apply(statements, place)
            check = True
        before, needed, lacks_functions = versions(place)
        if not check and (before != needed or lacks_functions):
            bring_up(place)
    except MillpondError as error:
        raise refusal_for(error) from error
    now = before if check else needed
    if check and lacks_functions:
        return _print_missing_functions(shown(url), now, as_json=as_json)
    _print_versions(shown(url), before, now, needed, as_json=as_json)
    return Exit.CLEAN if now == needed else Exit.BROKE


def _statements(grants_wanted: tuple[str, ...], place: Place) -> list[str]:
    """Return the statements that grant the roles; those of an owner first."""
    if not grants_wanted:
        return []
    if isinstance(place, Path):
        raise click.BadParameter("only a server has users; use the permissions of the file")
    from millpond.store.postgres.roles import Role, grants

    roles = []
    for pair in grants_wanted:
        name, _, user = pair.partition("=")
        if name not in {*Role} or not user:
            raise click.BadParameter(f"{pair!r} is not ROLE=USER; roles are {', '.join(Role)}")
        roles.append((Role(name), user))
    roles.sort(key=lambda one: list(Role).index(one[0]))
    return [text for role, user in roles for text in grants(role, user, place.schema)]


def _print(statements: list[str], *, as_json: bool) -> int:
    if as_json:
        emit({"grants": statements})
    else:
        click.echo("".join(f"{statement};\n" for statement in statements), nl=False)
    return Exit.CLEAN


def _apply(statements: list[str], place: Place) -> None:
    """Migrate, and run the statements in one transaction."""
    if not statements or isinstance(place, Path):
        raise click.UsageError("--apply goes with --grants")
    import psycopg

    from millpond.store.postgres.connect import connect
    from millpond.store.postgres.errors import translated

    made = [one for one in statements if one.startswith("CREATE SCHEMA")]
    if made and len(made) < len(statements):
        raise click.UsageError(
            "grant the owner first, as an administrator; then grant the others as the owner"
        )
    if not made:
        bring_up(place)
    with contextlib.closing(connect(place)) as connection:
        try:
            connection.execute("; ".join(["BEGIN", *statements, "COMMIT"]).encode())
        except psycopg.Error as error:
            raise translated(error, place) from error


def versions(place: Place) -> tuple[int, int, bool]:
    """Return the schema version of a store, 0 for none, and the one this release needs.

    The last value: the versions are equal, and only the server's functions are missing.
    """
    from millpond.errors import MigrationNeeded, StoreMissing

    try:
        version = _tables(place, allowed=False)
    except MigrationNeeded as needed:
        return needed.found, needed.needed, needed.found == needed.needed
    except StoreMissing:
        if not isinstance(place, Path) or not place.absolute().parent.is_dir():
            raise
        from millpond.store.sqlite.migrate import known_migrations

        return 0, known_migrations()[-1].version, False
    return version, version, False


def bring_up(place: Place) -> None:
    """Migrate the tables."""
    _tables(place, allowed=True)


def _tables(place: Place, *, allowed: bool) -> int:
    """Check the tables of a store, migrate them if allowed, and return their version."""
    if isinstance(place, Path):
        from millpond.store.sqlite.connect import connect, connect_to_look
        from millpond.store.sqlite.migrate import migrate

        path = place.absolute()
        with contextlib.closing((connect if allowed else connect_to_look)(path)) as file:
            return migrate(file, path, allowed=allowed)
    from millpond.store.postgres.connect import connect as connect_to
    from millpond.store.postgres.migrate import migrate as migrate_at

    with contextlib.closing(connect_to(place, writable=allowed)) as server:
        return migrate_at(server, place, allowed=allowed)


def _print_missing_functions(place: str, version: int, *, as_json: bool) -> int:
    facts = {"store": place, "before": version, "version": version, "needed": version}
    answer(
        {**facts, "functions": "missing"},
        f"{place}: schema {version}, without the functions of this release: run `millpond migrate`",
        as_json=as_json,
    )
    return Exit.BROKE


def _print_versions(place: str, before: int, now: int, needed: int, *, as_json: bool) -> None:
    if as_json:
        emit({"store": place, "before": before, "version": now, "needed": needed})
    elif now != needed:
        had = f"schema {before}" if before else "no Millpond tables"
        say(plain(f"{place}: {had}; this release needs schema {needed}: run `millpond migrate`"))
    elif before == now:
        say(plain(f"{place}: schema {now}, up to date"))
    else:
        had = f"schema {before}" if before else "no tables"
        say(plain(f"{place}: schema {now} now, {had} before"))
