"""The stop button: with the keyboard alone, a dialog that asks, and where it is hidden."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver.common.keys import Keys
from tests.browser import Browser
from tests.integration.commandline import CommandLine
from tests.integration.live import InBackground

from .site import Page, serve

pytestmark = pytest.mark.slow

WAITS = """
import time
print("ready", flush=True)
time.sleep(300)
"""
OPEN = "document.getElementById('stop-dialog').open"


@pytest.fixture
def run(line: CommandLine) -> Iterator[InBackground]:
    """A run of two tasks that does nothing until it is stopped."""
    line.script("waits.py", WAITS)
    line.spec("waits.json", {"script": "waits.py", "hooks": "off"})
    found = InBackground(line, "up", "waits.json", name="waits")
    yield found
    if not found.is_over():
        found.down()


def tab_to(page: Page, name: str) -> None:
    for _ in range(30):
        page.type(Keys.TAB)
        if page.focused() == name:
            return
    raise AssertionError(f"no way to {name} with the tab key")


def test_a_run_is_stopped_with_the_keyboard(page: Page, run: InBackground) -> None:
    page.open_run(run.id)
    page.wait_for_text("#status", "running")
    tab_to(page, "stop")
    assert page.script("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.type(Keys.ENTER)
    page.wait(OPEN)
    assert page.focused() == "Cancel", "Enter alone stops nothing"
    page.type(Keys.ESCAPE)
    page.wait(f"!{OPEN}")
    assert page.focused() == "stop"
    page.type(Keys.ENTER)
    page.wait(OPEN)
    page.type(Keys.ENTER)
    page.wait(f"!{OPEN}")
    assert not run.is_over()
    page.type(Keys.ENTER)
    tab_to(page, "stop-confirm")
    page.type(Keys.ENTER)
    page.wait_for_text("#status", "interrupted", timeout=200)
    page.wait("document.getElementById('stop').hidden")
    assert run.state()["status"] == "interrupted"
    page.wait_for_text("#timeline", "stopping the run: the page of tfcluster ui")


def test_a_read_only_page_has_no_stop_button(
    line: CommandLine, chromium: Browser, run: InBackground
) -> None:
    with serve(line, "--read-only") as site:
        page = Page(chromium, site)
        page.open_run(run.id)
        page.wait_for_text("#status", "running")
        assert page.script("return document.querySelectorAll('#stop, dialog').length") == 0
        assert "read-only" in page.text("footer")
        stop = "return fetch(`/api/runs/${document.body.dataset.run}/stop`, {method: 'POST'"
        token = "headers: {'X-CSRF-Token': document.querySelector('meta[name=csrf]').content}"
        assert page.script(f"{stop}, {token}}}).then((answer) => answer.status)") == 403
        assert not run.is_over()
        chromium.console.clear()  # the browser reports the 403


def test_a_run_is_killed_at_once_where_that_is_asked_for(page: Page, run: InBackground) -> None:
    page.open_run(run.id)
    page.wait_for_text("#status", "running")
    for selector in ("#stop", "#stop-now", "#stop-confirm"):
        page.click(selector)
    page.wait_for_text("#status", "interrupted", timeout=200)
    assert run.state()["tasks"][0]["signal"] == 9
