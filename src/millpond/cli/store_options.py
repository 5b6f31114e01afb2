"""Options, errors and exit codes that the commands on a store share.

These commands use click. Their messages and exit codes are those of every other command.
"""

from __future__ import annotations

import contextlib
import re
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millpond.cli.choose_store import APP, STORE
from millpond.cli.exits import OPERATOR_EXITS, Exit, Refusal
from millpond.core.escape import plain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence

    from click.shell_completion import CompletionItem

    from millpond.cli.open_store import OpenStore

Given = TypeVar("Given", bound="Callable[..., Any]")

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw]?)")
TOO_LARGE = 1 << 63
"""No id and no place is so large."""


class StoreCommand(click.Command):
    """A command: called with its arguments, it returns an exit code."""

    def __call__(self, arguments: Sequence[str]) -> int:
        """Run the command; raise Refusal for wrong arguments."""
        with contextlib.suppress(AttributeError, ValueError):
            # A name may contain characters that the terminal's encoding lacks.
            sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        prog = f"millpond {self.name}"
        try:
            return int(self.main(list(arguments), prog_name=prog, standalone_mode=False) or 0)
        except click.ClickException as error:
            message = error.format_message().rstrip(".")
            raise Refusal(Exit.USAGE, f"{message} (see `{prog} --help`)") from None
        except click.Abort:
            raise KeyboardInterrupt from None

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - what the command returns
        """Run the command. A closed output pipe ends it cleanly."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            return Exit.CLEAN

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the exit codes at the end of the help."""
        super().format_epilog(ctx, formatter)
        with formatter.section("Exit codes"):
            formatter.write_dl(
                [(str(int(code)), meaning) for code, meaning in OPERATOR_EXITS.items()]
            )


class Duration(click.ParamType):  # type: ignore[type-arg] # generic in late releases only
    """A duration, such as 90s, 5m, 2h, 1.5d or a number of seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds."""
        if isinstance(value, float):
            return value
        text = str(value).strip()
        parts = _DURATION.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            self.fail(f"{text!r} is not a duration such as 90s, 5m, 2h or 3d", param, ctx)
        return sum(float(number) * _UNITS[unit] for number, unit in parts)


class TaskIds(click.ParamType):  # type: ignore[type-arg] # generic in late releases only
    """The id of a task."""

    name = "id"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the number."""
        text = str(value)
        found = number_below(TOO_LARGE, text)
        if found is None:
            self.fail(f"{text!r} is not a task id: ids are numbers", param, ctx)
        return found


def number_below(limit: int, text: str) -> int | None:
    """Return the whole number that a text is, if it is below a limit; None otherwise."""
    # `int` itself raises for thousands of digits.
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(limit))):
        return None
    found = int(text)
    return found if found < limit else None


class PoolName(click.ParamType):  # type: ignore[type-arg] # generic in late releases only
    """The name of a pool; shell completion offers the pools of the store."""

    name = "pool"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the pools that begin with `incomplete`; none if the store cannot be read."""
        del param
        from click.shell_completion import CompletionItem

        from millpond.cli.open_store import complete_pool_names

        with contextlib.suppress(Exception):
            found = complete_pool_names(ctx.params.get("store"), ctx.params.get("app"), incomplete)
            return [CompletionItem(name) for name in found]
        return []


DURATION, TASK_ID, POOL = Duration(), TaskIds(), PoolName()


def command(name: str, *, json: str | None = "Print JSON.") -> Callable[[Given], StoreCommand]:
    """Make a function a command that works on a store."""

    def decorate(function: Given) -> StoreCommand:
        options = [
            click.option(
                "--store",
                metavar="URL",
                help="URL of the store, such as sqlite:///work.db or postgresql://host/db "
                f"(default: the store of --app, then ${STORE}).",
            ),
            click.option(
                "--app",
                metavar="MODULE:NAME",
                help=f"Use the store of this application (default: ${APP}).",
            ),
        ]
        if json is not None:
            options.insert(0, click.option("--json", "as_json", is_flag=True, help=json))
        # Options are listed in the order of their decorators: the shared ones come last.
        own = vars(function).pop("__click_params__", [])
        for option in reversed(options):
            option(function)
        vars(function)["__click_params__"] += own
        return click.command(name, cls=StoreCommand, context_settings=SETTINGS)(function)

    return decorate


SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

yes = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation; refuse if stdin is not a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refusal(
            Exit.DECLINED, f"{question} Confirmation required (use --yes); nothing was changed"
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
    """Run a command's coroutine; turn a MillpondError into a Refusal."""
    import asyncio

    from millpond.errors import MillpondError

    try:
        return asyncio.run(work)
    except MillpondError as error:
        raise refusal_for(error) from error


def on_store(where: Mapping[str, Any], work: Callable[[OpenStore], Awaitable[int | None]]) -> int:
    """Open the store that the options choose, carry out some work on it, and close it."""
    from millpond.cli.open_store import open_store

    async def opened() -> int:
        async with open_store(where["store"], where["app"]) as store:
            return await work(store) or Exit.CLEAN

    return carry_out(opened())


def refusal_for(error: Exception) -> Refusal:
    """Return the refusal, with its exit code, for an error of the library."""
    from millpond import errors

    kinds: Iterable[tuple[type[Exception], Exit]] = (
        (errors.UnknownPool, Exit.NOTHING),
        (errors.UnknownTask, Exit.NOTHING),
        (errors.UnknownTrigger, Exit.NOTHING),
        (errors.UnknownEvent, Exit.NOTHING),
        (errors.IdempotencyConflict, Exit.NOTHING),
        (errors.ConfigError, Exit.USAGE),
        (errors.BadPayload, Exit.USAGE),
        (errors.PayloadTooLarge, Exit.USAGE),
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
