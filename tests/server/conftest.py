"""The three kinds of stores, for tests that must hold on each; and a browser for the pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext
from tests import stores
from tests.server.browsing import DESKTOP, PATIENCE, OpenTab, Tab, open_browser
from verify.servers.schemas import Schemas


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[stores.Places | None]:
    """Give where stores are made; None = in memory."""
    if request.param == "memory":
        yield None
        return
    made: stores.Places
    if request.param == "sqlite":
        made = stores.Files(tmp_path)
    else:
        schemas: Schemas = request.getfixturevalue("postgres_schemas")
        made = stores.Servers(schemas)
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the tests of a module; each has a profile of its own in it.

    While it is open, Playwright's event loop runs in this thread: asynchronous tests of another
    module could not run.
    """
    with open_browser() as opened:
        yield opened


@pytest.fixture
def open_tab(browser: Browser) -> Iterator[OpenTab]:
    """Open tabs that object, at the end, to errors and requests to other origins."""
    opened: list[tuple[BrowserContext, Tab]] = []

    def make(**options: Any) -> Tab:
        context = browser.new_context(**{"viewport": DESKTOP, **options})
        context.set_default_timeout(PATIENCE * 1000)
        tab = Tab(context.new_page())
        opened.append((context, tab))
        return tab

    yield make
    for context, _ in opened:
        context.close()
    for _, tab in opened:
        tab.check()
