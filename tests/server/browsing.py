"""A real browser, and a dashboard for it to show: what the tests of the pages work with."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest
import uvicorn
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Error,
    Page,
    Request,
    ViewportSize,
    sync_playwright,
)

from millpond import Millpond
from millpond.server import app

T = TypeVar("T")

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
INSTALL = "apt-get update && apt-get install -y chromium"
PATIENCE = 10.0
SCREENSHOTS = Path(__file__).parents[2] / ".screenshots"
"""Where tests leave what they saw."""

DESKTOP: ViewportSize = {"width": 1440, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
NARROW: ViewportSize = {"width": 360, "height": 740}


def find_chromium() -> str:
    """Return the browser: $CHROMIUM, one on PATH, or one that root installs; else say how."""
    named = os.environ.get("CHROMIUM")
    found = named or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["sh", "-c", INSTALL], check=False, capture_output=True)  # noqa: S607
        found = shutil.which("chromium")
    if found is None or not Path(found).exists():
        message = f"the tests of the dashboard need Chromium: run `{INSTALL}`, or set $CHROMIUM"
        pytest.fail(message, pytrace=False)
    return found


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Run a browser with an empty profile of its own."""
    executable = find_chromium()
    # Without a UTF-8 locale some builds have no Intl, and nothing can be formatted.
    environment: dict[str, str | float | bool] = {**os.environ, "LANG": "en_US.UTF-8", "TZ": "UTC"}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable, args=list(FLAGS), env=environment
        )
        try:
            yield browser
        finally:
            browser.close()


class Dashboard:
    """A Millpond and its dashboard, served on a loop of their own in another thread."""

    def __init__(self, mp: Millpond, *, port: int = 0, mount: str = "", **options: Any) -> None:
        self.mp = mp
        options.setdefault("interval", 0.1)
        options.setdefault("max_rate", 100_000)
        self._dashboard = app(mp, **options)
        self._mount = mount
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._over: asyncio.Event
        self._error: BaseException | None = None

    @property
    def address(self) -> str:
        """Where its pages are."""
        return f"http://127.0.0.1:{self.port}{self._mount}/"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(PATIENCE), "the server did not start"
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the server did not stop"
        if self._error is not None:
            raise self._error

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Carry something out where the Millpond lives, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - the test's own thread raises it
            self._error = error
            self._ready.set()

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        config = uvicorn.Config(
            self._mounted(), log_level="error", timeout_graceful_shutdown=2, lifespan="off"
        )
        server = uvicorn.Server(config)
        async with self.mp:
            serving = asyncio.ensure_future(server.serve([self._socket]))
            self._ready.set()
            await self._over.wait()
            await self._dashboard.close()
            server.should_exit = True
            await serving

    def _mounted(self) -> Any:
        if not self._mount:
            return self._dashboard
        from fastapi import FastAPI

        outer = FastAPI()
        outer.mount(self._mount, self._dashboard)
        return outer


class Tab:
    """A page of the browser that writes down what must not happen: errors, foreign requests."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.origin = ""
        self.wrong: list[str] = []
        self.allowed: tuple[str, ...] = ()
        page.on("console", self._console)
        page.on("pageerror", self._broken)
        page.on("request", self._request)

    def open(self, dashboard: Dashboard, where: str = "#/pools") -> Page:
        """Show a place of a dashboard."""
        self.origin = f"http://127.0.0.1:{dashboard.port}/"
        self.page.goto(dashboard.address + where)
        return self.page

    def allow(self, *texts: str) -> None:
        """Let the console report what the test provokes."""
        self.allowed = texts

    def _console(self, message: ConsoleMessage) -> None:
        # A tab outlives its dashboard for a moment, and then tries to listen again.
        gone = "ERR_CONNECTION_REFUSED" in message.text
        if message.type in ("error", "warning") and not gone:
            self.wrong.append(f"console: {message.text}")

    def _broken(self, error: Error) -> None:
        self.wrong.append(f"error: {error}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.origin, "data:")):
            self.wrong.append(f"foreign request: {request.url}")

    def check(self) -> None:
        """Object to everything that must not have happened."""
        found = [one for one in self.wrong if not any(text in one for text in self.allowed)]
        assert not found, "\n".join(found)


OpenTab = Callable[..., Tab]


def keep_screenshot(page: Page, name: str) -> None:
    """Leave a picture of a page among the artifacts."""
    SCREENSHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)
