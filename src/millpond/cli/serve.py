"""`millpond serve`: the dashboard and the HTTP API of a store."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from millpond.cli.exits import Exit, Refusal
from millpond.cli.store_options import carry_out, command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.server.application import Server

TOKEN = "MILLPOND_TOKEN"  # noqa: S105 - the variable's name
NEEDED = ("fastapi", "starlette", "uvicorn")


@command("serve", json=None)
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="Where to listen.")
@click.option("--port", type=click.IntRange(0, 65535), default=8642, help="0 takes a free one.")
@click.option(
    "--token",
    metavar="TOKEN",
    help=f"What clients must show; better set ${TOKEN}, which other users cannot read.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="Tokens of several people: a line `NAME TOKEN` for each. The audit has their names.",
)
@click.option("--allow-actions", is_flag=True, help="Let requests change something.")
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name that this server is reached by, besides localhost; * = any.",
)
@click.option(
    "--redact", multiple=True, metavar="WORD", help="Hide what has this word in its name, too."
)
@click.option(
    "--trace-url", metavar="URL", help="Where a trace is shown; {trace_id} in it is replaced."
)
@click.option(
    "--max-clients",
    type=click.IntRange(1),
    default=100,
    help="How many may listen to live events at a time (default: 100).",
)
def main(**options: Any) -> int:  # noqa: ANN401 - the options above
    """Serve the dashboard and the HTTP API of a store, until Ctrl-C.

    It listens on this machine only, and shows without changing anything. Any other address needs
    a token; changes need --allow-actions.
    """
    _check_extra()
    tokens = _tokens(options)
    _check_public(options["host"], tokens)
    return carry_out(_serve(options, tokens))


def _check_extra() -> None:
    from importlib.util import find_spec

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        message = f"this needs the package {missing[0]}: run `pip install 'millpond[server]'`"
        raise Refusal(Exit.USAGE, message)


def _tokens(options: dict[str, Any]) -> dict[str, str]:
    """Return the tokens that open the server, by the names of who holds them."""
    tokens: dict[str, str] = {}
    given = options["token"] or os.environ.get(TOKEN)
    if given:
        tokens[""] = given
    if options["token_file"] is not None:
        tokens |= _read(options["token_file"])
    return tokens


def _read(file: str) -> dict[str, str]:
    from pathlib import Path

    try:
        lines = Path(file).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(Exit.USAGE, f"--token-file {file} cannot be read: {error}") from None
    tokens = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            raise Refusal(Exit.USAGE, f"--token-file {file}, line {number}: it is NAME TOKEN")
        tokens[words[0]] = words[1]
    if not tokens:
        raise Refusal(Exit.USAGE, f"--token-file {file} holds no token")
    return tokens


def _check_public(host: str, tokens: dict[str, str]) -> None:
    """Refuse an address that other machines reach unless a token is set."""
    from millpond.server.security import is_loopback

    if not is_loopback(host) and not tokens:
        raise Refusal(
            Exit.USAGE,
            f"--host {host} can be reached from other machines, so a token is needed: set {TOKEN} "
            'to what `python -c "import secrets; print(secrets.token_urlsafe(32))"` prints, or '
            "listen on 127.0.0.1",
        )


async def _serve(options: dict[str, Any], tokens: dict[str, str]) -> int:
    from millpond.cli.gc_tuning import tune_garbage_collection
    from millpond.cli.open_store import open_store
    from millpond.server import app
    from millpond.server.serving import serve

    async with open_store(options["store"], options["app"]) as store:
        made = app(
            store.millpond,
            allow_actions=options["allow_actions"],
            token=tokens or None,
            allow_hosts=[*options["hosts"], *_own_names(options["host"])],
            redact=options["redact"],
            trace_url=options["trace_url"],
            max_clients=options["max_clients"],
        )
        tune_garbage_collection()
        await serve(made, options["host"], options["port"], lambda url: _announce(made, url))
    return Exit.CLEAN


def _own_names(host: str) -> Sequence[str]:
    """Return the names by which a server that listens there is surely reached."""
    import socket

    from millpond.server.security import is_loopback

    if is_loopback(host):
        return ()
    return (f"[{host}]" if ":" in host else host, socket.gethostname())


def _announce(made: Server, url: str) -> None:
    settings = made.site.settings
    may = "requests may change things" if settings.allow_actions else "read-only"
    needs = "a token is needed" if settings.tokens else "no token is needed on this machine"
    sys.stdout.write(f"serving {url} ({may}; {needs}); Ctrl-C ends it\n")
    sys.stdout.flush()
