"""Take the screenshots of the README: `make screenshots`.

It opens the dashboard of a busy shop in Chromium, waits until the sparklines have a past, and
writes docs/images/*.png. With the font Inter installed (Debian: fonts-inter) they look best.

    make screenshots ARGS="--gallery FOLDER --past 60"

takes every page instead, of the shop and of an empty store, at desktop and phone width, light and
dark.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.async_api import async_playwright
from tests.server.browsing import FLAGS, find_chromium
from tools.lively_store import served

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.async_api import Browser, Page

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SHOTS = (
    ("dashboard-pools", "#/pools", "light"),
    ("dashboard-pool", "#/pools/mail", "dark"),
)
GALLERY = {
    "pools": "#/pools",
    "pool": "#/pools/mail",
    "tasks": "#/tasks?pool=mail",
    "failed": "#/tasks?status=failed",
    "task": "#/tasks",
    "failure": "#/tasks?status=failed",
    "dead": "#/dead",
    "runs": "#/runs",
    "finished": "#/runs?status=finished",
    "run": "#/runs",
    "workers": "#/workers",
    "schedules": "#/schedules",
    "events": "#/events",
    "triggers": "#/events?view=triggers",
    "audit": "#/audit",
}
"""Every page; that of a task or a run is opened by a click on the first of its list."""

ONE_OF_A_LIST = {"task", "failure", "run"}

WIDTHS = {"desktop": (1440, 900), "phone": (390, 844)}
PAST = 300.0
"""Seconds that a full sparkline shows."""

LARGEST = 200_000
CHANNELS = {2: 3, 6: 4}
"""Bytes of a pixel: without and with transparency."""

SIX_BITS = bytes(value & 0xFC | value >> 6 for value in range(256))
SIGNATURE = b"\x89PNG\r\n\x1a\n"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--past", type=float, default=PAST, help="seconds to wait first")
    parser.add_argument("--gallery", type=Path, help="take every page, into this folder")
    options = parser.parse_args()
    async with served() as address, async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_chromium(), args=list(FLAGS)
        )
        if options.gallery is None:
            await _of_readme(browser, address, options.past)
        else:
            await _gallery(browser, address, options.gallery, options.past)
        await browser.close()


async def _of_readme(browser: Browser, address: str, past: float) -> None:
    pages = [
        (name, await _opened(browser, address + at, how, (1280, 800), 1.25))
        for name, at, how in SHOTS
    ]
    await asyncio.sleep(past)
    for name, page in pages:
        await _taken(page, IMAGES / f"{name}.png")


async def _gallery(browser: Browser, address: str, folder: Path, past: float) -> None:
    watching = await _opened(browser, address + GALLERY["pool"], "light", WIDTHS["desktop"], 1)
    await asyncio.sleep(past)
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            await _pages(browser, address, folder, width, scheme)
    await watching.context.close()
    async with served(shop=False) as empty:
        for width in WIDTHS:
            await _pages(browser, empty, folder / "empty", width, "light")
    print(f"pictures of every page are in {folder}")


async def _pages(browser: Browser, address: str, folder: Path, width: str, scheme: str) -> None:
    page = await _opened(browser, address, scheme, WIDTHS[width], 1)
    for name, at in GALLERY.items():
        await page.goto(address + at)
        await page.wait_for_timeout(1500)
        first = page.locator("table tbody a").first
        if name in ONE_OF_A_LIST and await first.count():
            await first.click()
            await page.wait_for_timeout(1500)
        await page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)
    await page.keyboard.press("Control+k")
    await page.wait_for_timeout(300)
    await page.screenshot(path=folder / f"palette-{width}-{scheme}.png")
    await page.context.close()


async def _opened(
    browser: Browser, address: str, scheme: str, size: tuple[int, int], scale: float
) -> Page:
    context = await browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        device_scale_factor=scale,
        color_scheme="dark" if scheme == "dark" else "light",
        # Otherwise bars are shown on their way from one value to the next.
        reduced_motion="reduce",
    )
    page = await context.new_page()
    await page.goto(address)
    return page


async def _taken(page: Page, file: Path) -> None:
    smaller = recompressed(await page.screenshot())
    _write(file, smaller)
    print(f"{file.name}: {len(smaller):,} bytes")
    if len(smaller) > LARGEST:
        raise SystemExit(f"{file.name} has more than {LARGEST:,} bytes")


def _write(file: Path, data: bytes) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(data)


def recompressed(png: bytes) -> bytes:
    """Return the same picture in fewer bytes, with six bits for each colour.

    Browsers compress for speed. Flat colours compress best without the filters of PNG.
    """
    chunks = _chunks(png)
    header = next(data for kind, data in chunks if kind == b"IHDR")
    width, height, depth, colours = struct.unpack_from(">IIBB", header)
    if depth != 8 or colours not in CHANNELS:
        raise SystemExit(f"a picture with {depth} bits and colours of kind {colours}")
    filtered = zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT"))
    rows = _unfiltered(filtered, width * CHANNELS[colours], height, CHANNELS[colours])
    packed = zlib.compress(b"".join(b"\0" + row.translate(SIX_BITS) for row in rows), 9)
    parts = ((b"IHDR", header), (b"IDAT", packed), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(kind, data) for kind, data in parts)


def _unfiltered(filtered: bytes, length: int, height: int, step: int) -> Iterator[bytes]:
    """Yield the rows of a picture as they are: each was stored as a difference to others."""
    above = bytes(length)
    for number in range(height):
        start = number * (length + 1)
        kind, row = filtered[start], bytearray(filtered[start + 1 : start + 1 + length])
        for at in range(length if kind else 0):
            left = row[at - step] if at >= step else 0
            corner = above[at - step] if at >= step else 0
            row[at] = (row[at] + _guess(kind, left, above[at], corner)) & 0xFF
        above = bytes(row)
        yield above


def _guess(kind: int, left: int, up: int, corner: int) -> int:
    """Return what a filter of PNG expects a byte to be."""
    if kind < 4:
        return (0, left, up, (left + up) // 2)[kind]
    estimate = left + up - corner
    return min((left, up, corner), key=lambda one: abs(estimate - one))


def _chunks(png: bytes) -> list[tuple[bytes, bytes]]:
    found, place = [], len(SIGNATURE)
    while place < len(png):
        length, kind = struct.unpack_from(">I4s", png, place)
        found.append((kind, png[place + 8 : place + 8 + length]))
        place += length + 12
    return found


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


if __name__ == "__main__":
    asyncio.run(main())
