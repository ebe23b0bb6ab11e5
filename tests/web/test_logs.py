"""The logs of a run on its page: many lines, long ones, hostile ones, filters, new ones."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from tests.integration.commandline import wait_for

from .site import Page, Site
from .synthetic import SyntheticRun, new_run

pytestmark = pytest.mark.slow

LINES = 100_000
LONGEST_STALL_MS = 30_000
"""A hang guard; the test prints what it took."""
SCROLL = """
const done = arguments[arguments.length - 1];
const view = document.getElementById("log-view");
const gaps = [];
let last = performance.now();
let moves = 0;
const move = () => {
  const now = performance.now();
  gaps.push(now - last);
  last = now;
  view.scrollTop -= 400 * 20;
  const rows = view.querySelectorAll(".log-line").length;
  moves += 1;
  if (moves < 150) requestAnimationFrame(move);
  else done([Math.max(...gaps.slice(1)), rows]);
};
requestAnimationFrame(move);
"""


@pytest.fixture(scope="module")
def run(site: Site) -> Iterator[SyntheticRun]:
    """A live run whose tasks have written 100,000 lines."""
    found = new_run(site.home, "talks", started=time.time() - 100)
    found.start()
    for task in found.tasks:
        lines = (f"{task} says line {number:06d} of many\n" for number in range(LINES // 2))
        found.log(task, "".join(lines).encode())
    found.writer.save()
    yield found
    found.writer.close()


@pytest.fixture
def logs(page: Page, run: SyntheticRun) -> Page:
    page.open_run(run.paths.run_id)
    page.wait_for_text("#log-view", "line 049999")
    return page


def test_the_last_lines_are_shown_first(logs: Page) -> None:
    assert "worker:1 says line 049999 of many" in "\n".join(logs.texts(".log-line"))
    assert logs.script("return document.querySelectorAll('.log-line').length") < 100


def test_100_000_lines_scroll_with_few_rows_in_the_page(logs: Page) -> None:
    driver = logs.browser.driver
    longest_ms, rows = driver.execute_async_script(SCROLL)
    print(f"longest frame while scrolling back: {longest_ms:.0f} ms, {rows} rows in the page")
    assert longest_ms < LONGEST_STALL_MS
    assert rows < 100
    logs.click("#log-start")
    logs.wait_for_text("#log-view", "line 000000")

    def first_after_scrolling() -> int:
        logs.script("document.getElementById('log-view').scrollTop = 1e9")
        shown = re.search(r"line (\d+)", "\n".join(logs.texts(".log-line")))
        return int(shown[1]) if shown else 0

    wait_for(lambda: first_after_scrolling() > 2000, what="the later lines")


def test_lines_are_filtered_by_task_and_text(logs: Page) -> None:
    logs.fill("#log-text", "LINE 012345")
    logs.wait("document.querySelectorAll('.log-line').length === 2")
    logs.fill("#log-task", "worker:1")
    logs.wait("document.querySelectorAll('.log-line').length === 1")
    assert logs.texts(".log-line") == ["worker:1 worker:1 says line 012345 of many"]
    logs.fill("#log-text", "never said")
    logs.wait_for_text("#log-note", "No line has this text.")


def test_new_lines_are_followed_until_the_reader_scrolls_back(
    logs: Page, run: SyntheticRun
) -> None:
    run.log("worker:0", b"a new line\n")
    logs.wait_for_text("#log-view", "a new line")
    view = "document.getElementById('log-view')"
    logs.script(f"{view}.scrollTop -= 600")
    logs.wait("document.getElementById('log-follow').ariaPressed === 'false'")
    before = logs.script(f"return {view}.scrollTop")
    run.log("worker:0", b"another line\n" * 50)
    time.sleep(0.5)
    assert logs.script(f"return {view}.scrollTop") == before, "it stays where the reader is"
    logs.click("#log-follow")
    logs.wait_for_text("#log-view", "another line")


HOSTILE = {
    "a script": (b"<script>window.hit = 1</script>", "<script>window.hit = 1</script>"),
    "an image": (b"<img src=x onerror=window.hit=1>", "<img src=x onerror=window.hit=1>"),
    "the end of our markup": (b"</div></main><h1>Stop</h1>", "</div></main><h1>Stop</h1>"),
    "quotes": (b'" onmouseover="window.hit=1" \'', '" onmouseover="window.hit=1" \''),
    "a javascript URL": (b"javascript:window.hit=1", "javascript:window.hit=1"),
    "a template": (b"{{ 7 * 7 }} {% raw %} ${7*7}", "{{ 7 * 7 }} {% raw %} ${7*7}"),
    "colours": (b"\x1b[31mred\x1b[0m\x1b[2J", "red"),
    "the clipboard and the title": (b"\x1b]52;c;cm0=\x07\x1b]0;owned\x07kept", "kept"),
    "right to left": ("\u202egnp.exe\u2066".encode(), "�gnp.exe�"),
    "control characters": (b"a\x00b\x07c\x08d\x7fe", "a␀b␇c␈d␡e"),
    "invalid UTF-8": (b"\xff\xfe caf\xc3", "�� caf�"),
    "line separators": ("one\u2028two\u2029three\x85four".encode(), "one␤two␤three�four"),
    "a carriage return": (b"10 %\r20 %\r30 %", "30 %"),
    "a megabyte": (b"M" * 1_000_000, "MMM"),
}


def test_hostile_lines_are_only_text(page: Page, site: Site) -> None:
    run = new_run(site.home, "hostile", started=time.time())
    run.start()
    for raw, _ in HOSTILE.values():
        run.log("worker:0", b"before\n" + raw + b"\n")
    run.log("worker:0", b"after\n")
    run.writer.close()
    page.open_run(run.paths.run_id)
    page.click("#log-start")
    page.fill("#log-task", "worker:0")
    page.script("document.getElementById('log-view').style.height = '2000px'")
    # The enlarged view is drawn a frame or more after the former one has shown its last lines.
    texts = "[...document.querySelectorAll('.log-line')].map((line) => line.innerText)"
    befores = f"{texts}.filter((text) => text.endsWith('before')).length"
    page.wait(f"{befores} === {len(HOSTILE)}")
    page.wait_for_text("#log-view", "after")
    lines = [text.removeprefix("worker:0").strip() for text in page.texts(".log-line")]
    shown = [lines[number + 1] for number, text in enumerate(lines) if text == "before"]
    for name, line, (_, expected) in zip(HOSTILE, shown, HOSTILE.values(), strict=True):
        assert line.startswith(expected), name
        assert len(line) < 10_000
    assert page.script("return window.hit") is None
    foreign = "return document.querySelectorAll('#log-view :is(script, img, a)').length"
    assert page.script(foreign) == 0
    page.script("document.getElementById('log-view').style.height = ''")
    page.assert_fits()
