"""Templates: a command with replacement strings, filled in for an item.

An item goes into arguments, never into text that a shell reads. With `shell` the command is a
script: a replacement string becomes a reference to a parameter of the script, such as `"${1}"`, and
the item is passed as that parameter. So the content of an item is never run as shell text.
"""

from __future__ import annotations

import os.path
import re
import shlex
from typing import TYPE_CHECKING

from millpond.cli.exits import Exit, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SHELL = "/bin/sh"

SHELLS = frozenset({"ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "sh", "tcsh", "zsh"})

_READS_ITEM = re.compile(r"\$(?:\{?1\b|[@*]|\{[@*])")
"""Matches a script that refers to its parameters itself."""


def without_extension(item: str) -> str:
    """Return a path up to the last dot of its last part."""
    stem, dot, extension = item.rpartition(".")
    return stem if dot and "/" not in extension else item


def last_part(item: str) -> str:
    """Return the part behind the last slash."""
    return item.rpartition("/")[2]


def folder(item: str) -> str:
    """Return the folder of a path, as `dirname` does."""
    return os.path.dirname(item.rstrip("/")) or ("/" if item.startswith("/") else ".")  # noqa: PTH120


FILLS: dict[str, Callable[[str, int], str]] = {
    "{}": lambda item, _: item,
    "{.}": lambda item, _: without_extension(item),
    "{/}": lambda item, _: last_part(item),
    "{//}": lambda item, _: folder(item),
    "{/.}": lambda item, _: without_extension(last_part(item)),
    "{#}": lambda _, number: str(number),
}
"""Every replacement string, and the function of item and number that fills it."""

MEANINGS = {
    "{}": "the item",
    "{.}": "the item without its extension",
    "{/}": "the last part of its path",
    "{//}": "the folder of its path",
    "{/.}": "the last part of its path, without its extension",
    "{#}": "its number, from 1",
}


class Text:
    """A text with replacement strings, or a literal one."""

    def __init__(self, text: str, replace: str | None = "{}") -> None:
        self.pieces = [text] if replace is None else _pattern(replace).split(text)
        """Literal texts, and between each two of them a replacement string."""
        self.names = ["{}" if name == replace else name for name in self.pieces[1::2]]
        self._fills = [FILLS[name] for name in self.names]
        self._is_one = self.pieces[::2] == ["", ""]

    def filled(self, item: str, number: int) -> str:
        """Return the text for an item."""
        if not self._fills:
            return self.pieces[0]
        if self._is_one:
            return self._fills[0](item, number)
        made = list(self.pieces)
        made[1::2] = [fill(item, number) for fill in self._fills]
        return "".join(made)


class Template:
    """A command with replacement strings; `{}` is put at its end if it has none."""

    def __init__(self, command: Sequence[str], *, shell: bool = False, replace: str = "{}") -> None:
        if not replace:
            raise Refusal(Exit.USAGE, "-I: the replacement string is empty")
        self.command = tuple(command)
        self.shell = shell
        self.replace = replace
        self._texts = _script(" ".join(command), replace) if shell else _plain(command, replace)
        first = self._texts[0]
        self.program = None if first.names else first.pieces[0]
        """The program, if it is the same for all items."""

    def arguments(self, item: str, number: int) -> list[str]:
        """Return the command for one item."""
        return [text.filled(item, number) for text in self._texts]

    def shown(self, item: str, number: int) -> str:
        """Return the command for one item, quoted for a shell."""
        return shlex.join(self.arguments(item, number))


def _pattern(replace: str) -> re.Pattern[str]:
    names = [replace, *(name for name in FILLS if name != "{}")]
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first))})")


def _plain(command: Sequence[str], replace: str) -> list[Text]:
    """Return the arguments of a command; refuse one that puts an item into shell text."""
    texts = [Text(one, replace) for one in command]
    if not any(text.names for text in texts):
        texts.append(Text(replace, replace))
    script = _script_of(command)
    if script is not None and texts[script].names:
        raise Refusal(
            Exit.USAGE,
            f"{last_part(command[0])} would run the item as shell text; write "
            f"--shell {shlex.quote(command[script])}, where it stays one word",
        )
    return texts


def _script_of(command: Sequence[str]) -> int | None:
    """Return which argument of a command is a script for a shell."""
    if last_part(command[0]) not in SHELLS:
        return None
    for number, one in enumerate(command[1:-1], start=1):
        if re.fullmatch(r"-[a-z]*c", one):
            return number + 1
        if not one.startswith(("-", "+")):
            return None
    return None


def _script(text: str, replace: str) -> list[Text]:
    """Return the call of a shell whose first parameter is the item."""
    pieces = _pattern(replace).split(text)
    parameters = ["{}"]
    script = [pieces[0]]
    for name, literal in zip(pieces[1::2], pieces[2::2], strict=True):
        canonical = "{}" if name == replace else name
        if canonical not in parameters:
            parameters.append(canonical)
        script += [_reference("".join(script), parameters.index(canonical) + 1), literal]
    if len(pieces) == 1 and not _READS_ITEM.search(text):
        script.append(' "${1}"')
    made = [Text(one, None) for one in (SHELL, "-c", "".join(script), "millpond")]
    return [*made, *(Text(one) for one in parameters)]


def _reference(before: str, number: int) -> str:
    """Return the reference to a parameter, quoted so that it is one word behind this script."""
    match _quoted_by(before):
        case '"':
            return f"${{{number}}}"
        case "'":
            return f"'\"${{{number}}}\"'"
        case _:
            return f'"${{{number}}}"'


def _quoted_by(script: str) -> str:
    """Return the quote that is open at the end of a piece of script, or an empty string.

    It does not parse here-documents; there the quotes around a reference stay in the text.
    """
    stack = [""]
    for part in re.findall(r"\\.|\$\(|.", script, flags=re.DOTALL):
        inside = stack[-1]
        if inside == "'":
            if part.endswith("'"):
                stack.pop()
        elif part == "$(" or (part == "(" and inside != '"'):
            stack.append("(")
        elif part == ")" and inside == "(":
            stack.pop()
        elif part == '"':
            if inside == '"':
                stack.pop()
            else:
                stack.append('"')
        elif part == "'" and inside != '"':
            stack.append("'")
    return stack[-1] if stack[-1] in ("'", '"') else ""
