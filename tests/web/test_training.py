"""Real training watched in the browser while it runs, and a failing one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.browser import Browser
from tests.integration.commandline import CommandLine, wait_for
from tests.integration.jobs.lab import SPECS, a_lab
from tests.integration.live import Live

from .site import Page, Site

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

SLOWEST_S = 10.0
"""A hang guard; the test prints the percentiles."""
WATCH = """
// For each step that the page shows, the time at which it has been drawn.
window.drawn = {};
const place = document.getElementById("position");
const note = () => {
  const step = place.textContent.match(/step ([0-9,]+)/)?.[1].replaceAll(",", "");
  const drawn = () => { window.drawn[step] ??= Date.now() / 1000; };
  if (step) requestAnimationFrame(() => setTimeout(drawn));
};
new MutationObserver(note).observe(place, { characterData: true, childList: true, subtree: true });
"""


@pytest.fixture(scope="module")
def line() -> Iterator[CommandLine]:
    with a_lab() as lab:
        yield lab.line


@pytest.fixture(scope="module")
def watched(line: CommandLine, site: Site, chromium: Browser) -> tuple[Page, Live]:
    """The page of a run of localhost-2w, from its start; the tests follow it in their order."""
    run = Live(line, "up", str(SPECS / "localhost-2w.json"), name="watched")
    page = Page(chromium, site)
    page.open_run(run.run_id)
    page.script(WATCH)
    return page, run


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, round(share * len(values)))]


def seen_after(page: Page, events: list[dict[str, Any]]) -> list[float]:
    """Return the seconds from each event to the picture with its step, where there was one."""
    drawn = page.script("return window.drawn")
    first: dict[str, float] = {}
    for event in events:
        if event["type"] == "progress" and event["task"] == "worker:0":
            first.setdefault(str(event["step"]), event["time"])
    return [at - first[step] for step, at in drawn.items() if step in first]


def test_a_training_is_seen_while_it_runs(watched: tuple[Page, Live]) -> None:
    page, run = watched
    page.wait_for_text("#status", "running", timeout=180)
    page.wait_for_text("#position", "step", timeout=180)
    page.wait("document.querySelectorAll('#charts canvas').length >= 2", timeout=200)
    assert not run.is_over()
    page.wait_for_text("#log-view", "worker:1")
    assert page.texts("#tasks tbody th") == ["worker:0", "worker:1"]


def test_the_end_of_a_training_is_seen(watched: tuple[Page, Live]) -> None:
    page, run = watched
    assert run.end(300) == 0, run.said()
    page.wait_for_text("#status", "succeeded")
    page.wait_for_text("#timeline", "Run ended: succeeded")
    figures = dict(zip(page.texts("#figures dt"), page.texts("#figures dd"), strict=True))
    assert float(figures["loss"]) < 1
    page.assert_clean()


def test_tensorflows_own_lines_are_folded_until_they_are_asked_for(
    watched: tuple[Page, Live],
) -> None:
    page, _ = watched
    page.click("#log-start")
    page.wait("document.querySelector('.log-line time')?.innerText.length === 8")
    assert "coordination_service" not in page.text("#log-view")
    page.click("#log-native")
    page.click("#log-start")
    page.wait_for_text("#log-view", "rpc")


def test_an_event_is_drawn_soon(watched: tuple[Page, Live]) -> None:
    page, run = watched
    delays = seen_after(page, run.events())
    assert len(delays) > 10, "most steps were drawn"
    found = {share: percentile(delays, share) for share in (0.5, 0.95, 1.0)}
    print(
        "event to pixel:", {f"p{share:.0%}": f"{at * 1000:.0f} ms" for share, at in found.items()}
    )
    assert found[0.95] < SLOWEST_S


def test_a_failed_run_shows_the_culprit_its_lines_and_the_fix(
    page: Page, line: CommandLine
) -> None:
    done = line.run("up", str(SPECS / "broken-2w.json"), "--name", "broken", timeout=300)
    assert done.code == 1, done.err
    page.open("/")
    page.wait_for_text("#runs tbody tr", "failed")
    page.click("#runs tbody th a")
    page.wait_for_text("#cause", "worker:1")
    assert "ValueError: Dimensions must be equal" in page.text("#cause")
    assert "broken.py" in page.text("#diagnosis")
    assert "Last lines of worker:1" in page.text("#last-lines")
    assert page.texts("#charts figure")[0].startswith("loss")  # too short a run has no speed
    page.assert_fits()
    assert wait_for(lambda: "Root cause" in page.text("#timeline"))
