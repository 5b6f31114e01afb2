"""Build the documentation as a web site with a search: `make site`.

The pages are those of docs/, in the order of docs/index.md, with the README and the other pages of
the repository's root. Programs in docs/examples become pages too. The build is strict: a link that
leads nowhere fails it, and so does a word of tests/docs/search_words.toml that the search, in
Chromium, does not lead to its page. `make site ARGS=--serve` shows the result on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from tools import site_checks, site_search

ROOT = Path(__file__).parents[1]
SITE = ROOT / ".site"
LINK = re.compile(r"(!?)\[([^\[\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
CODE_IN_TABLE = re.compile(r"^\|.*`.*$", re.MULTILINE)
ASSETS = {".png", ".svg", ".json", ".yml"}
LANGUAGES = {".py": "python", ".yaml": "yaml", ".service": "ini", "": "docker"}
PORT = 8643

CONFIG = """\
[project]
site_name = "Millpond"
site_description = "A task queue for Python with limits that hold: PostgreSQL or SQLite, no Redis."
docs_dir = "pages"
site_dir = "html"
use_directory_urls = false
extra_css = ["site.css"]
nav = {nav}

[project.theme]
font = false
logo = "logo.svg"
favicon = "logo.svg"
features = [
    "content.code.copy", "navigation.footer", "navigation.sections", "navigation.tabs",
    "navigation.top", "search.highlight", "toc.follow",
]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Dark pages"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Light pages"

[project.extra]
generator = false

[project.markdown_extensions.attr_list]
[project.markdown_extensions.tables]
[project.markdown_extensions.toc]
permalink = true
slugify = {{ object = "pymdownx.slugs.slugify", kwds = {{ case = "lower" }} }}
[project.markdown_extensions.pymdownx.highlight]
[project.markdown_extensions.pymdownx.superfences]
"""


def navigation(index: str) -> list[dict[str, object]]:
    """Return the sections of docs/index.md with their pages; each page once, where it is first."""
    top: list[dict[str, object]] = [{"Home": "index.md"}]
    place: list[dict[str, object]] = []
    seen: set[str] = set()
    for block in re.split(r"\n(?=## |\*\*|- |\d+\. )", index):
        if block.startswith("## "):
            section: list[dict[str, object]] = []
            top.append({block[3:].splitlines()[0]: section})
            place = section
        elif block.startswith("**"):
            place = []
            section.append({block.strip("*\n"): place})
        elif block.startswith(("- ", *"123456789")):
            for _, title, target, _ in LINK.findall(" ".join(block.split())):
                page = site_path(ROOT / "docs" / target)
                if page is not None and page not in seen:
                    seen.add(page)
                    place.append({plain_title(title): page})
    return [entry for entry in top if all(entry.values())]


def plain_title(text: str) -> str:
    """Return the text of a link as an entry of the navigation."""
    text = text.replace("`", "")
    return text[0].upper() + text[1:]


UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n"
"""The head of a page that the search of the site leaves out."""


def site_path(target: Path) -> str | None:
    """Return where a file or folder of the repository is in the site; None if it is not there."""
    path = Path(os.path.normpath(target)).relative_to(ROOT)
    if path.parts[0] == "docs":
        inside = Path(*path.parts[1:])
        if (ROOT / path).is_dir():
            return f"{inside}/index.md"
        if inside.parts[0] == "examples":
            return f"{inside}.md"
        return str(inside)
    return f"project/{path.stem.lower()}.md" if path.suffix == ".md" else None


def staged(page: Path) -> str:
    """Return a page of the repository with links that lead to pages of the site."""
    home = Path(site_path(page) or "").parent

    def relinked(found: re.Match[str]) -> str:
        mark, text, target, anchor = found.groups()
        path = site_path(page.parent / target)
        if path is None:
            return str(text)
        return f"{mark}[{text}]({os.path.relpath(path, home)}{anchor or ''})"

    return CODE_IN_TABLE.sub(without_escapes, LINK.sub(relinked, page.read_text("utf-8")))


def without_escapes(row: re.Match[str]) -> str:
    """Return a row of a table whose code has bare bars: a forge needs `\\|` there, the site not."""
    return re.sub(r"`[^`]+`", lambda code: code[0].replace(r"\|", "|"), row[0])


def title_of(page: Path) -> str:
    """Return the first heading of a page, or the name of a program."""
    found = re.search(r"^# (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return found[1] if found and page.suffix == ".md" else page.name


def listing(folder: Path) -> str:
    """Return a page that lists what a folder holds."""
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith(("_", ".")))
    lines = [
        f"- [{path.name if path.is_dir() else title_of(path)}]({path.name}{_ending(path)})"
        for path in inside
        if _is_shown(path)
    ]
    title = folder.name.replace("-", " ").capitalize()
    return f"{UNSEARCHED}# {title}\n\n" + "\n".join(lines) + "\n"


def _ending(path: Path) -> str:
    return "/index.md" if path.is_dir() else "" if path.suffix == ".md" else ".md"


def _is_shown(path: Path) -> bool:
    return path.is_dir() or path.suffix == ".md" or path.suffix in LANGUAGES


def program(path: Path) -> str:
    """Return a page that shows a program."""
    fence = f"```{LANGUAGES[path.suffix]}\n{path.read_text('utf-8')}```\n"
    return f"{UNSEARCHED}# {path.name}\n\n{fence}"


def pages() -> Iterator[tuple[str, str | Path]]:
    """Yield every file of the site: its place, and its text or the file to copy."""
    docs = ROOT / "docs"
    for path in [*ROOT.glob("*.md"), *docs.rglob("*")]:
        if "__pycache__" in path.parts or path.is_dir() or path.name.startswith("."):
            continue
        if path.suffix == ".md":
            # It has every word that others should be found by.
            unsearched = path == docs / "reference/search.md"
            yield str(site_path(path)), UNSEARCHED * unsearched + staged(path)
        elif path.suffix in ASSETS:
            yield str(path.relative_to(docs)), path
        elif "examples" in path.parts and path.suffix in LANGUAGES:
            yield str(site_path(path)), program(path)
    programs = [path for path in (docs / "examples").glob("*") if path.is_dir()]
    for folder in (docs / "explanation/design-decisions", docs / "examples", *programs):
        if folder.name != "__pycache__":
            yield f"{folder.relative_to(docs)}/index.md", listing(folder)
    yield "site.css", ROOT / "tools/site.css"
    yield "logo.svg", ROOT / "src/millpond/server/static/icons/millpond.svg"


def stage(folder: Path = SITE) -> None:
    """Write the pages and the configuration into a folder, for the generator."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in pages():
        place = folder / "pages" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copyfile(content, place)
        else:
            place.write_text(content, "utf-8")
    index = (ROOT / "docs/index.md").read_text("utf-8")
    nav = toml_of(navigation(index))
    (folder / "zensical.toml").write_text(CONFIG.format(nav=nav), "utf-8")


def toml_of(value: object) -> str:
    """Return lists, tables and texts as one line of TOML."""
    match value:
        case list():
            return "[" + ", ".join(map(toml_of, value)) + "]"
        case dict():
            pairs = (f"{json.dumps(key)} = {toml_of(each)}" for key, each in value.items())
            return "{" + ", ".join(pairs) + "}"
        case _:
            return json.dumps(value)


def build(generator: str) -> int:
    """Build the site; return the exit code of the generator."""
    stage()
    command = [generator, "build", "--clean", "--strict"]
    return subprocess.run(command, cwd=SITE, check=False).returncode


def serve() -> None:
    """Show the site on this machine until Ctrl-C."""
    with site_search.served(SITE / "html", PORT) as address:
        print(address)
        threading.Event().wait()


def main() -> int:
    """Build, and check or show the result."""
    parser = argparse.ArgumentParser(prog="make site", description=__doc__)
    parser.add_argument("--generator", default="zensical", help="the program that builds")
    parser.add_argument("--serve", action="store_true", help="show the site on this machine")
    given = parser.parse_args()
    if build(given.generator):
        return 1
    site_search.add_topics(SITE / "html")
    wrong = [*site_checks.problems(SITE / "html"), *site_search.problems(SITE / "html")]
    print("\n".join(wrong) or "every link leads somewhere, and nothing is loaded from elsewhere")
    if given.serve:
        serve()
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
