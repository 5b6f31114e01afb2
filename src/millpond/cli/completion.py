"""`millpond completion SHELL`: what makes a shell complete commands, options and pools."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

from millpond.cli.exits import Exit, Refusal
from millpond.cli.main import ASKED_TO_COMPLETE, COMMANDS, found
from millpond.cli.store_options import SETTINGS, Line

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = "millpond"

SHELLS = ("bash", "zsh", "fish")


@click.command("completion", cls=Line, context_settings=SETTINGS)
@click.argument("shell", type=click.Choice(SHELLS), required=False)
def main(shell: str | None) -> int:
    """Print what makes a shell complete commands, options, and the pools of the store.

    \b
    In ~/.bashrc:  eval "$(millpond completion bash)"
    In ~/.zshrc:   eval "$(millpond completion zsh)"
    For fish:      millpond completion fish > ~/.config/fish/completions/millpond.fish
    """
    name = shell or os.path.basename(os.environ.get("SHELL", ""))  # noqa: PTH119 - a name
    if name not in SHELLS:
        raise Refusal(Exit.USAGE, f"which shell? say {', '.join(SHELLS)}")
    kind = get_completion_class(name)
    assert kind is not None  # noqa: S101 - click has all three
    sys.stdout.write(kind(Everything(), {}, PROGRAM, ASKED_TO_COMPLETE).source() + "\n")
    return Exit.CLEAN


def complete() -> int:
    """Answer a shell that wants to know how a line could go on."""
    shell = os.environ[ASKED_TO_COMPLETE].partition("_")[0]
    kind = get_completion_class(shell)
    if kind is None or shell not in SHELLS:
        return Exit.USAGE
    told = kind(Everything(), {}, PROGRAM, ASKED_TO_COMPLETE).complete()
    sys.stdout.write(told + "\n")
    return Exit.CLEAN


class Everything(click.Group):
    """All commands, each imported when its own options are asked for."""

    def __init__(self) -> None:
        super().__init__(PROGRAM)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return their names."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one of them."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        return click.Command(cmd_name, short_help=COMMANDS[cmd_name])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that a line names, with its options."""
        name, known, rest = super().resolve_command(ctx, args)
        return name, known and _whole(known.name or ""), rest


def _whole(name: str) -> click.Command:
    """Return a command with its options, whichever library it was written with."""
    made: Callable[..., Any] = found(name)
    if isinstance(made, click.Command):
        return made
    parser: argparse.ArgumentParser = found(name, "parser")()
    return click.Command(name, params=_options(parser))


def _options(parser: argparse.ArgumentParser) -> list[click.Parameter]:
    """Return the options of a parser of the standard library."""
    return [
        click.Option([*action.option_strings], is_flag=action.nargs == 0, help=action.help)
        for action in parser._actions  # noqa: SLF001 - the parser does not tell otherwise
        if action.option_strings
    ]
