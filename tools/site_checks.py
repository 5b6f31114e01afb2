"""What a built site must hold: links that lead somewhere, nothing from another origin."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""Tags that make a browser fetch something, and the attribute that says what."""


class Links(HTMLParser):
    """The addresses in a page, and the places in it that an address can name."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.followed: list[str] = []
        self.loaded: list[str] = []
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the tag names."""
        given = {name: value or "" for name, value in attrs}
        self.ids.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.followed.append(given["href"])
        elif given.get(LOADED.get(tag, "")) and given.get("rel") != "canonical":
            self.loaded.append(given[LOADED[tag]])


links_in = cache(Links)


def problems(site: Path) -> Iterator[str]:
    """Yield what is wrong with a site."""
    for page in sorted(site.rglob("*.html")):
        found = links_in(page)
        for address in found.loaded:
            if urlsplit(address).netloc:
                yield f"{page.relative_to(site)} loads {address}"
        for address in [*found.followed, *found.loaded]:
            # The page for addresses that do not exist is served at any depth.
            if page.name != "404.html" and not leads_somewhere(site, page, address):
                yield f"{page.relative_to(site)} links to {address}"
    for style in sorted(site.rglob("*.css")):
        for address in re.findall(r"url\([\"']?(https?:)?//[^)]*", style.read_text("utf-8")):
            yield f"{style.relative_to(site)} loads {address}"


def leads_somewhere(site: Path, page: Path, address: str) -> bool:
    """Return whether a link of the site leads to a file and, in a page, to a place in it."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return True
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if target.is_dir():
        target /= "index.html"
    if not target.is_relative_to(site.resolve()) or not target.is_file():
        return False
    fragment = unquote(parts.fragment)
    return not fragment or target.suffix != ".html" or fragment in links_in(target).ids
