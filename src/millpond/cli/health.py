"""`millpond health`: ask the health endpoint of a worker, for probes that run a command."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import sys
from typing import TYPE_CHECKING

from millpond.cli.exits import Exit, Refusal
from millpond.cli.worker import HEALTH_PORT, address, seconds
from millpond.core.escape import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.cli.supervise.health_answer import Address

TIMEOUT = 5.0

CODES = """\
exit codes:
  0    the worker is ready; with --live, it is live
  1    it is not, or it did not answer
  2    the arguments are wrong"""


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    options = argparse.ArgumentParser(
        prog="millpond health",
        description="Ask the health endpoint of a worker (--health-port), for container probes "
        "that run a command. Exit code 0: ready; 1: not ready, or no answer.",
        epilog=CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_argument(
        "--port",
        type=address,
        metavar="[HOST:]PORT",
        help=f"address of the endpoint (default: ${HEALTH_PORT}; the default host is 127.0.0.1)",
    )
    options.add_argument(
        "--live",
        action="store_true",
        help="only ask whether it is live: whether a restart would not help",
    )
    options.add_argument(
        "--timeout",
        type=seconds,
        default=TIMEOUT,
        metavar="SECONDS",
        help=f"wait this long for an answer (default: {TIMEOUT:g})",
    )
    options.add_argument("--json", action="store_true", help="print the answer as JSON")
    return options


def main(arguments: Sequence[str]) -> int:
    """Ask, print the answer, and return the exit code."""
    parsed = parser().parse_args(arguments)
    port = parsed.port
    if port is None:
        if not os.environ.get(HEALTH_PORT):
            raise Refusal(Exit.USAGE, f"no port given: use --port, or set {HEALTH_PORT}")
        try:
            port = address(os.environ[HEALTH_PORT])
        except argparse.ArgumentTypeError as error:
            raise Refusal(Exit.USAGE, f"${HEALTH_PORT}: {error}") from None
    try:
        status, body = ask(port, "/live" if parsed.live else "/ready", parsed.timeout)
    except (OSError, http.client.HTTPException) as error:
        where = f"{port.host}:{port.port}"
        raise Refusal(
            Exit.BROKE, f"no answer from {where}: {str(error) or type(error).__name__}"
        ) from None
    sys.stdout.write(f"{body if parsed.json else sentence(body)}\n")
    return Exit.CLEAN if status == http.client.OK else Exit.BROKE


def ask(port: Address, path: str, timeout: float) -> tuple[int, str]:
    """Return the status and the body of the answer."""
    # A worker that listens on every address is asked on this machine.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(port.host, port.host)  # noqa: S104
    with contextlib.closing(
        http.client.HTTPConnection(host, port.port, timeout=timeout or None)
    ) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(1 << 16).decode("utf-8", "replace").strip()


def sentence(body: str) -> str:
    """Return the answer in words."""
    import msgspec

    from millpond.cli.supervise.health_answer import Health

    try:
        health = msgspec.json.decode(body, type=Health)
    except msgspec.DecodeError:
        return plain(body)
    return plain(f"{health.state}, {health.processes} process(es), {health.running} running")
