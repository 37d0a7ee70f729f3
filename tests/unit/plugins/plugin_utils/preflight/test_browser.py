# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""report.html in a real browser, opened as a file: it renders, filters, speaks two languages and works by keyboard.

Needs Chromium (Debian: chromium). Without it these tests are skipped, and pytest's summary says so.
"""

from __future__ import annotations

import json
import os
import shutil
import typing as t
from pathlib import Path

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import preflight
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.preflight import demo, fleets

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="no browser test of report.html: playwright is not installed"
)
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next((path for path in map(shutil.which, NAMES) if path), None)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no browser test of report.html: there is no chromium on this machine"),
    # One worker, one browser.
    pytest.mark.xdist_group("browser"),
]


@pytest.fixture(scope="module")
def browser() -> t.Iterator[t.Any]:
    with sync_api.sync_playwright() as tool:
        # A container has no sandbox to run in, and little shared memory.
        started = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield started
        started.close()


Open = t.Callable[..., t.Any]


@pytest.fixture
def open_page(browser: t.Any, tmp_path: Path) -> t.Iterator[Open]:
    contexts: list[t.Any] = []
    complaints: list[str] = []

    def open_it(case: fleets.Case, locale: str = "en-US") -> t.Any:
        file = tmp_path / "report.html"
        file.write_text(preflight.render_html(case.judge()), encoding="utf-8")
        context = browser.new_context(locale=locale, offline=True, viewport={"width": 1280, "height": 1000})
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on(
            "request", lambda request: complaints.append(request.url) if not request.url.startswith("file:") else None
        )
        page.goto(file.as_uri())
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert complaints == []


def shown(page: t.Any) -> list[str]:
    """The checks of the findings that are shown."""
    found: list[str] = page.eval_on_selector_all("#findings-list > li", "list => list.map(one => one.dataset.check)")
    return found


def test_heat_map_and_findings_are_rendered(open_page: Open) -> None:
    page = open_page(demo.faulty())
    assert page.locator("#chips tbody tr").count() == len(demo.HOSTS)
    assert page.locator("#chips tbody td").count() == len(demo.HOSTS) * 16
    cell = page.locator("#chips tbody tr", has=page.locator("th", has_text="p2")).locator("td").nth(demo.CHIP)
    assert cell.inner_text() == "E" and cell.get_attribute("aria-label") == "p2 chip 5: error"
    assert len(shown(page)) == 9
    assert page.locator("#tiles .error b").inner_text() == "7"
    assert "d2" in page.locator("#findings-list .badge.odd").first.locator("xpath=../..").inner_text()
    assert page.locator("#chips td.odd").count() == 1
    assert page.locator("#pings tbody tr").count() == len(demo.HOSTS)
    # All that is wrong can be reached without a mouse wheel to the right.
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_filters(open_page: Open) -> None:
    page = open_page(demo.faulty())
    page.uncheck("#severity-4")
    assert sorted(shown(page)) == ["driver-equal", "link"]
    page.check("#severity-4")
    page.fill("#by-host", "d1")
    assert sorted(shown(page)) == ["chip-free", "firewall", "link"]
    assert page.locator("#chips tbody tr").count() == 1
    page.fill("#by-chip", "5")
    assert sorted(shown(page)) == ["chip-free", "link"]
    page.click("button[type=reset]")
    sync_api.expect(page.locator("#findings-list > li")).to_have_count(9)
    page.select_option("#by-check", label="tls-equal · TLS is alike on all chips")
    assert shown(page) == ["tls-equal"]
    assert page.locator("#shown").inner_text() == "1 of 9 findings shown"
    page.click("button[type=reset]")
    page.check("#only-bad")
    hosts = page.eval_on_selector_all("#chips tbody th", "list => list.map(one => one.textContent)")
    assert hosts == ["p2", "p3", "p4", "d1", "d2", "d3", "d4"]


def test_two_languages(open_page: Open) -> None:
    page = open_page(demo.faulty())
    assert page.evaluate("document.documentElement.lang") == "en"
    english = page.locator("#findings-list").inner_text()
    page.fill("#by-host", "d")
    page.click("button[data-lang=zh]")
    assert page.evaluate("document.documentElement.lang") == "zh"
    assert page.locator("#chips-title").inner_text() == "主机与芯片"
    # The filter is kept, the texts are others, commands are the same.
    assert all("d" in place for place in page.locator("#findings-list > li b").all_inner_texts())
    assert len(shown(page)) == 6
    page.fill("#by-host", "")
    chinese = page.locator("#findings-list").inner_text()
    assert "其余芯片为" in chinese and "hccn_tool -i 5 -tls -s enable 0" in chinese and chinese != english
    page.click("button[data-lang=en]")
    assert page.locator("#findings-list").inner_text() == english


def test_a_chinese_browser_begins_in_chinese(open_page: Open) -> None:
    page = open_page(demo.faulty(), "zh-CN")
    assert page.evaluate("document.documentElement.lang") == "zh"


def test_by_keyboard_alone(open_page: Open) -> None:
    page = open_page(demo.faulty())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _press in range(40):
        if page.evaluate("document.activeElement.tagName") == "TD":
            break
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "p1 chip 0: good"
    page.keyboard.press("ArrowDown")
    for _press in range(5):
        page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "p2 chip 5: error"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    assert shown(page) == ["chip-health"]
    assert page.evaluate("document.activeElement.id") == "findings"
    # From there the next stop is the command's button.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "copy"
    # A table is one stop, not one per cell.
    page.click("button[type=reset]")
    assert page.locator("#chips td[tabindex='0']").count() == 1


def test_every_control_has_a_name(open_page: Open) -> None:
    page = open_page(demo.faulty())
    nameless = page.evaluate(
        """Array.from(document.querySelectorAll('button, input, select, td[tabindex]')).filter(node => !node.hidden &&
           !(node.getAttribute('aria-label') || node.textContent.trim() || (node.labels && node.labels.length))).length"""
    )
    assert nameless == 0


def test_commands_are_copied(open_page: Open) -> None:
    page = open_page(demo.faulty())
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.select_option("#by-check", label="tls-equal · TLS is alike on all chips")
    page.click("#findings-list .copy")
    sync_api.expect(page.locator("#findings-list .copy")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "hccn_tool -i 5 -tls -s enable 0"


def test_names_are_text(open_page: Open) -> None:
    name = "p\"'</script><img src=x onerror=alert(1)>"
    case = fleets.good("a3", (name, "d1", "d2"))
    case.query(name, 5, "tls")["tls_switch"] = 1
    page = open_page(case)
    assert page.locator("img").count() == 0
    assert name in page.locator("#findings-list").inner_text()
    assert page.locator("#chips tbody th").first.inner_text() == name


def test_256_hosts_show_what_is_wrong_first_and_all_on_demand(open_page: Open) -> None:
    case = fleets.good("a3", [f"h{number:03}" for number in range(256)])
    case.query("h200", 7, "tls")["tls_switch"] = 1
    page = open_page(case)
    assert page.locator("#chips tbody tr").count() == 1
    page.uncheck("#only-bad")
    assert page.locator("#chips tbody tr").count() == 256
    assert page.locator("#pings tbody tr").count() == 256
    assert page.locator("#chips td.odd").count() == 1


def test_a_good_fleet_says_so(open_page: Open) -> None:
    page = open_page(fleets.good("a3"))
    assert page.locator("#shown").inner_text() == "No findings."
    assert page.locator("#tiles .error b").inner_text() == "0"


def test_what_was_not_asked_is_said(open_page: Open) -> None:
    case = fleets.good("a3")
    case.asked = ["p1", "p2"]
    case.facts = {host: case.facts[host] for host in case.asked}
    case.pings = fleets.run_pings(case.view, case.facts)
    page = open_page(case)
    gaps = page.locator("#gaps").inner_text()
    assert "d1, d2" in gaps and "TLS is alike on all chips" in gaps
    assert page.locator("#checks td.skipped").count() > 0


def test_without_scripts_the_sums_are_there(browser: t.Any, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(preflight.render_html(demo.faulty().judge()), encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    assert "7 errors, 2 warnings" in page.locator("noscript").text_content()
    context.close()


def test_data_is_what_report_json_counts(open_page: Open) -> None:
    case = demo.faulty()
    counts = preflight.to_json(case.judge())["counts"]
    page = open_page(case)
    data = json.loads(page.locator("#data").text_content())
    assert data["counts"] == counts
