"""`manage.py millpond_worker`: run the tasks of a backend until a signal stops it."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from millpond.integrations.django.backend import millpond_of

_chosen: list[str] = ["default"]


def application() -> Any:  # noqa: ANN401 - a Millpond
    """Return the Millpond whose tasks the worker runs."""
    return millpond_of(_chosen[0])


class Command(BaseCommand):  # type: ignore[misc] # Django has no types
    """The same as `millpond worker`, with the settings of the project."""

    help = "Run the tasks of a Millpond backend until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: Any) -> None:  # noqa: ANN401 - argparse, as Django has it
        """Declare the options; all but the first are those of `millpond worker`."""
        parser.add_argument("--backend", default="default", help="the alias in TASKS")
        for name, what in {
            "--pools": "serve these queues only, A,B",
            "--concurrency": "run at most so many tasks at a time, over all queues",
            "--grace": "seconds for running tasks to end after the first signal",
            "--log-level": "debug, info, warning or error",
        }.items():
            parser.add_argument(name, help=what)
        parser.add_argument("--once", action="store_true", help="exit when idle")

    def handle(self, *_args: Any, **options: Any) -> None:  # noqa: ANN401
        """Run the worker in this process."""
        from millpond.cli.main import main  # noqa: PLC0415 - the extra `cli` is not needed before

        _chosen[:] = [options["backend"]]
        arguments = ["worker"]
        for name in ("pools", "concurrency", "grace", "log_level"):
            if options[name] is not None:
                arguments += [f"--{name.replace('_', '-')}", str(options[name])]
        if options["once"]:
            arguments.append("--once")
        raise SystemExit(main([*arguments, f"{__name__}:application"]))
