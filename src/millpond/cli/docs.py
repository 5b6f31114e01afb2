"""`millpond docs [WORD...]`: print a page of the documentation, found by its name or by words.

The wheel holds the pages as Markdown, and the programs of their examples. In a checkout they are
read from docs/.
"""

from __future__ import annotations

import argparse
import functools
import math
import re
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import millpond
from millpond.cli.exits import Exit, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ENTRY = re.compile(
    r"^(?:- |\d+\. |\| )(.+?)(?=^(?:- |\d+\. |\| |\*\*|#|$))", re.DOTALL | re.MULTILINE
)
LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+\.md)\)")
CODE = re.compile(r"mill-\d{3}")
FILE = re.compile(r"[\w./-]+\.(?:py|ya?ml|toml|service|Dockerfile)|Dockerfile")
TOPIC = 40.0
"""What it is worth that the index names these very words for a page."""

SHOWN = 8
"""Pages that a search lists."""


class Page(NamedTuple):
    """A page, and the words of each part that a search weighs."""

    name: str
    """As in `how-to/run-workers`."""
    title: str
    text: str
    entry: str
    """Its entry in the index."""
    topics: list[list[str]]
    """What a reader looks for who should find this page first, from the table of the index."""

    def score(self, words: list[str]) -> float:
        """Return how well it fits; 0 if a word is nowhere in it."""
        parts = [score_of_word(word, self) for word in words]
        return sum(parts) + TOPIC * (words in self.topics) if all(parts) else 0.0


def folder() -> Path:
    """Return where the pages are."""
    package = Path(millpond.__file__).parent
    inside = package / "docs"
    return inside if inside.is_dir() else package.parents[1] / "docs"


def pages() -> dict[str, Page]:
    """Return every page by its name, in the order of the index."""
    root = folder()
    index = (root / "index.md").read_text("utf-8")
    entries: dict[str, str] = {}
    for entry in ENTRY.findall(index):
        for _, target in LINK.findall(entry):
            entries[target] = entries.get(target, "") + " " + LINK.sub(r"\1", entry)
    found = [target for target in entries if (root / target).is_file()]
    topics = topics_of(index)
    made = (_page(root / each, each, entries[each], topics.get(each, [])) for each in found)
    return {page.name: page for page in made}


def _page(file: Path, target: str, entry: str, topics: list[str]) -> Page:
    text = re.sub(r"\A<!--.*?-->\s*", "", file.read_text("utf-8"), flags=re.DOTALL)
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    title = heading[1] if heading else target
    return Page(target.removesuffix(".md"), title, text, entry, [stems(each) for each in topics])


def topics_of(index: str) -> dict[str, list[str]]:
    """Return what the table of the index says that readers look for, by page."""
    found: dict[str, list[str]] = {}
    for cell, target in re.findall(r"^\| (.+?) \| \[[^\]]+\]\(([^)#]+)", index, re.MULTILINE):
        found.setdefault(target, []).extend(cell.split(", "))
    return found


@functools.cache
def stems(text: str) -> list[str]:
    """Return the words of a text, without the endings that make two words of one."""
    return [_stem(word) for word in re.findall(r"[a-z0-9]+", text.lower().replace("-", " "))]


def _stem(word: str) -> str:
    for ending, instead in (
        ("ies", "y"),
        ("ing", ""),
        ("ed", ""),
        ("es", ""),
        ("s", ""),
        ("e", ""),
    ):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word.removesuffix(ending) + instead
    return word


def score_of_word(word: str, page: Page) -> float:
    """Return what a word is worth: most in the title, then in the index, headings and text."""
    headings = " ".join(re.findall(r"^##+ (.+)$", page.text, re.MULTILINE))
    weights = ((16.0, page.title), (12.0, page.entry), (4.0, headings), (4.0, page.name))
    named = sum(weight for weight, text in weights if word in stems(text))
    return named + math.log1p(stems(page.text).count(word))


def found(text: str) -> list[Page]:
    """Return the pages that hold all these words, the best first."""
    words = stems(text)
    scored = [(page.score(words), page) for page in pages().values()]
    best = sorted(scored, key=lambda each: -each[0])
    return [page for score, page in best if score]


def section(text: str, code: str) -> str:
    """Return the section of an error."""
    part = re.search(rf"^## {code}\n.*?(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    if part is None:
        raise Refusal(Exit.USAGE, f"there is no error {code}")
    return part[0]


def example(name: str) -> str:
    """Return the program, or another file, that a page has as an example."""
    root = folder() / "examples"
    files = sorted(file for file in root.rglob("*") if file.is_file())
    wanted = name.rsplit("examples/", maxsplit=1)[-1]
    for file in files:
        if wanted in (file.name, file.relative_to(root).as_posix()):
            return file.read_text("utf-8")
    like = get_close_matches(wanted, [file.name for file in files], 1)
    hint = f"; did you mean {like[0]}?" if like else ""
    raise Refusal(Exit.USAGE, f"no example is called {name}{hint}")


def parser() -> argparse.ArgumentParser:
    """Return the arguments of the command."""
    options = argparse.ArgumentParser(
        prog="millpond docs",
        description="Print a page of the documentation, or the program of one. Without words, "
        "list all pages.",
        epilog="Examples: `millpond docs rate limit`, `millpond docs run-workers`, "
        "`millpond docs orders_app.py > orders_app.py`, `millpond docs MILL-001`.",
        allow_abbrev=False,
    )
    options.add_argument(
        "words",
        nargs="*",
        metavar="WORD",
        help="the name of a page or of a program, the code of an error, or words to look for",
    )
    options.add_argument(
        "--list", action="store_true", help="print only the names and titles of pages that fit"
    )
    return options


def main(arguments: Sequence[str]) -> int:
    """Print a page, a section or a list."""
    given = parser().parse_args(arguments)
    query = " ".join(given.words)
    sys.stdout.write("\n".join(lines(query, names_only=given.list or not query)).rstrip() + "\n")
    return Exit.CLEAN


def lines(query: str, *, names_only: bool) -> Iterator[str]:
    """Yield what to print for these words."""
    if CODE.fullmatch(query.lower()):
        yield section(pages()["reference/errors"].text, query.upper())
        return
    if FILE.fullmatch(query):
        yield example(query)
        return
    known = pages()
    named = [page for page in known.values() if query in (page.name, page.name.split("/")[-1])]
    hits = named or (found(query) if query else list(known.values()))
    if not hits:
        raise Refusal(Exit.USAGE, f"no page has all these words: {query}; try fewer")
    if not names_only:
        if not named and "/" in query:
            yield f"(No page is named {query!r}. Of {len(hits)} with these words, this fits best.)"
            yield ""
        yield hits[0].text
        yield ""
        hits = hits[1:SHOWN]
        if hits:
            yield "See also:"
    width = max((len(page.name) for page in hits), default=0)
    for page in hits if not query else hits[:SHOWN]:
        yield f"  {page.name:<{width}}  {page.title}"
    if not query:
        yield from (
            "",
            "`millpond docs NAME` prints one; `millpond docs rate limit` looks for words.",
        )
