"""Code and links in the pages are real."""

import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from tools.errors import every_error

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def bare(code: str) -> str:
    """The code without indentation and without empty lines at its ends."""
    return "\n".join(line.strip() for line in code.strip().splitlines())


EXAMPLES = [bare(path.read_text("utf-8")) for path in sorted(ROOT.glob("docs/examples/**/*.py"))]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_in_a_page_is_part_of_an_example_that_runs(page: Path) -> None:
    """Every Python block stands, line for line, in a file of docs/examples."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    strays = [block for block in blocks if not any(bare(block) in e for e in EXAMPLES)]
    assert [] == strays


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_python_hides_in_a_block_of_another_kind(page: Path) -> None:
    """There it would not be run."""
    text = page.read_text("utf-8")
    other = re.findall(r"^ *```(?:text)?\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    code = re.compile(r"^(from [\w.]+ import|import \w|(async )?def \w|class \w|@\w)", re.MULTILINE)
    assert [] == [block for block in other if code.search(block)]


@cache
def prose(page: Path) -> str:
    """The page without its blocks of code, where `#` starts a comment."""
    return re.sub(r"^ *```.*?^ *```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


@cache
def anchors(page: Path) -> set[str]:
    """The names that a page's headings have in links, on a forge and in the site alike."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found.add(slug if slug not in found else f"{slug}-1")
    return found


def leads_somewhere(page: Path, target: str, anchor: str) -> bool:
    """Return whether a link points at a file or folder, and at a heading if it names one."""
    file = (page.parent / target).resolve() if target else page
    return file.exists() and (not anchor or file.suffix != ".md" or anchor in anchors(file))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """A relative link points at a file or folder of this repository, and at a heading there."""
    inline = re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", prose(page))
    defined = re.findall(r"^\[[^\]]+\]: ([^#:\s]*)(?:#(\S*))?$", prose(page), re.MULTILINE)
    assert [] == [link for link in [*inline, *defined] if not leads_somewhere(page, *link)]


def test_every_page_is_linked_from_the_index() -> None:
    """docs/index.md links to each page, or to its folder."""
    index = ROOT / "docs/index.md"
    targets = re.findall(r"\]\(([^)#:\s]+)", index.read_text("utf-8"))
    linked = {(index.parent / target).resolve() for target in targets}
    pages = [page for page in ROOT.glob("docs/**/*.md") if page != index]
    assert [] == [name(page) for page in pages if not {page, page.parent} & linked]


WORDS = (
    "task queue", "background jobs", "rate limit", "concurrency limit", "cron", "No Redis",
    "PostgreSQL", "SQLite", "Celery", "RQ", "arq", "APScheduler", "Semaphore", "pip install",
)  # fmt: skip


def test_the_readme_says_what_it_is_in_the_words_that_people_search_for() -> None:
    """Code first, then the picture and whom it is for; then sizes, peers, guarantees, limits."""
    text = (ROOT / "README.md").read_text("utf-8")
    lines = text.splitlines()
    marks = ["```python", "## Four sizes, one API", "## Beside others", "## What is guaranteed"]
    places = [lines.index(mark) for mark in [*marks, "## What it is not", "## Install"]]
    assert places[0] < 12
    assert all(first < second for first, second in pairwise(places))
    opening = " ".join(lines[: places[1]])
    assert [] == [word for word in WORDS if word not in opening]
    assert "dashboard-pools.png" in opening
    assert len(lines) < 187  # as short as it was, or shorter


def test_python_in_the_readme_brings_its_imports() -> None:
    """A block can be copied into an empty file."""
    text = (ROOT / "README.md").read_text("utf-8")
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        assert "import asyncio\n\nfrom millpond import " in block
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})  # noqa: S102 - our own


def test_every_error_has_its_own_code_and_its_section() -> None:
    """The place an error's `docs` names exists."""
    codes = [error.code for error in every_error()]
    headings = (ROOT / "docs/reference/errors.md").read_text("utf-8")
    assert len(codes) == len(set(codes))
    assert [] == [code for code in codes if f"\n## {code}\n" not in headings]
