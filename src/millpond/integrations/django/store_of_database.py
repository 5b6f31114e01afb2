"""The URL of the store in a database of the project: the same file, or the same server."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured


def url_of(settings: dict[str, Any]) -> str:
    """Return the URL of a Millpond beside the models of one entry of DATABASES."""
    kind = settings["ENGINE"].rpartition(".")[2]
    if kind == "sqlite3":
        return _of_file(str(settings["NAME"]))
    if kind in ("postgresql", "postgis"):
        return _of_server(settings)
    raise ImproperlyConfigured(
        f"Millpond stores tasks in SQLite and PostgreSQL, and this database is {kind}: name a "
        'store in TASKS, OPTIONS={"url": "sqlite:////var/lib/shop/work.db"}'
    )


def _of_file(name: str) -> str:
    if name == ":memory:" or "mode=memory" in name:
        raise ImproperlyConfigured(
            "the database is in memory, where no worker can see it: use ImmediateBackend in tests, "
            'or name a store in TASKS, OPTIONS={"url": ...}'
        )
    return f"sqlite:///{Path(name).absolute()}"


def _of_server(settings: dict[str, Any]) -> str:
    user = quote(settings.get("USER") or "", safe="")
    password = settings.get("PASSWORD")
    login = f"{user}:{quote(password, safe='')}@" if password else f"{user}@" if user else ""
    host, port = str(settings.get("HOST") or ""), str(settings.get("PORT") or "")
    given = {name: str(value) for name, value in settings.get("OPTIONS", {}).items()}
    options = {name: value for name, value in given.items() if name.startswith("ssl")}
    if host.startswith("/"):
        options = {"host": host, **({"port": port} if port else {}), **options}
        host = port = ""
    place = f"{host}:{port}" if port else host
    query = f"?{urlencode(options)}" if options else ""
    return f"postgresql://{login}{place}/{quote(str(settings['NAME']), safe='')}{query}"
