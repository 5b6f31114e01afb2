"""`millpond completion SHELL`: shell completion of commands, options and pools."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

from millpond.cli.exits import Exit, Refusal
from millpond.cli.main import COMMANDS, COMPLETION_VARIABLE, load_command
from millpond.cli.store_options import SETTINGS, StoreCommand

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = "millpond"

SHELLS = ("bash", "zsh", "fish")


@click.command("completion", cls=StoreCommand, context_settings=SETTINGS)
@click.argument("shell", type=click.Choice(SHELLS), required=False)
def main(shell: str | None) -> int:
    """Print a script that makes a shell complete commands, options and pools.

    \b
    In ~/.bashrc:  eval "$(millpond completion bash)"
    In ~/.zshrc:   eval "$(millpond completion zsh)"
    For fish:      millpond completion fish > ~/.config/fish/completions/millpond.fish
    """
    name = shell or os.path.basename(os.environ.get("SHELL", ""))  # noqa: PTH119 - a name
    if name not in SHELLS:
        raise Refusal(Exit.USAGE, f"give the shell: one of {', '.join(SHELLS)}")
    kind = get_completion_class(name)
    assert kind is not None  # noqa: S101 - click has all three
    sys.stdout.write(kind(AllCommands(), {}, PROGRAM, COMPLETION_VARIABLE).source() + "\n")
    return Exit.CLEAN


def complete() -> int:
    """Print the completions that a shell asks for."""
    shell = os.environ[COMPLETION_VARIABLE].partition("_")[0]
    kind = get_completion_class(shell)
    if kind is None or shell not in SHELLS:
        return Exit.USAGE
    completions = kind(AllCommands(), {}, PROGRAM, COMPLETION_VARIABLE).complete()
    sys.stdout.write(completions + "\n")
    return Exit.CLEAN


class AllCommands(click.Group):
    """All commands; each is imported when its options are completed."""

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
        """Return the named command with its options."""
        name, known, rest = super().resolve_command(ctx, args)
        return name, known and _full_command(known.name or ""), rest


def _full_command(name: str) -> click.Command:
    """Return a command with its options, whether it uses click or argparse."""
    made: Callable[..., Any] = load_command(name)
    if isinstance(made, click.Command):
        return made
    parser: argparse.ArgumentParser = load_command(name, "parser")()
    return click.Command(name, params=_options(parser))


def _options(parser: argparse.ArgumentParser) -> list[click.Parameter]:
    """Return the options of a parser of the standard library."""
    return [
        click.Option([*action.option_strings], is_flag=action.nargs == 0, help=action.help)
        for action in parser._actions  # noqa: SLF001 - the parser has no public list
        if action.option_strings
    ]
