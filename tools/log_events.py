"""Read the log calls of `millpond`: the event, level, logger and sentence of each.

python -m tools.log_events            list the calls that pass no event
python -m tools.log_events --lower    write how many each logger has, where it has fewer now
"""

import ast
import collections
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = "src/millpond"
NUMBERS = "tools/log_events.toml"

LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")


class LogCall(NamedTuple):
    """One log call of the package."""

    file: str
    line: int
    logger: str
    level: str
    sentence: str
    event: str | None
    """The literal first argument of `about(...)` in `extra`; None if there is none."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.logger} {self.level}: {self.sentence}"


def log_calls(root: Path = ROOT) -> list[LogCall]:
    """Return every log call, in the order of files and lines."""
    return [
        call
        for path in sorted((root / PACKAGE).rglob("*.py"))
        for call in calls_of_module(path.relative_to(root).as_posix(), path.read_text("utf-8"))
    ]


def calls_of_module(file: str, source: str) -> Iterator[LogCall]:
    """Yield the log calls of one module. Its loggers are module-level names."""
    tree = ast.parse(source)
    loggers, texts = loggers_of(tree), texts_of(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if (
                name in loggers and method in LEVELS
            ):
                level, message = level_and_message(method, node.args)
                yield LogCall(
                    file, node.lineno, loggers[name], level, text_of(message, texts), event_of(node)
                )
            case _:
                pass


def loggers_of(tree: ast.Module) -> dict[str, str]:
    """Return the module-level names of loggers, and what each logger is called."""
    found = {}
    for statement in tree.body:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Attribute(attr="getLogger"), args=[ast.Constant(value)]),
            ):
                found[name] = str(value)
            case _:
                pass
    return found


def texts_of(tree: ast.Module) -> dict[str, str]:
    """Return the module-level constants that are text."""
    found = {}
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(str() as text)):
                found[name] = text
            case _:
                pass
    return found


def level_and_message(method: str, arguments: list[ast.expr]) -> tuple[str, ast.expr]:
    """Return the level of a call and its message; `log.log` takes the level as an argument."""
    if method == "log":
        names = [
            node.attr.lower() for node in ast.walk(arguments[0]) if isinstance(node, ast.Attribute)
        ]
        levels = [name for name in names if name in LEVELS and name != "log"]
        return " or ".join(levels) or "as given", arguments[1]
    return "error" if method == "exception" else method, arguments[0]


def text_of(message: ast.expr, texts: dict[str, str]) -> str:
    """Return the text of a message; of one that is computed, its expression in parentheses."""
    match message:
        case ast.Constant(str() as text):
            return text
        case ast.Name(id=name) if name in texts:
            return texts[name]
        case _:
            return f"({ast.unparse(message)})"


def event_of(call: ast.Call) -> str | None:
    """Return the literal event that a call passes with `extra=about(...)`."""
    for keyword in call.keywords:
        if keyword.arg != "extra":
            continue
        for node in ast.walk(keyword.value):
            match node:
                case ast.Call(func=ast.Name(id="about"), args=[ast.Constant(str() as event), *_]):
                    return event
                case _:
                    pass
    return None


def without_event(calls: list[LogCall]) -> dict[str, int]:
    """Return how many calls of each logger pass no event."""
    return dict(sorted(collections.Counter(one.logger for one in calls if not one.event).items()))


def allowed(root: Path = ROOT) -> dict[str, int]:
    """Return how many calls of each logger may pass no event."""
    return dict(tomllib.loads((root / NUMBERS).read_text("utf-8"))["numbers"])


def table(calls: list[LogCall]) -> Iterator[str]:
    """Yield a line of Markdown for each event, by name."""
    rows = {(one.event, one.level, one.logger, one.sentence) for one in calls if one.event}
    for event, level, logger, sentence in sorted(rows):
        cell = sentence.replace("|", "\\|").replace("\n", " ")
        yield f"| `{event}` | {level} | `{logger}` | {cell} |"


def lower(root: Path = ROOT) -> None:
    """Write the numbers that are smaller now; none of them grows."""
    now, before = without_event(log_calls(root)), allowed(root)
    lines = [
        "# How many log calls of each logger may pass no event. Numbers only go down;",
        "# `python -m tools.log_events --lower` writes them. A logger that is not here has none.",
        "",
        "[numbers]",
        *(
            f'"{name}" = {min(count, before[name])}'
            for name, count in now.items()
            if name in before
        ),
    ]
    (root / NUMBERS).write_text("\n".join(lines) + "\n", "utf-8")


def main() -> int:
    """List the calls without an event, or lower the numbers."""
    if "--lower" in sys.argv[1:]:
        lower()
    missing = [call for call in log_calls() if not call.event]
    print("\n".join([*map(str, missing), f"{len(missing)} log calls pass no event"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
