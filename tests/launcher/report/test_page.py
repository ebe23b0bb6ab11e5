"""The page of a run: what it shows in every state of a run, and that no text can be markup."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.launcher.report.recorded import START, a_plan, failure, record, starts, steps, success

from tfcluster.report.drawings import figures_of
from tfcluster.report.gather import RunReport, gather
from tfcluster.report.page import format_results, render_report
from tfcluster.rundir import events as ev
from tfcluster.rundir import registry
from tfcluster.rundir.events import Event
from tfcluster.rundir.paths import RunPaths
from tfcluster.ui.figure_text import describe_results

HOSTILE = "</style></pre><script>alert(1)</script><img src=x onerror=alert(2)>]]>\x1b[2J\u202e"
KNOWN_TAGS = frozenset(
    [
        *("html", "head", "meta", "link", "title", "style", "body", "main", "footer", "header"),
        *("section", "h1", "h2", "h3", "p", "span", "div", "dl", "dt", "dd", "pre", "table"),
        *("thead", "tbody", "tr", "th", "td", "ul", "li", "figure", "figcaption", "fieldset"),
        *("legend", "label", "input", "details", "summary", "svg", "path", "text", "desc"),
    ]
)


class Page(HTMLParser):
    """The elements and the text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.headings: list[str] = []
        self.idents: list[str] = []
        self.text = ""
        self._heading = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.idents += [value or "" for name, value in attrs if name == "id"]
        self._heading = tag == "h2"

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._heading:
            self.headings.append(data)
            self._heading = False


def report_of(paths: RunPaths) -> RunReport:
    return gather(paths, now=START + 100)


def page_of(paths: RunPaths) -> Page:
    return Page(render_report(report_of(paths)))


def test_a_run_that_succeeded_has_its_numbers_curves_and_restart(home_dir: Path) -> None:
    page = page_of(record(home_dir, success()))
    for text in (
        *("succeeded", "attempt 2 of 4, from step 4", "step 4"),
        *("0.1111", "80.0", "800 MB", "killed by SIGKILL", "Examples per second", "Memory"),
        *("val_loss", "accuracy", "9.8.7", "2.21.0", "3.12.1", "WANDB_API_KEY", "TF_CONFIG"),
    ):
        assert text in page.text, text
    assert page.headings == [
        *("Summary", "Charts", "Tasks", "Timeline", "Environment", "Plan", "Spec"),
    ]


def test_a_run_that_failed_begins_with_its_cause_fix_and_last_lines(home_dir: Path) -> None:
    paths = record(home_dir, failure(), logs={"worker-1.log": "reading\nValueError: bad batch\n"})
    page = page_of(paths)
    assert page.headings[1] == "Diagnosis"
    for text in ("root cause: worker:1, exit 1", "fix the batch", "reading\nValueError: bad batch"):
        assert text in page.text
    assert "worker:0 failed because of it" in page.text


def test_secrets_stay_hidden_and_other_variables_are_shown(home_dir: Path) -> None:
    page = page_of(record(home_dir, success()))
    assert "# export WANDB_API_KEY=" in page.text
    assert "hunter2" not in page.text
    assert "export LEVEL='1 < 2'" in page.text


def test_a_live_run_is_running(home_dir: Path) -> None:
    page = page_of(record(home_dir, [*starts(), *steps(1, 3)]))
    assert "running" in page.text
    assert "Diagnosis" not in page.headings


def test_a_queued_run_says_what_it_waits_for(home_dir: Path) -> None:
    page = page_of(record(home_dir, [ev.RunQueued(reason="Priority")]))
    assert "queued" in page.text
    assert "nodes: Priority" in page.text


def test_a_lost_run_shows_the_last_lines_of_its_chief(home_dir: Path) -> None:
    paths = record(home_dir, [*starts(), *steps(1, 3)], logs={"worker-0.log": "step 3\n"})
    state = json.loads(paths.state.read_text())
    paths.state.write_text(json.dumps(state | {"pid": 2**22 + 1}))
    page = page_of(paths)
    assert "is lost: its coordinator died" in page.text
    assert "last 1 line of worker:0:" in page.text


@pytest.mark.parametrize("missing", ["state", "plan", "spec", "events", "logs"])
def test_a_damaged_run_is_shown_as_far_as_it_is_there(home_dir: Path, missing: str) -> None:
    paths = record(home_dir, failure(), logs={"worker-1.log": "x\n"})
    damaged: Path = getattr(paths, missing)
    if damaged.is_dir():
        (damaged / "attempt-1" / "worker-1.log").unlink()
    else:
        damaged.write_bytes(b'{"half')
    page = page_of(paths)
    assert ("damaged" in page.text) == (missing == "state")
    assert "Timeline" in page.headings or missing == "events"
    json.dumps(report_of(paths).to_json(), allow_nan=False)


def test_memory_that_is_not_finite_in_a_damaged_file_is_left_out(home_dir: Path) -> None:
    events = [ev.Usage(node="local", tasks={"worker:0": {"rss_bytes": n}}) for n in (7, 9)]
    paths = record(home_dir, [*starts(), *steps(1, 2), *events])
    text = paths.events.read_text()
    assert '"rss_bytes":7' in text
    paths.events.write_text(text.replace('"rss_bytes":7', '"rss_bytes":NaN'))
    assert report_of(paths).results.peak_memory_bytes == 9
    assert "peak memory" in page_of(paths).text


def test_the_speed_is_that_of_the_closing_summary(home_dir: Path) -> None:
    paths = record(home_dir, success())
    state = registry.load(paths)
    assert dict(describe_results(state))["speed"].startswith("80.0 examples/s on average")
    found = dict(format_results(report_of(paths).results))
    assert (found["examples/s on average"], found["steps/s on average"]) == ("80.0", "8.00")


def test_a_search_shows_its_trials_and_the_curves_of_each_tuner(home_dir: Path) -> None:
    trial = ev.Trial(
        task="chief:0",
        attempt=1,
        id="07",
        status="COMPLETED",
        score=0.25,
        objective="val_loss",
        values={"units": 64},
    )
    tasks = ("chief:0", "worker:0", "worker:1")
    events = [*starts(tasks), *steps(1, 3), *steps(1, 3, task="worker:1"), trial]
    page = page_of(record(home_dir, events, plan=a_plan(*tasks, kind="tuner")))
    assert "Trials" in page.headings
    assert "trial 07, val_loss 0.25: units 64" in page.text
    assert "loss of worker:1" in page.text


def test_of_many_tasks_some_are_drawn_and_the_others_are_counted(home_dir: Path) -> None:
    tasks = tuple(f"worker:{i}" for i in range(64))
    events = [*starts(tasks), *(s for task in tasks for s in steps(1, 2, task=task))]
    page = page_of(record(home_dir, events, plan=a_plan(*tasks)))
    assert "64 workers" in page.text
    assert "worker:7 and 56 more started" in page.text
    assert "48 more tasks" in page.text


def test_of_many_tasks_the_root_cause_is_shown_in_full(home_dir: Path) -> None:
    tasks = tuple(f"worker:{i}" for i in range(40))
    cause = {"task": "worker:33", "reason": "exit code 1", "attempt": 1}
    end = [ev.Diagnosis(root_cause=cause), ev.RunFinished(status="failed", exit_code=1)]
    logs = {"worker-33.log": "x\n"}
    paths = record(home_dir, [*starts(tasks), *end], plan=a_plan(*tasks), logs=logs)
    shown = [task["task"] for task in report_of(paths).to_json()["tasks"]]
    assert (len(shown), shown[-1]) == (16, "worker:33")


def test_a_line_without_steps_is_drawn_over_time_only(home_dir: Path) -> None:
    paths = record(home_dir, [*starts(), *steps(1, 2)])
    paths.events.write_text(paths.events.read_text().replace('"step":', '"other":'))
    figures = figures_of(report_of(paths))
    assert [chart.axis for chart in figures[0].charts] == ["time"]


def test_a_file_outside_of_the_run_folder_is_never_shown(home_dir: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.log"
    secret.write_text("the secret\n")
    paths = record(home_dir, failure(), logs={"worker-1.log": "x\n"})
    state = json.loads(paths.state.read_text())
    for task in state["tasks"]:
        task["log"] = str(secret)
    paths.state.write_text(json.dumps(state))
    assert "the secret" not in render_report(report_of(paths))


def hostile_run(home: Path) -> RunPaths:
    """Return a run in which every text that a task can choose is hostile."""
    events: list[Event] = [
        *failure(HOSTILE, metric=HOSTILE),
        ev.Warned(message=HOSTILE),
        ev.Restarting(reason=HOSTILE, attempt=2, of=3, from_step=1),
        ev.CheckpointGathered(path=HOSTILE, step=1, kind=HOSTILE),
        ev.Trial(task="worker:0", attempt=1, id=HOSTILE, status="FAILED", message=HOSTILE),
    ]
    line = HOSTILE + "x" * 100_000
    return record(
        home,
        events,
        spec={"name": HOSTILE, "job": {"args": [f"--{HOSTILE}=1", HOSTILE]}},
        logs={"worker-1.log": f"{line}\n{HOSTILE}\n"},
    )


def test_hostile_text_is_shown_as_text(home_dir: Path) -> None:
    paths = hostile_run(home_dir)
    page = page_of(paths)
    assert page.tags <= KNOWN_TAGS
    assert not {name for name in page.attributes if name.startswith("on") or name == "src"}
    assert "<script>alert(1)</script>" in page.text
    assert not set(page.text) & {"\x1b", "\u202e"}
    assert len(page.text) < 150_000


@given(text=st.text())
@settings(max_examples=30)  # each is a whole run
def test_no_text_of_a_task_becomes_an_element(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    home = tmp_path_factory.mktemp("home")
    page = page_of(record(home, failure(text, metric=text), spec={text: [text]}))
    assert page.tags <= KNOWN_TAGS


@pytest.mark.parametrize("events", [success(), failure()], ids=["success", "failure"])
def test_a_page_loads_nothing_and_its_ids_are_unique(home_dir: Path, events: list[Event]) -> None:
    html = render_report(report_of(record(home_dir, events)))
    page = Page(html)
    assert len(page.idents) == len(set(page.idents))
    assert not page.attributes & {"src", "srcset", "action", "style"}
    assert "http" not in html.replace("http-equiv", "")
    assert "url(" not in html
    assert "default-src 'none'" in html


def test_the_json_has_everything_that_the_page_shows(home_dir: Path) -> None:
    logs = {"worker-1.log": "bad\n"}
    found = report_of(record(home_dir, failure(), logs=logs)).to_json()
    again: Mapping[str, object] = json.loads(json.dumps(found, allow_nan=False))
    assert again["status"] == "failed"
    assert again["fix"] == "fix the batch"
    assert "hunter2" not in json.dumps(found)
    assert again["last_lines"] == {"task": "worker:1", "lines": ["bad"]}
    assert found["results"]["metrics"] == {"loss": 2.0}
    assert found["history"]["curves"][0]["name"] == "loss"
    assert {var["name"] for var in found["tasks"][0]["env"]} >= {"TF_CONFIG", "WANDB_API_KEY"}
