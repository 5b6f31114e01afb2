"""Migrations: numbered SQL files, and which of them a store lacks."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec

from millpond.errors import MigrationNeeded, SchemaChanged, SchemaTooNew

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FILE_NAME = re.compile(r"(\d{4})_(\w+)\.sql")


class Migration(msgspec.Struct, frozen=True):
    """One migration of the schema."""

    version: int
    name: str
    text: str

    @property
    def digest(self) -> str:
        """The digest of its text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def migrations_of(package: str) -> tuple[Migration, ...]:
    """Return the migrations in a package's folder of that name, in order."""
    found = []
    for file in files(package).joinpath("migrations").iterdir():
        if named := _FILE_NAME.fullmatch(file.name):
            text = file.read_text("utf-8").replace("\r\n", "\n")
            found.append(Migration(int(named[1]), named[2], text))
    return tuple(sorted(found, key=lambda migration: migration.version))


def pending(
    known: Sequence[Migration], applied: Mapping[int, str], place: str
) -> Sequence[Migration]:
    """Return the migrations that a store lacks, given its digests; raise if one differs."""
    newest, found = known[-1].version if known else 0, max(applied, default=0)
    if found > newest:
        raise SchemaTooNew(
            f"{place} has schema {found}, and this release knows none above {newest}: "
            "a newer release has opened it; use that release here too. Nothing was changed",
            path=place,
            found=found,
            known=newest,
        )
    for migration in known:
        if applied.get(migration.version, migration.digest) != migration.digest:
            raise SchemaChanged(
                f"migration {migration.version} ({migration.name}) of {place} is not the one this "
                "release has: it was made by another build; use that build, or a new store. "
                "Nothing was changed",
                path=place,
                version=migration.version,
            )
    return [migration for migration in known if migration.version not in applied]


def refused(
    known: Sequence[Migration], lacking: Sequence[Migration], place: str
) -> MigrationNeeded:
    """Return the error for a store that lacks migrations where migrate=False."""
    found, needed = lacking[0].version - 1, known[-1].version
    return MigrationNeeded(
        f"{place} has {f'schema {found}' if found else 'no tables of Millpond'} and this release "
        f"needs schema {needed}; migrate=False forbids to change it: open it once with "
        "Millpond(..., migrate=True), which is the default",
        path=place,
        found=found,
        needed=needed,
    )
