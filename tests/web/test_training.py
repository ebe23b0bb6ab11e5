"""Real training watched in the browser while it runs, and a failing one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser import Browser
from tests.integration.commandline import CommandLine, wait_for
from tests.integration.jobs.lab import SPECS, a_lab
from tests.integration.live import Live

from .site import Page, Site

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

PACED = """
import os, time
from tfcluster_workers.jobs import keras_mnist

make_callbacks = keras_mnist.make_callbacks

def paced(keras, *rest):
    def pause(batch, logs):
        if not os.path.exists("seen"):
            time.sleep(0.3)
    return [*make_callbacks(keras, *rest), keras.callbacks.LambdaCallback(on_train_batch_end=pause)]

keras_mnist.make_callbacks = paced
keras_mnist.main()
"""
"""`keras_mnist`, whose 375 steps last for two minutes unless there is the file `seen`."""


@pytest.fixture(scope="module")
def line() -> Iterator[CommandLine]:
    with a_lab() as lab:
        yield lab.line


@pytest.fixture(scope="module")
def watched(line: CommandLine, site: Site, chromium: Browser) -> tuple[Page, Live]:
    """The page of a run of localhost-2w, from its start; the tests follow it in their order."""
    line.script("paced.py", PACED)
    spec = json.loads((SPECS / "localhost-2w.json").read_text())
    del spec["job"]["module"]
    spec["job"]["script"] = "paced.py"
    run = Live(line, "up", str(line.script("paced.json", json.dumps(spec))), name="watched")
    page = Page(chromium, site)
    page.open_run(run.run_id)
    return page, run


def test_a_training_is_seen_while_it_runs(watched: tuple[Page, Live], line: CommandLine) -> None:
    page, run = watched
    page.wait_for_text("#status", "running", timeout=180)
    page.wait_for_text("#position", "step", timeout=180)
    page.wait("document.querySelectorAll('#charts canvas').length >= 2", timeout=200)
    assert not run.is_over()
    line.script("seen", "")
    page.wait_for_text("#log-view", "worker:1")
    assert page.texts("#tasks tbody th") == ["worker:0", "worker:1"]


def test_the_end_of_a_training_is_seen(watched: tuple[Page, Live]) -> None:
    page, run = watched
    assert run.end(300) == 0, run.said()
    page.wait_for_text("#status", "succeeded")
    page.wait_for_text("#timeline", "the run ended: succeeded")
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


def test_the_report_of_a_training_is_its_page(
    watched: tuple[Page, Live], line: CommandLine, tmp_path: Path
) -> None:
    page, run = watched
    file = tmp_path / "report.html"
    done = line.run("report", run.run_id, "-o", str(file))
    assert done.code == 0, done.err
    sections = ("#status", "#figures", "#warnings", "#tasks", "#timeline", "#nodes", "#plan-parts")
    shown = [page.texts(selector) for selector in sections]
    page.browser.open(file.as_uri())
    page.wait("document.querySelectorAll('#charts canvas').length >= 2")
    assert [page.texts(selector) for selector in sections] == shown
    assert page.browser.console == []
    page.browser.requests.clear()


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
    assert wait_for(lambda: "root cause: worker:1" in page.text("#timeline"))
