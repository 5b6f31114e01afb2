"""The web site has every page, under links that lead somewhere, and asks no other server."""

import json
import os
import re
from pathlib import Path

import pytest
from tools import site, site_checks, site_search

ROOT = Path(__file__).parents[2]


def flat(entries: list[dict[str, object]]) -> list[str]:
    """Return the pages of a navigation."""
    found: list[str] = []
    for target in (each for entry in entries for each in entry.values()):
        found += flat(target) if isinstance(target, list) else [str(target)]
    return found


def test_the_navigation_is_the_index() -> None:
    """Every page that docs/index.md links is in the navigation, once, and exists in the site."""
    listed = flat(site.navigation((ROOT / "docs/index.md").read_text("utf-8")))
    assert len(listed) == len(set(listed))
    assert set() == set(listed) - {name for name, _ in site.pages()}
    assert {"tutorial/01-first-bulkhead.md", "reference/errors.md", "project/changelog.md"} <= {
        *listed
    }


def test_links_between_pages_of_the_site_lead_to_its_pages() -> None:
    """Also those to programs, folders and the pages of the root; others become plain text."""
    contents = dict(site.pages())
    lost = [
        (name, target)
        for name, text in contents.items()
        if isinstance(text, str)
        for _, _, target, _ in site.LINK.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        if os.path.normpath(Path(name).parent / target) not in contents
    ]
    assert [] == lost


def test_a_program_is_a_page() -> None:
    """A reader sees it with its colours instead of downloading it."""
    contents = dict(site.pages())
    assert "```python\n" in str(contents["examples/first_pool.py.md"])
    assert "(../examples/first_pool.py.md)" in str(contents["tutorial/02-a-named-pool.md"])


def test_bars_in_the_code_of_a_table_are_bare() -> None:
    """A forge wants `\\|` there; the generator of the site would show the backslash."""
    contents = dict(site.pages())
    assert "`str | None`" in str(contents["reference/context.md"])
    assert r"\|" in (ROOT / "docs/reference/context.md").read_text("utf-8")


def test_a_navigation_is_written_as_toml() -> None:
    """Sections within sections, in order."""
    import tomllib

    nav = [{"Home": "index.md"}, {"Guides": [{"Tasks": [{'A "b"': "a.md"}]}]}]
    assert {"nav": nav} == tomllib.loads(f"nav = {site.toml_of(nav)}")


def test_topics_of_the_index_come_first_in_the_search(tmp_path: Path) -> None:
    """Each leads to its page, and the search keeps the entries of the generator."""
    pages = [
        {"location": f"{page}.html", "title": "A page", "path": ["Guides", "Page"], "text": "-"}
        for page in dict.fromkeys(site_search.topics().values())
    ]
    file = tmp_path / "search.json"
    file.write_text(json.dumps({"config": {}, "items": pages}), "utf-8")
    site_search.add_topics(tmp_path)
    items = json.loads(file.read_text("utf-8"))["items"]
    assert pages == items[-len(pages) :]
    (found,) = (item for item in items if item["title"] == "Rate limit (A page)")
    assert found["location"] == "how-to/control-the-flow.html"
    assert found["path"] == ["Rate limit", "Guides", "Page"]


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A site of two pages that is as it should be."""
    (tmp_path / "a").mkdir()
    (tmp_path / "style.css").write_text("body { background: url(data:,) }", "utf-8")
    (tmp_path / "a/one.html").write_text('<h2 id="top"><a href="../two.html#end">', "utf-8")
    page = '<link href="style.css"><a href="a/one.html"><p id="end"><a href="https://x.example">'
    (tmp_path / "two.html").write_text(page, "utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ('<a href="gone.html">', "two.html links to gone.html"),
        ('<a href="a/one.html#gone">', "two.html links to a/one.html#gone"),
        ('<a href="#gone">', "two.html links to #gone"),
        ('<img src="gone.png">', "two.html links to gone.png"),
        ('<script src="https://x.example/a.js">', "two.html loads https://x.example/a.js"),
        ('<link href="//x.example/a.css">', "two.html loads //x.example/a.css"),
    ],
)
def test_a_broken_site_is_refused(built: Path, broken: str, problem: str) -> None:
    """A lost page, a lost heading, and whatever comes from another origin."""
    site_checks.links_in.cache_clear()
    assert [] == list(site_checks.problems(built))
    site_checks.links_in.cache_clear()
    page = built / "two.html"
    page.write_text(page.read_text("utf-8") + broken, "utf-8")
    assert [problem] == list(site_checks.problems(built))
