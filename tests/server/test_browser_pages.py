"""The dashboard in a real browser: every page, by keyboard, on a phone, and for screen readers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.server.browsing import (
    DESKTOP,
    NARROW,
    PHONE,
    Dashboard,
    OpenTab,
    keep_screenshot,
)
from tests.server.shop import Shop

import millpond.server

STATIC = Path(millpond.server.__file__).parent / "static"
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
PLACES = (
    "pools",
    "pools/mail",
    "tasks",
    "tasks?status=failed",
    "runs",
    "dead",
    "workers",
    "schedules",
    "events",
    "events?view=triggers",
    "audit",
)


@pytest.fixture(scope="module")
def furnished() -> Iterator[Dashboard]:
    """A dashboard with something on every page; tests of this module only look at it."""
    shop = Shop()
    with Dashboard(shop.mp, allow_actions=True) as dashboard:
        dashboard.do(shop.furnish())
        yield dashboard


def visit(page: Page, dashboard: Dashboard, place: str) -> None:
    """Go to a place, and wait until it shows what it has."""
    page.goto(dashboard.address + f"#/{place}")
    expect(page.locator("main h1")).to_be_visible()
    expect(page.locator(".skeleton, .plots.is-waiting, .is-busy")).to_have_count(0)
    expect(page.locator("main .panel, main .empty").first).to_be_visible()


def task_place(dashboard: Dashboard, page: Page, status: str) -> str:
    """Return the place of one task with a status."""
    found = page.request.get(f"{dashboard.address}api/v1/tasks?limit=1&status={status}").json()
    return f"tasks/{found['items'][0]['id']}"


def run_place(dashboard: Dashboard, page: Page) -> str:
    """Return the place of a finished run."""
    found = page.request.get(f"{dashboard.address}api/v1/runs?status=finished").json()
    return f"runs/{found['items'][0]['id']}"


def slug(place: str) -> str:
    """Return what a picture of a place is called."""
    return re.sub(r"\W+", "-", re.sub(r"\d{9,}", "one", place))


def findings(page: Page, *rules: str) -> list[str]:
    """Return what axe finds serious or critical on a page."""
    only: Any = {"runOnly": list(rules)} if rules else {}
    found = page.evaluate(
        "(options) => axe.run(document, { ...options, resultTypes: ['violations'] })", only
    )
    return [
        f"{one['impact']} {one['id']}: {node['html'][:120]} {node['failureSummary'][:200]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


@pytest.mark.rows("DA-03")
def test_axe_has_no_serious_findings_in_light_and_dark(
    furnished: Dashboard, open_tab: OpenTab
) -> None:
    tab = open_tab(color_scheme="light", reduced_motion="reduce")
    page = tab.open(furnished)
    axe = AXE.read_text("utf-8")
    page.evaluate(axe)
    places = [
        *PLACES,
        task_place(furnished, page, "failed"),
        task_place(furnished, page, "running"),
        run_place(furnished, page),
    ]
    found: list[str] = []
    for place in places:
        visit(page, furnished, place)
        name = slug(place)
        found += [f"{place}: {one}" for one in findings(page)]
        keep_screenshot(page, f"{name}-light")
        # The structure is the same in the dark; the colours are not.
        page.emulate_media(color_scheme="dark")
        found += [f"{place}, dark: {one}" for one in findings(page, "color-contrast")]
        keep_screenshot(page, f"{name}-dark")
        page.emulate_media(color_scheme="light")
    assert not found, "\n".join(found)


@pytest.mark.rows("DA-03")
@pytest.mark.parametrize(("scheme", "faint"), [("light", "#c9cfcc"), ("dark", "#3a4248")])
def test_axe_finds_a_contrast_that_is_too_low(
    furnished: Dashboard, open_tab: OpenTab, scheme: str, faint: str
) -> None:
    """The test above notices a colour of the palette that becomes too faint."""
    page = open_tab(color_scheme=scheme, reduced_motion="reduce").open(furnished)
    page.evaluate(AXE.read_text("utf-8"))
    visit(page, furnished, "pools")
    assert findings(page, "color-contrast") == []
    page.evaluate("(faint) => document.documentElement.style.setProperty('--muted', faint)", faint)
    assert any("color-contrast" in one for one in findings(page, "color-contrast"))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_every_page_shows_a_durable_store(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, open_tab: OpenTab
) -> None:
    """Nothing fails, and every page has something to show."""
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path / 'work.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    shop = Shop(url)
    with Dashboard(shop.mp, allow_actions=True) as dashboard:
        dashboard.do(shop.furnish())
        page = open_tab().open(dashboard)
        for place in (*PLACES, task_place(dashboard, page, "failed"), "runs?status=finished"):
            visit(page, dashboard, place)
            expect(page.locator("main .problem")).to_have_count(0)
            keep_screenshot(page, f"{kind}-{slug(place)}")


def test_a_search_goes_on_until_it_has_found_what_fits(
    open_tab: OpenTab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request reads few rows: the page sends the next, and offers to search on at last."""
    monkeypatch.setattr("millpond.server.api.tasks.SCAN", 2)
    shop = Shop()
    shop.mended = True

    async def fill() -> None:
        for tenant in ["deep", *["top"] * 25, "near", *["top"] * 9]:
            await (await shop.send.submit("ada", tenant)).wait()

    with Dashboard(shop.mp) as dashboard:
        dashboard.do(fill())
        page = open_tab().open(dashboard, "#/tasks?pool=mail&key=near")
        expect(page.locator("main table tbody tr")).to_have_count(1)
        page.goto(dashboard.address + "#/tasks?pool=mail&key=deep")
        expect(page.get_by_text("Nothing found among the latest tasks")).to_be_visible()
        page.get_by_role("button", name="Load more tasks").click()
        expect(page.locator("main table tbody tr")).to_have_count(1)


@pytest.mark.rows("DA-03")
def test_axe_has_no_serious_findings_in_dialogs(furnished: Dashboard, open_tab: OpenTab) -> None:
    page = open_tab(reduced_motion="reduce").open(furnished, "#/pools/mail")
    page.evaluate(AXE.read_text("utf-8"))
    page.get_by_role("button", name="Resize").click()
    expect(page.get_by_role("dialog", name="Resize mail")).to_be_visible()
    assert findings(page) == []
    keep_screenshot(page, "dialog-light")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    assert findings(page) == []


CUT_OFF = """
() => [...document.querySelectorAll("main *")]
    .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
    .filter((one) => !one.closest(".sr, .tabs, pre"))
    .map((one) => one.outerHTML.slice(0, 80))
"""
"""What stands beyond the edge of the screen, and is cut off there by the panel that holds it."""


@pytest.mark.rows("DA-04")
def test_a_phone_shows_every_page_without_scrolling_sideways(
    furnished: Dashboard, open_tab: OpenTab
) -> None:
    page = open_tab(viewport=PHONE, has_touch=True).open(furnished)
    for place in [*PLACES, task_place(furnished, page, "failed"), run_place(furnished, page)]:
        page.set_viewport_size(PHONE)
        visit(page, furnished, place)
        keep_screenshot(page, f"{slug(place)}-phone")
        for size in (PHONE, NARROW):
            page.set_viewport_size(size)
            beyond = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert beyond <= 0, f"{place} is {beyond} px too wide for {size['width']} px"
            assert page.evaluate(CUT_OFF) == [], f"{place} at {size['width']} px"


def test_the_menu_of_a_phone(furnished: Dashboard, open_tab: OpenTab) -> None:
    page = open_tab(viewport=PHONE, has_touch=True).open(furnished)
    page.get_by_role("button", name="Menu", exact=True).tap()
    menu = page.get_by_role("dialog", name="Menu")
    menu.get_by_role("link", name="Workers").tap()
    expect(page.get_by_role("heading", name="Workers")).to_be_visible()
    expect(menu).to_have_count(0)


@pytest.mark.rows("DA-03")
def test_everything_by_keyboard(open_tab: OpenTab) -> None:
    shop = Shop()
    with Dashboard(shop.mp, allow_actions=True) as dashboard:
        dashboard.do(shop.furnish())
        page = open_tab().open(dashboard)
        expect(page.locator("tr", has_text="mail")).to_be_visible()
        press = page.keyboard.press

        press("?")
        expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
        press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)

        press("/")
        expect(page.get_by_role("searchbox", name="Find a pool")).to_be_focused()
        page.keyboard.type("slo")
        expect(page.locator("tbody tr")).to_have_count(1)
        press("Escape")
        press("j")
        expect(page.get_by_role("link", name="slow")).to_be_focused()
        press("Enter")
        expect(page.get_by_role("heading", name="slow", level=1)).to_be_focused()
        press("Escape")
        expect(page.get_by_role("heading", name="Pools")).to_be_visible()

        press("g")
        press("t")
        expect(page.get_by_role("heading", name="Tasks")).to_be_focused()
        rows = page.locator("tbody tr .row-link")
        expect(rows.first).to_be_visible()
        press("j")
        press("j")
        expect(rows.nth(1)).to_be_focused()
        press("k")
        expect(rows.first).to_be_focused()

        press("g")
        press("p")
        button = page.get_by_role("button", name="Pause mail")
        button.focus()
        press("Enter")
        expect(page.get_by_role("button", name="Resume mail")).to_be_focused()
        assert dashboard.do(shop.mail.snapshot()).paused


def test_any_place_is_a_few_letters_away(furnished: Dashboard, open_tab: OpenTab) -> None:
    tab = open_tab()
    tab.allow("404")
    page = tab.open(furnished)
    expect(page.locator("tr", has_text="mail")).to_be_visible()
    field = page.get_by_role("combobox", name="A page, a pool, or the id of a task")
    press = page.keyboard.press

    press("Control+k")
    expect(field).to_be_focused()
    page.evaluate(AXE.read_text("utf-8"))
    assert not findings(page)
    page.keyboard.type("slo")
    expect(page.get_by_role("option", name="slow")).to_have_attribute("aria-selected", "true")
    press("Enter")
    expect(page.get_by_role("heading", name="slow", level=1)).to_be_focused()

    press("Control+k")
    expect(field).to_be_focused()
    press("ArrowDown")
    press("ArrowDown")
    press("Enter")
    expect(page.get_by_role("heading", name="Runs", level=1)).to_be_visible()

    one = task_place(furnished, page, "failed").removeprefix("tasks/")
    page.get_by_role("button", name="Go to…").click()
    expect(field).to_be_focused()
    page.keyboard.type(one)
    press("Enter")
    expect(page.get_by_role("heading", name="send", level=1)).to_be_visible()

    press("Control+k")
    expect(field).to_be_focused()
    page.keyboard.type("nowhere")
    expect(page.get_by_text("Nothing is called so")).to_be_visible()
    press("Enter")
    expect(page.get_by_role("heading", name="send", level=1)).to_be_visible()


@pytest.mark.rows("DA-03")
def test_the_focus_is_seen_and_the_content_is_one_key_away(
    furnished: Dashboard, open_tab: OpenTab
) -> None:
    page = open_tab().open(furnished)
    expect(page.locator("tr", has_text="mail")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main h1")).to_be_focused()
    page.keyboard.press("Tab")
    width = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert width == "2px"


@pytest.mark.rows("DA-03")
def test_a_dialog_keeps_the_focus_and_gives_it_back(
    furnished: Dashboard, open_tab: OpenTab
) -> None:
    page = open_tab().open(furnished, "#/pools/slow")
    page.get_by_role("button", name="Purge").press("Enter")
    # What cannot be undone easily is not one careless key away.
    expect(page.get_by_role("button", name="Keep them")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Purge")).to_be_focused()


def test_the_back_button_closes_a_dialog(furnished: Dashboard, open_tab: OpenTab) -> None:
    page = open_tab().open(furnished)
    page.get_by_role("link", name="slow").click()
    page.get_by_role("button", name="Purge").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="Pools")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_bars_of_a_run_share_one_time_whatever_their_level(
    furnished: Dashboard, open_tab: OpenTab
) -> None:
    page = open_tab(viewport=DESKTOP).open(furnished)
    visit(page, furnished, run_place(furnished, page))
    expect(page.locator(".branches .tree-bar").first).to_be_visible()
    edges = page.locator(".tree-bar, .tree-axis").evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect()).map((box) => [box.left, box.right])"
    )
    assert len(edges) > 2
    for left, right in edges:
        assert abs(left - edges[0][0]) < 1.5
        assert abs(right - edges[0][1]) < 1.5


def test_landmarks_and_titles(furnished: Dashboard, open_tab: OpenTab) -> None:
    page = open_tab().open(furnished)
    for place, title in (("pools", "Pools"), ("dead", "Dead letters"), ("pools/mail", "mail")):
        visit(page, furnished, place)
        expect(page).to_have_title(f"{title} · Millpond")
        expect(page.get_by_role("main")).to_have_count(1)
        expect(page.locator("h1")).to_have_count(1)
        pages = page.get_by_role("navigation", name="Pages")
        expect(pages.locator("[aria-current=page]")).to_have_count(1)


def test_a_chosen_theme_is_kept(furnished: Dashboard, open_tab: OpenTab) -> None:
    page = open_tab(color_scheme="light").open(furnished)
    page.get_by_role("button", name="Dark theme").first.click()
    dark = "getComputedStyle(document.documentElement).colorScheme"
    assert page.evaluate(dark) == "dark"
    page.reload()
    assert page.evaluate(dark) == "dark"


def test_reduced_motion_is_respected(furnished: Dashboard, open_tab: OpenTab) -> None:
    page = open_tab(reduced_motion="reduce").open(furnished)
    bar = page.locator(".meter > span").first
    expect(bar).to_have_count(1)
    assert bar.evaluate("(one) => getComputedStyle(one).transitionDuration") == "0s"


def test_plots_are_drawn_and_say_what_they_show(furnished: Dashboard, open_tab: OpenTab) -> None:
    page = open_tab(viewport=DESKTOP).open(furnished, "#/pools/mail")
    for name in ("Throughput", "Depth", "Wait", "Run time"):
        expect(page.get_by_role("img", name=re.compile(f"^{name}: .+"))).to_be_visible()
    expect(page.locator(".plot canvas")).to_have_count(4)


@pytest.mark.rows("DA-06")
def test_modules_make_no_markup_and_ask_no_other_site() -> None:
    for file in (STATIC / "app").rglob("*.js"):
        text = file.read_text("utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", text), file
        assert "dangerouslySetInnerHTML" not in text, file
        assert 'style="' not in text, file


def test_vendored_files_are_those_that_are_noted() -> None:
    vendor = STATIC / "vendor"
    table = (vendor / "README.md").read_text("utf-8")
    noted = dict(re.findall(r"^\| (\S+) \|.*`([0-9a-f]{64})` \|$", table, re.MULTILINE))
    files = {one.name for one in vendor.iterdir() if one.suffix in (".mjs", ".css")}
    assert set(noted) == files
    for name, digest in noted.items():
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == digest, name
