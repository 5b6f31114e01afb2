"""The line: what the commands that operate a store understand alike, and how they refuse.

They are written with click; how a mistake is told, and with which exit code the command ends, is
the same as for every other command here.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millpond.cli.choose_store import APP, STORE
from millpond.cli.exits import OF_AN_OPERATOR, Exit, Refusal
from millpond.cli.terminal_text import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from click.shell_completion import CompletionItem

Given = TypeVar("Given", bound="Callable[..., Any]")

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw]?)")
_TOO_LARGE = 1 << 63


class Line(click.Command):
    """A command; called with the rest of the line it returns an exit code."""

    def __call__(self, arguments: Sequence[str]) -> int:
        """Carry out the line; what is wrong with it is a Refusal."""
        with contextlib.suppress(AttributeError, ValueError):
            # A name may hold what the terminal's encoding does not.
            sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        prog = f"millpond {self.name}"
        try:
            return int(self.main(list(arguments), prog_name=prog, standalone_mode=False) or 0)
        except click.ClickException as error:
            told = error.format_message().rstrip(".")
            raise Refusal(Exit.USAGE, f"{told} (see `{prog} --help`)") from None
        except click.Abort:
            raise KeyboardInterrupt from None

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - what the command returns
        """Do what the line says; whoever reads the answer may have read enough of it."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            return Exit.CLEAN

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Tell the exit codes, last of all."""
        super().format_epilog(ctx, formatter)
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), told) for code, told in OF_AN_OPERATOR.items()])


class Duration(click.ParamType):  # type: ignore[type-arg] # generic in late releases only
    """A length of time, such as 90s, 5m, 2h, 1.5d or a plain number of seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return it in seconds."""
        if isinstance(value, float):
            return value
        text = str(value).strip()
        parts = _DURATION.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            self.fail(f"{text!r} is not a length of time such as 90s, 5m, 2h or 3d", param, ctx)
        return sum(float(number) * _UNITS[unit] for number, unit in parts)


class TaskIds(click.ParamType):  # type: ignore[type-arg] # generic in late releases only
    """The id of a task."""

    name = "id"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return it as a number."""
        text = str(value)
        if not (text.isascii() and text.isdecimal() and int(text) < _TOO_LARGE):
            self.fail(f"{text!r} is not the id of a task, which is a number", param, ctx)
        return int(text)


class PoolName(click.ParamType):  # type: ignore[type-arg] # generic in late releases only
    """The name of a pool; a shell is offered those that the store has."""

    name = "pool"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the pools that begin so; none where there is no store to ask."""
        del param
        from click.shell_completion import CompletionItem

        from millpond.cli.open_store import names_for_a_shell

        with contextlib.suppress(Exception):
            found = names_for_a_shell(ctx.params.get("store"), ctx.params.get("app"), incomplete)
            return [CompletionItem(name) for name in found]
        return []


DURATION, TASK_ID, POOL = Duration(), TaskIds(), PoolName()


def command(name: str, *, json: str | None = "Print JSON.") -> Callable[[Given], Line]:
    """Make a function a command that works on a store."""

    def made(function: Given) -> Line:
        options = [
            click.option(
                "--store",
                metavar="URL",
                help="Where the pools are kept, such as sqlite:///work.db or postgresql://host/db "
                f"(default: what --app names, then ${STORE}).",
            ),
            click.option(
                "--app",
                metavar="MODULE:NAME",
                help=f"An application: its store is meant (default: ${APP}).",
            ),
        ]
        if json is not None:
            options.insert(0, click.option("--json", "as_json", is_flag=True, help=json))
        # A decorator stands above those below it: what all commands have comes last.
        own = vars(function).pop("__click_params__", [])
        for option in reversed(options):
            option(function)
        vars(function)["__click_params__"] += own
        return click.command(name, cls=Line, context_settings=SETTINGS)(function)

    return made


SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

yes = click.option("--yes", "-y", is_flag=True, help="Do not ask first.")


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is done that cannot be undone; without a person to ask, refuse."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refusal(
            Exit.DECLINED, f"{question} Nobody can be asked here: say --yes. Nothing was changed"
        )
    sys.stdout.flush()
    try:
        agreed = click.confirm(plain(question), err=True)
    except click.Abort:
        sys.stderr.write("\n")
        agreed = False
    if not agreed:
        raise Refusal(Exit.DECLINED, "nothing was changed")


def carry_out(work: Coroutine[Any, Any, int]) -> int:
    """Run what a command does; errors of ours are told in a line."""
    import asyncio

    from millpond.errors import MillpondError

    try:
        return asyncio.run(work)
    except MillpondError as error:
        raise told(error) from error


def told(error: Exception) -> Refusal:
    """Return the refusal for an error of the library."""
    from millpond import errors

    kinds: Iterable[tuple[type[Exception], Exit]] = (
        (errors.UnknownPool, Exit.NOTHING),
        (errors.UnknownTask, Exit.NOTHING),
        (errors.UnknownTrigger, Exit.NOTHING),
        (errors.UnknownEvent, Exit.NOTHING),
        (errors.IdempotencyConflict, Exit.NOTHING),
        (errors.ConfigError, Exit.USAGE),
        (errors.StaleRevision, Exit.NOTHING),
        (errors.StoreError, Exit.STORE),
        (errors.BadStoreURL, Exit.STORE),
        (errors.DriverMissing, Exit.STORE),
    )
    code = next((code for kind, code in kinds if isinstance(error, kind)), Exit.BROKE)
    return Refusal(code, str(error))


def operator() -> str:
    """Return who gives an order, as far as the system knows."""
    import getpass

    try:
        return f"cli:{getpass.getuser()}"
    except (ImportError, KeyError, OSError):
        return "cli"


def columns() -> int:
    """Return how wide the terminal is."""
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stdout.fileno()).columns
    return 80
