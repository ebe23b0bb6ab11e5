"""Reports, each one file, in Chromium from the disk: without a server, for runs in any state."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys
from tests.browser import Browser

from tfcluster.rundir import events as ev
from tfcluster.rundir.paths import RunPaths
from tfcluster.scaling.study import Measured, analyse
from tfcluster.ui.scaling_tables import describe_study
from tfcluster.web.rendering import render_file
from tfcluster.web.run_data import describe_report

from .site import CONTRAST, NAMES, Page, Site
from .synthetic import new_run, write_restarted
from .test_hostile import CONTROLS, MARKUP

pytestmark = pytest.mark.slow

FOREIGN = "main :is(script, img, style, iframe)"


class File(Page):
    """A page from the disk, as somebody opens it who got it with a ticket."""

    def __init__(self, browser: Browser, path: Path) -> None:
        super().__init__(browser, Site(path.as_uri(), path.parent))

    def assert_readable(self) -> None:
        """Check the page in light and dark, wide and narrow."""
        for width, is_dark in ((1280, False), (360, True), (360, False)):
            self.resize(width, dark=is_dark)
            self.settle()
            self.assert_fits()
            assert self.script(CONTRAST) == []
            assert self.script(NAMES) == []
        self.resize(1280)


Open = Callable[[str, str], File]


@pytest.fixture
def open_file(chromium: Browser, tmp_path: Path) -> Open:
    """Return a function that opens a page and checks that it asks for nothing else."""

    def open_one(name: str, html: str) -> File:
        path = tmp_path / f"{name}.html"
        path.write_text(html)
        chromium.requests.clear()
        page = File(chromium, path)
        page.resize(1280)
        page.wait("document.querySelector('#status, #cells td').textContent")
        page.settle()
        assert chromium.requests == [path.as_uri()]
        assert chromium.console == []
        return page

    return open_one


def report(paths: RunPaths, now: float) -> str:
    data = describe_report(paths, now=now)
    return render_file("run", data, run_id=data["run"])


def test_a_run_that_succeeded(open_file: Open, tmp_path: Path) -> None:
    paths = write_restarted(tmp_path, "restarted", started=time.time() - 900)
    page = open_file("good", report(paths, time.time()))
    assert page.text("#status") == "succeeded"
    assert "epoch 6/6 · step 240/240" in page.text("#position")
    assert "exit 0" in page.text("#facts")
    assert {"Peak memory", "Checkpoint", "Elapsed", "Goodput"} <= set(page.texts("#figures dt"))
    parts = {"steps that count 24 s", "steps done again 4.8 s"}
    assert parts <= set(page.texts("#goodput li"))
    assert page.script("return document.querySelectorAll('#charts canvas').length") == 5
    assert page.script("return document.querySelectorAll('#steps canvas').length") == 2
    assert "input-bound" in page.text("#verdict")
    assert "killed by SIGKILL" in page.text("#timeline")
    assert '"script": "main.py"' in page.text("#plan-parts")
    page.click("input[name=axis][value=time]")
    page.wait("document.querySelectorAll('#charts canvas').length === 5")
    page.fill("#smoothing", "0.5")
    page.wait("document.querySelector('#charts .keys').innerText.includes('smoothed')")
    links = page.script("return [...document.links].map((one) => one.getAttribute('href'))")
    assert links == ["#main"]
    assert page.script("return document.querySelector('#stop, #logs, dialog')") is None
    page.assert_readable()
    page.fill("#smoothing", "0")
    page.click("#theme")
    assert page.text("#theme") == "Theme: light"
    page.click("#theme")
    page.click("#theme")


def test_a_run_that_failed_and_is_hostile(open_file: Open, tmp_path: Path) -> None:
    text = MARKUP + CONTROLS + "</script>"
    run = new_run(tmp_path, text, started=time.time() - 10, spec={"name": text})
    run.start()
    run.record(ev.Progress(task="worker:0", attempt=1, step=1, metrics={text: 1.0, "loss": 1e9}))
    run.record(ev.Progress(task="worker:0", attempt=1, step=2, metrics={text: 2.0, "loss": 0.1}))
    run.record(ev.Warned(message=text))
    run.log("worker:1", f"reading\n{text}\n".encode() + b"x" * 1_000_000)
    run.fail(text)
    page = open_file("bad", report(run.paths, time.time()))
    assert "worker:1, exit 1: <script>" in page.text("#cause")
    assert "fix the batch" in page.text("#fix")
    assert "worker:0 failed because of it" in page.text("#fix")
    assert "Last lines of worker:1\n" in page.text("#last-lines")
    assert page.script("return [window.hit, document.title === 'owned']") == [None, False]
    assert page.script("return document.querySelector(arguments[0])", FOREIGN) is None
    assert not {"\x1b", "\u202e", "\0"} & set(page.text("body"))
    page.assert_readable()


def test_a_run_that_still_runs_is_shown_as_it_was(open_file: Open, tmp_path: Path) -> None:
    started = time.time() - 3600
    run = new_run(tmp_path, "live", started=started)
    run.start()
    run.train(2, 40, total=400)
    run.writer.close()
    page = open_file("live", report(run.paths, started + 100))
    assert page.text("#status") == "running"
    figures = dict(zip(page.texts("#figures dt"), page.texts("#figures dd"), strict=True))
    assert figures["Elapsed"] == "1 min 40 s", "that of the report, not of its reader"
    page.assert_readable()


@pytest.mark.parametrize("predict", [(), (8,)])
def test_a_scaling_study(open_file: Open, predict: tuple[int, ...]) -> None:
    alone = Measured(1, None, None, (0.05, 0.051), 4_000_000, 8.0, 0.2)
    cells = [
        Measured(n, "RING", rate, (0.06 + n * 3e7 / rate, 0.1), 4_000_000, 8.0 * n, 0.3)
        for n, rate in product((2, 3), (1e8, 1e9))
    ]
    study = analyse(MARKUP, [alone, *cells], backend="simulated", cores=2, predict=predict)
    page = open_file("study", render_file("study", describe_study(study, ["tfcluster", "scale"])))
    assert page.text("h1").startswith("Scaling of <script>")
    assert len(page.texts("#cells tbody tr")) == 5
    assert page.script("return document.getElementById('predictions-section').hidden") == (
        not predict
    )
    step, collective, efficiency = page.texts("#charts figure")
    for figure in (step, collective, efficiency):
        assert "RING, 100 Mbit/s" in figure
        assert "RING, 1 Gbit/s, model" in figure
    assert "100 %" not in collective
    focus = "document.querySelector('#charts figure')"
    page.script(f"{focus}.focus()")
    page.type(Keys.HOME)
    page.wait(f"{focus}.querySelector('.where').textContent === '1 worker'")
    page.assert_readable()
    assert page.script("return window.hit") is None


def test_a_scaling_study_of_the_real_cluster(open_file: Open) -> None:
    parts = {"compute": 0.04, "waiting": 0.01, "transfer": 0.03}
    cells = [
        Measured(n, None, None, (0.05 * n, 0.1), None, 8.0 * n, parts=known, nodes=("gpu1", MARKUP))
        for n, known in ((1, {"compute": 0.04}), (2, parts), (4, None))
    ]
    study = analyse("real", cells, backend="ssh", cores=None)
    page = open_file("real", render_file("study", describe_study(study, ["tfcluster", "scale"])))
    assert page.text("#facts").startswith("Measured on ssh: gpu1, <script>")
    assert page.texts("#parts th")[0:3] == ["workers", "mean step", "input"]
    assert ["…" in row for row in page.texts("#parts tbody tr")] == [False, False, True]
    assert page.script("return document.getElementById('model').hidden")
    step, efficiency, consists = page.texts("#charts figure")
    assert "A step" in step
    assert "model" not in step
    assert "Efficiency" in efficiency
    assert "Parts of a step" in consists
    assert "waiting" in consists
    page.assert_readable()
    assert page.script("return window.hit") is None
