"""Take the screenshots of the README: `make screenshots`.

It opens the dashboard of a busy shop in Chromium, waits until the sparklines have a past, and
writes docs/images/*.png. With the font Inter installed (Debian: fonts-inter) they look best.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.async_api import async_playwright
from tests.server.browsing import FLAGS, find_chromium
from tools.lively_store import served

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SHOTS = (
    ("dashboard-pools", "#/pools", "light"),
    ("dashboard-pool", "#/pools/mail", "dark"),
)
PAST = 300.0
"""Seconds that a full sparkline shows."""

LARGEST = 200_000
SIGNATURE = b"\x89PNG\r\n\x1a\n"


async def main() -> None:
    past = float(sys.argv[1]) if len(sys.argv) > 1 else PAST
    async with served() as address, async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_chromium(), args=list(FLAGS)
        )
        pages = [(name, await _opened(browser, address + at, how)) for name, at, how in SHOTS]
        await asyncio.sleep(past)
        for name, page in pages:
            await _taken(page, IMAGES / f"{name}.png")
        await browser.close()


async def _opened(browser: Browser, address: str, scheme: str) -> Page:
    context = await browser.new_context(
        viewport={"width": 1280, "height": 800},
        device_scale_factor=1.25,
        color_scheme="dark" if scheme == "dark" else "light",
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
    """Return the same picture in fewer bytes: browsers compress for speed."""
    chunks = [(kind, data) for kind, data in _chunks(png) if kind in (b"IHDR", b"IDAT", b"IEND")]
    pixels = zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT"))
    packer = zlib.compressobj(9, zlib.DEFLATED, 15, 9)
    packed = packer.compress(pixels) + packer.flush()
    header = next(data for kind, data in chunks if kind == b"IHDR")
    parts = ((b"IHDR", header), (b"IDAT", packed), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(kind, data) for kind, data in parts)


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
