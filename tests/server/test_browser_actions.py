"""The dashboard in a real browser: what is seen live, and what is done by clicking."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect
from tests.server.browsing import NARROW, Dashboard, OpenTab
from tests.server.shop import HOSTILE, Shop

from millpond import Millpond

TOKEN = "a-token-that-is-hard-to-guess"  # noqa: S105 - of the tests


def mark(page: Page) -> None:
    """Leave something behind that a reload would lose."""
    page.evaluate("window.kept = true")


@pytest.mark.rows("DA-01")
def test_counts_change_without_a_reload(open_tab: OpenTab) -> None:
    shop = Shop()
    with Dashboard(shop.mp, allow_actions=True) as dashboard:
        dashboard.do(shop.mail.pause())
        page = open_tab().open(dashboard)
        queued = page.locator("tr", has_text="mail").locator("[data-label=Queued]")
        expect(queued).to_have_text("0")
        mark(page)

        for number in range(3):
            dashboard.do(shop.send.submit(f"reader-{number}", "acme"))

        expect(queued).to_have_text("3")
        expect(page.locator("aside").get_by_text("Live", exact=True)).to_be_visible()
        assert page.evaluate("window.kept") is True


@pytest.mark.rows("DA-01")
def test_nothing_jumps_as_counts_change(open_tab: OpenTab) -> None:
    shop = Shop()
    with Dashboard(shop.mp) as dashboard:
        dashboard.do(shop.mail.pause())
        page = open_tab().open(dashboard)
        queued = page.locator("tr", has_text="mail").locator("[data-label=Queued]")
        expect(queued).to_have_text("0")
        page.evaluate(
            """() => {
                window.shifted = 0;
                new PerformanceObserver((list) => {
                    for (const one of list.getEntries()) window.shifted += one.value;
                }).observe({ type: "layout-shift" });
            }"""
        )
        for number in range(12):
            dashboard.do(shop.send.submit(f"reader-{number}", "acme"))
        expect(queued).to_have_text("12")
        assert page.evaluate("window.shifted") < 0.01


def test_a_pool_is_paused_and_resumed_by_clicking(open_tab: OpenTab) -> None:
    shop = Shop()
    with Dashboard(shop.mp, allow_actions=True) as dashboard:
        page = open_tab().open(dashboard)
        page.get_by_role("button", name="Pause mail").click()
        expect(page.get_by_role("status").filter(has_text="Paused mail")).to_be_visible()
        expect(page.locator("tr", has_text="mail").locator(".state")).to_have_text("paused")
        assert dashboard.do(shop.mail.snapshot()).paused

        page.get_by_role("link", name="mail").click()
        expect(page.get_by_text("Nothing new starts")).to_be_visible()
        page.get_by_role("button", name="Resume", exact=True).click()
        expect(page.get_by_text("Nothing new starts")).to_be_hidden()
        assert not dashboard.do(shop.mail.snapshot()).paused

        page.goto(dashboard.address + "#/audit?kind=control")
        expect(page.get_by_text("http:127.0.0.1").first).to_be_visible()


def test_a_pool_is_resized_and_purged_after_a_question(open_tab: OpenTab) -> None:
    shop = Shop()
    with Dashboard(shop.mp, allow_actions=True) as dashboard:
        dashboard.do(shop.mail.pause())
        for number in range(4):
            dashboard.do(shop.send.submit(f"reader-{number}", "acme"))
        page = open_tab().open(dashboard, "#/pools/mail")
        page.get_by_role("button", name="Resize").click()
        page.get_by_role("spinbutton", name="Tasks at a time").fill("7")
        page.get_by_role("dialog").get_by_role("button", name="Resize").click()
        expect(page.locator(".stat", has_text="Running")).to_contain_text("of 7")

        page.get_by_role("button", name="Purge").click()
        question = page.get_by_role("dialog")
        expect(question).to_contain_text("cancels 4 queued tasks")
        question.get_by_role("button", name="Keep them").click()
        assert dashboard.do(shop.mail.snapshot()).queued == 4

        page.get_by_role("button", name="Purge").click()
        question.get_by_role("button", name="Cancel 4 tasks").click()
        expect(page.get_by_text("Cancelled 4 tasks of mail")).to_be_visible()
        assert dashboard.do(shop.mail.snapshot()).queued == 0


def test_a_scheduled_task_is_started_by_clicking(open_tab: OpenTab) -> None:
    shop = Shop()
    with Dashboard(shop.mp, allow_actions=True) as dashboard:
        handle = dashboard.do(shop.send.options(delay=3600).submit("ada", "acme"))
        page = open_tab().open(dashboard, f"#/tasks/{handle.id}")
        expect(page.locator(".callout", has_text="Why it is not running")).to_be_visible()
        page.get_by_role("button", name="Run now").click()
        expect(page.locator("main .state").first).to_have_text("completed")
        expect(page.get_by_text("Changed while it waited")).to_be_visible()


@pytest.mark.rows("DA-02")
def test_what_a_filter_shows_is_counted_and_redriven(open_tab: OpenTab) -> None:
    shop = Shop()
    with Dashboard(shop.mp, allow_actions=True) as dashboard:
        for tenant in ("acme", "acme", "acme", "bolt"):
            dashboard.do(dashboard.do(shop.send.submit("broken", tenant)).wait())
        page = open_tab().open(dashboard, "#/tasks?status=failed")
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(4)
        page.get_by_role("searchbox", name="Key").fill("acme")
        expect(rows).to_have_count(3)

        shop.mended = True
        page.get_by_role("button", name="Redrive…").click()
        question = page.get_by_role("dialog", name="Redrive 3 tasks?")
        expect(question).to_contain_text("Failed tasks of all pools, key acme.")
        question.get_by_role("button", name="Redrive 3 tasks").click()

        expect(page.get_by_text("3 tasks queued again")).to_be_visible()
        expect(page.get_by_text("No task fits")).to_be_visible()
        page.get_by_role("button", name="Clear").click()
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("bolt")


def test_one_task_is_redriven_and_its_story_goes_on(open_tab: OpenTab) -> None:
    shop = Shop()
    with Dashboard(shop.mp, allow_actions=True) as dashboard:
        handle = dashboard.do(shop.send.submit("broken", "acme"))
        dashboard.do(handle.wait())
        page = open_tab().open(dashboard, f"#/tasks/{handle.id}")
        expect(page.get_by_text("Failed for good")).to_be_visible()
        shop.mended = True
        page.get_by_role("button", name="Redrive").click()
        expect(page.get_by_text("Queued again by an operator")).to_be_visible()
        expect(page.locator(".page-line .state")).to_have_text("completed")
        expect(page.get_by_text("Completed", exact=True)).to_be_visible()


def test_a_group_of_dead_letters_is_redriven(open_tab: OpenTab) -> None:
    shop = Shop()
    with Dashboard(shop.mp, allow_actions=True) as dashboard:
        for _ in range(2):
            dashboard.do(dashboard.do(shop.send.submit("broken", "acme")).wait())
        page = open_tab().open(dashboard, "#/dead")
        expect(page.locator(".dead-count")).to_have_text("2")
        shop.mended = True
        page.get_by_role("button", name="Redrive GiveUp of send").click()
        page.get_by_role("button", name="Redrive 2 tasks").click()
        expect(page.get_by_text("No dead letters")).to_be_visible()


def test_filters_show_what_fits_and_stay_in_the_address(open_tab: OpenTab) -> None:
    shop = Shop()
    with Dashboard(shop.mp) as dashboard:
        dashboard.do(shop.furnish())
        page = open_tab().open(dashboard, "#/tasks")
        rows = page.locator("tbody tr")
        # Six mails, three of a run, two that wait, one scheduled, one that a trigger submitted.
        expect(rows).to_have_count(13)
        states = page.get_by_role("navigation", name="State")
        for state, count in (("Failed", 2), ("Completed", 7), ("Scheduled", 1), ("Running", 2)):
            states.get_by_role("link", name=state).click()
            expect(rows).to_have_count(count)
        states.get_by_role("link", name="All").click()
        for field, text, count in (
            ("Function", "send", 6),
            ("Key", "bolt", 3),
            ("Label", "kind=demo", 1),
            ("Error", "mailbox", 2),
        ):
            page.get_by_label(field, exact=True).fill(text)
            expect(rows).to_have_count(count)
            page.get_by_label(field, exact=True).fill("")
            expect(rows).to_have_count(13)
        page.get_by_role("combobox", name="Pool").select_option("mail")
        expect(rows).to_have_count(6)
        page.get_by_role("combobox", name="Age").select_option("Older than 1 h")
        expect(page.get_by_text("No task fits")).to_be_visible()
        assert "pool=mail" in page.url
        assert "min_age=3600" in page.url
        page.reload()
        expect(page.get_by_role("combobox", name="Age")).to_have_value("3600")


def test_tabs_show_the_counts_of_the_pools(open_tab: OpenTab) -> None:
    shop = Shop()
    with Dashboard(shop.mp) as dashboard:
        dashboard.do(shop.mail.pause())
        page = open_tab().open(dashboard, "#/tasks")
        tab = page.get_by_role("navigation", name="State").get_by_role("link", name="Queued")
        expect(tab).to_have_text("Queued")
        for tenant in ("acme", "bolt"):
            dashboard.do(shop.send.submit("ada", tenant))
        expect(tab).to_have_text("Queued 2")
        # What other conditions leave is not counted.
        page.get_by_role("searchbox", name="Key").fill("acme")
        expect(page.locator("main table tbody tr")).to_have_count(1)
        expect(tab).to_have_text("Queued")


def test_a_run_is_shown_as_the_tree_it_grew(open_tab: OpenTab) -> None:
    shop = Shop()
    with Dashboard(shop.mp) as dashboard:
        dashboard.do(shop.slow.drain([shop.grow.bind(2)], run="spring"))
        page = open_tab().open(dashboard, "#/runs?status=finished")
        page.get_by_role("link", name="spring").click()
        tree = page.get_by_role("list", name="Tasks, each below the one that submitted it")
        expect(tree.get_by_role("link", name="grow")).to_have_count(7)
        expect(tree.locator("> li")).to_have_count(1)
        expect(tree.locator("> li > ul > li")).to_have_count(2)
        expect(tree.locator("> li > ul > li > ul > li")).to_have_count(4)
        tree.get_by_role("link", name="grow").last.click()
        expect(page.get_by_role("heading", name="grow", level=1)).to_be_visible()


@pytest.mark.rows("DA-05")
def test_a_hostile_payload_is_text(open_tab: OpenTab) -> None:
    shop = Shop()
    with Dashboard(shop.mp) as dashboard:
        handle = dashboard.do(shop.wait.submit(HOSTILE))
        page = open_tab().open(dashboard, f"#/tasks/{handle.id}")
        expect(page.get_by_text("Hidden until you ask")).to_be_visible()
        assert "window.broken" not in page.content()

        page.get_by_role("button", name="Show payload").click()
        shown = page.get_by_role("region", name="Arguments")
        expect(shown).to_contain_text("<script>window.broken = 1</script>")
        expect(shown).to_contain_text("<img src=x onerror=")
        expect(shown).to_contain_text("user\\u202egnp.exe")
        expect(shown).to_contain_text("zero\\u200bwidth")
        expect(shown).to_contain_text("9007199254740993")
        text = shown.inner_text()
        assert "\u202e" not in text
        assert "hunter2" not in text
        assert page.evaluate("window.broken") is None
        assert page.locator("main img, main script").count() == 0


@pytest.mark.rows("DA-05")
def test_errors_of_handlers_are_text(open_tab: OpenTab) -> None:
    shop = Shop()
    with Dashboard(shop.mp) as dashboard:
        dashboard.do(dashboard.do(shop.send.submit("broken", "<i>acme</i>")).wait())
        page = open_tab().open(dashboard, "#/tasks?status=failed")
        expect(page.locator(".row-error")).to_contain_text("<b>does not</b> exist")
        expect(page.locator(".key-cell")).to_have_text("<i>acme</i>")
        assert page.locator("main i").count() == 0


@pytest.mark.rows("DA-01")
def test_the_page_comes_back_to_a_server_that_was_gone(open_tab: OpenTab) -> None:
    tab = open_tab()
    tab.allow("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED", "ERR_EMPTY_RESPONSE", "ERR_CONN")
    with Dashboard(Shop().mp) as dashboard:
        page = tab.open(dashboard)
        status = page.locator("aside .live")
        expect(status).to_have_text("Live")
        mark(page)
    expect(status).to_have_text("Reconnecting")
    with Dashboard(Shop().mp, port=dashboard.port):
        expect(status).to_have_text("Live")
        assert page.evaluate("window.kept") is True


def test_a_read_only_server_says_how_to_allow_actions(open_tab: OpenTab) -> None:
    shop = Shop()
    with Dashboard(shop.mp) as dashboard:
        page = open_tab().open(dashboard)
        expect(page.get_by_text("Read-only", exact=True)).to_be_visible()
        page.get_by_role("button", name="Pause mail").click()
        expect(page.get_by_role("status").filter(has_text="--allow-actions")).to_be_visible()
        assert not dashboard.do(shop.mail.snapshot()).paused


def test_a_token_opens_the_pages(open_tab: OpenTab) -> None:
    tab = open_tab()
    tab.allow("401")
    shop = Shop()
    with Dashboard(shop.mp, token=TOKEN, allow_actions=True) as dashboard:
        page = tab.open(dashboard)
        page.get_by_label("Token").fill("not-the-right-token")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("wrong_token")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("aside .live")).to_have_text("Live")
        page.get_by_role("button", name="Pause mail").click()
        expect(page.get_by_role("status").filter(has_text="Paused mail")).to_be_visible()
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Token")).to_be_visible()


def test_an_unknown_task_is_refused_with_a_code(open_tab: OpenTab) -> None:
    tab = open_tab()
    tab.allow("404")
    with Dashboard(Shop().mp) as dashboard:
        page = tab.open(dashboard, "#/tasks/12345")
        expect(page.get_by_role("alert")).to_contain_text("no task 12345 is known")
        expect(page.get_by_role("alert")).to_contain_text(re.compile("MILL-\\d+"))


def test_an_empty_store_teaches_the_next_command(open_tab: OpenTab) -> None:
    with Dashboard(Millpond()) as dashboard:
        tab = open_tab(viewport=NARROW)
        for place, command in (
            ("pools", "millpond worker app:mp"),
            ("tasks", "pool.submit("),
            ("runs", "pool.run("),
            ("dead", "millpond dead"),
            ("schedules", "mp.cron("),
            ("events", "millpond emit"),
            ("events?view=triggers", "mp.trigger("),
            ("audit", "millpond audit --follow"),
        ):
            page = tab.open(dashboard, f"#/{place}")
            expect(page.get_by_role("region", name="Command")).to_contain_text(command)
            beyond = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert beyond <= 0, f"{place} is {beyond} px too wide for a phone"


def test_it_works_below_a_path_of_another_app(open_tab: OpenTab) -> None:
    with Dashboard(Shop().mp, mount="/ops/millpond") as dashboard:
        page = open_tab().open(dashboard)
        expect(page.locator("tr", has_text="mail")).to_be_visible()
        expect(page.locator("aside .live")).to_have_text("Live")
        page.goto(dashboard.address.rstrip("/"))
        expect(page.locator("tr", has_text="mail")).to_be_visible()
