"""Runs as HTML: well-formed, with all text escaped, whatever a task has reported."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status
from tfcluster.ui.html import live_html, panel_html, result_html, run_html, runs_html
from tfcluster.ui.render import Panel, Verbatim

from .frames import run_of, worker

PATHS = RunPaths(Path("/home/anna/runs/mnist-20260914-153012-k7f3"))
ATTACK = "<script>alert(1)</script>\x1b[2J & \"'"


class Tags(HTMLParser):
    """The tags of a page; an unclosed one raises an error."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen, self._open, self.text = Counter[str](), list[str](), ""
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen[tag] += 1
        if tag != "br":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def hostile_run() -> RunSnapshot:
    tasks = [worker(0), worker(1, phase=ATTACK, step=None, metrics={ATTACK: 1.0})]
    run = run_of(*tasks, warnings=[ATTACK], status=Status.FAILED, reason=ATTACK)
    run.name = run.run = ATTACK
    return run


def test_no_text_of_a_run_becomes_a_tag() -> None:
    run = hostile_run()
    for page in (
        run_html((run, PATHS)),
        result_html((run, PATHS)),
        runs_html((run, PATHS), (run, PATHS)),
        live_html(run, ATTACK, [ATTACK], lambda task: ATTACK),
        panel_html(Panel(ATTACK, (ATTACK, Verbatim((ATTACK,))))),
    ):
        found = Tags(page)
        assert found.seen.keys() <= {
            *["b", "br", "div", "p", "pre", "progress", "table", "td", "th", "tr"]
        }
        assert "<script>alert(1)</script>" in found.text
        assert "\x1b" not in page


def test_the_live_view_has_a_bar_and_a_row_for_each_task() -> None:
    page = live_html(run_of(worker(0), worker(1)), "running", ["a", "b"], lambda task: "Epoch 4/10")
    assert re.search(r'<progress max="1" value="0.300" .*> 30% · ETA 1 min 10 s<', page)
    found = Tags(page)
    assert (found.seen["tr"], found.seen["progress"]) == (3, 1)
    assert "accuracy 0.9123 loss 0.3141" in found.text
    assert found.text.count("Epoch 4/10") == 2
    assert found.text.endswith("a\nb")


def test_the_live_view_counts_the_tasks_that_it_does_not_list() -> None:
    page = live_html(run_of(*map(worker, range(64))), "running", [], lambda task: "")
    found = Tags(page)
    assert (found.seen["tr"], "and 49 more: 49 running" in found.text) == (16, True)
    assert "last line" not in found.text
