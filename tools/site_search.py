"""The search of the site leads what docs/index.md names to its page, as a browser shows it."""

from __future__ import annotations

import functools
import http.server
import json
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Page, expect
from playwright.sync_api import TimeoutError as NothingFound
from tests.server.browsing import Tab, open_browser

from millpond.cli.docs import topics_of

ROOT = Path(__file__).parents[1]
WORDS = ROOT / "tests/docs/search_words.toml"


def topics() -> dict[str, str]:
    """Return what the table of docs/index.md says that readers look for, and the page for it."""
    named = topics_of((ROOT / "docs/index.md").read_text("utf-8"))
    return {topic: page.removesuffix(".md") for page, many in named.items() for topic in many}


def add_topics(html: Path) -> None:
    """Give each topic an entry of its own in the search, as in the index of a book."""
    file = html / "search.json"
    search = json.loads(file.read_text("utf-8"))
    pages = {item["location"]: item for item in search["items"]}
    entries = [entry(topic, pages[f"{page}.html"]) for topic, page in topics().items()]
    file.write_text(json.dumps({**search, "items": entries + search["items"]}), "utf-8")


def entry(topic: str, page: dict[str, Any]) -> dict[str, Any]:
    """Return the entry: the search prefers words at the beginning of a title, then of a path."""
    name = topic[0].upper() + topic[1:]
    return {**page, "title": f"{name} ({page['title']})", "path": [name, *page["path"]]}


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and writes no line for each."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def served(html: Path, port: int = 0) -> Iterator[str]:
    """Serve a built site on this machine; the address ends with a slash."""
    handler = functools.partial(Quiet, directory=str(html))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def first(page: Page, word: str) -> str:
    """Type a word into the open search; return the name of the page that comes first."""
    typed, results = page.get_by_role("combobox"), page.get_by_role("option")
    # Results of the last word would stay until the next ones come.
    typed.fill("")
    expect(results).to_have_count(0)
    typed.fill(word)
    try:
        found = results.first.get_attribute("href", timeout=5000)
    except NothingFound:
        return "nothing"
    return urlsplit(found or "").path.strip("/").removesuffix(".html")


def problems(html: Path) -> Iterator[str]:
    """Yield each word or topic that leads elsewhere, and what the browser objects to."""
    words = topics() | tomllib.loads(WORDS.read_text("utf-8"))
    with served(html) as address, open_browser() as browser:
        tab = Tab(browser.new_page())
        tab.origin = address
        tab.page.goto(f"{address}index.html")
        tab.page.keyboard.press("/")
        hits = {word: first(tab.page, word) for word in words}
        yield from tab.wrong
    lost = [word for word in words if hits[word] != words[word]]
    print(f"the search leads {len(words) - len(lost)} of {len(words)} words to their page first")
    for word in lost:
        yield f"a search for {word!r} finds {hits[word]}, not {words[word]}"
