"""Find words that hide who acts: `told`, `whoever`, `nobody`, `what was`, `is looked at`...

`make lint` runs this. Each folder has a number in `plain_words.toml`, and may hold exactly so many:
one more is an error, and one less is an error until `--lower` writes the smaller number.

    python -m tools.plain_words             check the numbers
    python -m tools.plain_words cli tests   list each use below paths that contain these words
    python -m tools.plain_words --count     print how often each word is used
    python -m tools.plain_words --lower     write the numbers that are smaller now
"""

import argparse
import ast
import collections
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
NUMBERS = "tools/plain_words.toml"
ALLOWED = "tools/plain_words_allowed.toml"

FOLDERS = ("src", "verify", "docs", "tests", "tools", "bench")
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
SUFFIXES = (".py", ".md", ".sql")

_GAP = r"[\s#*]+"
_BE = r"(?:is|are|was|were|be|been|being)"

TEXT = {
    "told": r"told",
    "tells": rf"(?:tells?|telling)(?!{_GAP}(?:\w+{_GAP}){{0,3}}(?:apart|from)\b)",
    "whoever": r"whoever|whomever",
    "nobody": r"nobody",
    "somebody": r"somebody",
    "anybody": r"anybody|everybody",
    "of it": rf"of{_GAP}it(?=[.;:)\"])",
    "what was": rf"what{_GAP}(?:was|were|has{_GAP}been|had{_GAP}been)",
    "became of": rf"(?:became|becomes?){_GAP}of",
    "is looked at": rf"{_BE}{_GAP}(?:\w+{_GAP})?looked{_GAP}(?:at|after|for)",
    "heed": r"heed(?:s|ed|ing)?",
    "glance": r"glance[sd]?",
    "anew": r"anew",
    "no more": rf"no{_GAP}more(?=[.,;:)\"])",
    "put right": rf"put{_GAP}right",
    "in no way": rf"in{_GAP}no{_GAP}way",
    "all the same": rf"all{_GAP}the{_GAP}same(?=[.,;:)\"])",
    "as ever": rf"as{_GAP}ever(?=[.,;:)\"])",
}
"""Words and phrases in prose, strings and identifiers. `_` ends a word, so `_told` counts."""

NAMES = {"asked", "meant", "lives", "handed", "at_it", "also", "whole"}
"""Ordinary English in a sentence, but no name for a function, a class or a variable."""

_FINDERS = {
    word: re.compile(rf"(?<![A-Za-z])(?:{pattern})(?![A-Za-z])", re.IGNORECASE)
    for word, pattern in TEXT.items()
}
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")


class Use(NamedTuple):
    """One use of a word."""

    file: str
    line: int
    word: str
    text: str
    """The line of the file."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.word}: {self.text.strip()}"


class Allowance(NamedTuple):
    """A use that stays, and why."""

    file: str
    reason: str
    word: str = ""
    """Any word, if empty."""
    text: str = ""
    """Any line, if empty."""

    def covers(self, use: Use) -> bool:
        """Return whether the use is one of those that stay."""
        return self.file == use.file and self.word in ("", use.word) and self.text in ("", use.text)


def scan(root: Path = ROOT) -> list[Use]:
    """Return every use in the repository, allowed or not."""
    paths = [root / name for name in PAGES]
    for folder in FOLDERS:
        paths += (path for path in (root / folder).rglob("*") if path.suffix in SUFFIXES)
    return [
        use
        for path in sorted(paths)
        if path.is_file()
        for use in uses(path.relative_to(root).as_posix(), path.read_text("utf-8"))
    ]


def uses(file: str, text: str) -> Iterator[Use]:
    """Yield the uses in one file."""
    lines = text.splitlines()
    for word, finder in _FINDERS.items():
        for match in finder.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield Use(file, line, word, lines[line - 1])
    if file.endswith(".py"):
        for name, line in defined_names(ast.parse(text)):
            for word in hidden_in(name):
                yield Use(file, line, word, lines[line - 1])


def hidden_in(name: str) -> Iterator[str]:
    """Yield the words of NAMES that a name is, and those of TEXT inside a CamelCase name."""
    if name.strip("_") in NAMES:
        yield name.strip("_")
    parts = _HUMP.split(name)
    for part in parts if len(parts) > 1 else ():
        yield from (word for word, finder in _FINDERS.items() if finder.fullmatch(part))


def defined_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names that a module defines or assigns to, with their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case _:
                pass


def allowances(root: Path = ROOT) -> list[Allowance]:
    """Return the uses that stay; an entry without a reason is a TypeError."""
    entries = tomllib.loads((root / ALLOWED).read_text("utf-8")).get("allow", [])
    return [Allowance(**entry) for entry in entries]


def split(found: Iterable[Use], allowed: list[Allowance]) -> tuple[list[Use], list[Allowance]]:
    """Return the uses that are not allowed, and the allowances that cover no use."""
    left, needed = [], set()
    for use in found:
        covering = [one for one in allowed if one.covers(use)]
        needed.update(covering)
        if not covering:
            left.append(use)
    return left, [one for one in allowed if one not in needed]


def folder_of(file: str) -> str:
    """Return the folder that a file is counted in: two levels, or three below src."""
    parts = file.split("/")
    depth = 3 if parts[0] == "src" else 2
    return "/".join(parts[: min(depth, len(parts) - 1)]) or "."


def per_folder(found: Iterable[Use]) -> dict[str, int]:
    """Return how many uses each folder has."""
    return dict(sorted(collections.Counter(folder_of(use.file) for use in found).items()))


def compare(now: dict[str, int], before: dict[str, int]) -> Iterator[str]:
    """Yield what is wrong with the numbers: more than before, or fewer and not written down."""
    for folder in sorted(now | before):
        have, may = now.get(folder, 0), before.get(folder, 0)
        if have > may:
            more = f"{folder}: {have} words that hide who acts, and {may} are allowed"
            yield f"{more}; list them with {_how(folder)}"
        elif have < may:
            yield f"{folder}: {have} instead of {may}; write that down with {_how('--lower')}"


def _how(arguments: str) -> str:
    return f"`python -m tools.plain_words {arguments}`"


def write_numbers(now: dict[str, int], before: dict[str, int], file: Path) -> None:
    """Write the numbers; none of them grows."""
    lines = [
        "# How many words that hide who acts each folder may hold. Numbers only go down;",
        "# `python -m tools.plain_words --lower` writes them. A folder that is not here has none.",
        "",
        "[numbers]",
        *(
            f'"{folder}" = {min(count, before[folder])}'
            for folder, count in now.items()
            if before.get(folder)
        ),
    ]
    file.write_text("\n".join(lines) + "\n", "utf-8")


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Check, list, count, or lower."""
    parser = argparse.ArgumentParser(prog="tools.plain_words", description=__doc__)
    parser.add_argument("paths", nargs="*", help="list the uses in files whose path contains one")
    parser.add_argument("--count", action="store_true", help="print how often each word is used")
    parser.add_argument("--lower", action="store_true", help="write the numbers that are smaller")
    options = parser.parse_args(arguments)
    found, unneeded = split(scan(root), allowances(root))
    file = root / NUMBERS
    before = tomllib.loads(file.read_text("utf-8"))["numbers"] if file.exists() else None
    now = per_folder(found)
    if options.paths:
        chosen = [use for use in found if any(path in use.file for path in options.paths)]
        print("\n".join(map(str, sorted(chosen))))
        return 0
    if options.count:
        print(counted(found))
        return 0
    if options.lower or before is None:
        write_numbers(now, now if before is None else before, file)
        before = tomllib.loads(file.read_text("utf-8"))["numbers"]
    wrong = list(compare(now, before))
    wrong += [f"{ALLOWED}: nothing needs the entry for {one.file} {one.text!r}" for one in unneeded]
    print("\n".join(wrong) or f"plain words: {sum(now.values())} uses left, as many as allowed")
    return bool(wrong)


def counted(found: list[Use]) -> str:
    """Return how often each word is used, and how many uses there are in all."""
    lines = [
        f"{count:6} {word}"
        for word, count in collections.Counter(use.word for use in found).most_common()
    ]
    return "\n".join([*lines, f"{len(found):6} in all"])


if __name__ == "__main__":
    sys.exit(main())
