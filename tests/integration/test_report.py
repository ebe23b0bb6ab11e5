"""Reports of real runs in Chromium: they load nothing, work without scripts and can be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser import Browser, browser

from .commandline import CommandLine

pytestmark = pytest.mark.slow

TRAINS = """
import time
from tfcluster_workers import reporting

for step in range(1, 31):
    time.sleep(0.05)
    reporting.progress(step, metrics={"loss": 2.0 / step, "accuracy": 1 - 1 / step}, batch_size=32)
"""
HOSTILE = (
    "</style></pre><script>document.title='owned'</script><img src=http://x.test/ onerror=a>]]>"
)
FAILS = f"""
import os, sys, time
from tfcluster_workers import reporting

reporting.progress(1, metrics={{"loss": float("nan"), {HOSTILE!r}: 1.0}})
sys.stdout.write("x" * 10_000_000 + "\\n")
print("\\x1b[31mred\\x1b[0m \\u202e reversed", {HOSTILE!r}, flush=True)
time.sleep(1 if os.environ["TFCLUSTER_TASK"] == "worker:1" else 60)
raise ValueError({HOSTILE!r})
"""


@pytest.fixture
def pages(shell: CommandLine) -> dict[str, Path]:
    """Return the pages of a run that succeeds and of a hostile one that fails."""
    shell.script("trains.py", TRAINS)
    shell.script("fails.py", FAILS)
    shell.is_doubtful = True
    assert shell.run("run", "-n", "2", "trains.py").code == 0
    assert shell.run("run", "-n", "2", "fails.py").code == 1
    made = shell.run("report", "trains")
    assert made.code == 0, made.err
    (trains,) = shell.cwd.glob("trains-*.html")
    assert made.out.decode().strip() == trains.name
    assert shell.run("report", "fails", "-o", "fails.html").code == 0
    return {"trains": trains, "fails": shell.cwd / "fails.html"}


def opened(found: dict[str, Path], chromium: Browser) -> Iterator[str]:
    """Open one page after the other and check that it loads only itself and complains never."""
    seen: list[str] = []
    for name, path in found.items():
        chromium.open(path.as_uri())
        seen.append(path.as_uri())
        yield name
        assert chromium.requests == seen
        assert chromium.console == []


def text_of(chromium: Browser) -> str:
    return str(chromium.script("return document.body.innerText"))


def is_shown(chromium: Browser, selector: str) -> Any:
    return chromium.script(
        "return document.querySelector(arguments[0]).getBoundingClientRect().height > 50", selector
    )


def test_pages_of_real_runs_can_be_read_in_light_and_dark_wide_and_narrow(
    shell: CommandLine, pages: dict[str, Path]
) -> None:
    assert pages["fails"].stat().st_size < 500_000
    for width, dark in ((1280, False), (360, True)):
        with browser(width, 800, dark=dark) as chromium:
            for name in opened(pages, chromium):
                assert chromium.problems() == [], (name, width)
                assert chromium.script("return document.title") != "owned"
                if name == "trains":
                    check_success(chromium)
                else:
                    check_failure(chromium)
    check_json(shell)


def check_success(chromium: Browser) -> None:
    text = text_of(chromium)
    assert "succeeded" in text
    assert "0.06667" in text
    assert is_shown(chromium, ".by-step svg.chart")
    chromium.driver.find_element("css selector", "#by-time").click()
    assert is_shown(chromium, ".by-time svg.chart")
    assert not is_shown(chromium, ".by-step svg.chart")


def check_failure(chromium: Browser) -> None:
    text = text_of(chromium)
    assert "root cause: worker:1" in text
    assert "<script>document.title='owned'</script>" in text
    assert chromium.script("return document.querySelectorAll('script, img, iframe').length") == 0
    assert len(text) < 100_000
    assert not set(text) & {"\x1b", "\u202e"}


def check_json(shell: CommandLine) -> None:
    report = json.loads(shell.run("report", "fails", "--json").out)
    assert report["status"] == "failed"
    losses = [c for c in report["history"]["curves"] if c["name"] == "loss"]
    assert losses[0]["points"][0][2] == "NaN"
    compared = json.loads(shell.run("compare", "trains", "fails", "--json").out)
    assert [run["status"] for run in compared] == ["succeeded", "failed"]
