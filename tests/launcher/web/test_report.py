"""A report holds everything about a run in any state as data, and lets no text out of it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.launcher.conftest import plan_of
from tests.web.synthetic import SyntheticRun, new_run, write_restarted

from tfcluster.plans.plan import Command, EnvVar, Interpreter, Plan
from tfcluster.rundir.paths import RunPaths
from tfcluster.web import rendering
from tfcluster.web.run_data import describe_report

HOSTILE = "</script></style><script>alert(1)</script><!--<img src=x onerror=alert(2)>]]>\x1b[2J"


class Page(HTMLParser):
    """The elements and the data of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self._data = ""
        self._is_data = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self._is_data = ("id", "data") in attrs

    def handle_data(self, data: str) -> None:
        self._data += data if self._is_data else ""

    def handle_endtag(self, tag: str) -> None:
        self._is_data = False

    @property
    def data(self) -> Any:
        return json.loads(self._data)


def a_plan(*tasks: str, **more: Any) -> Plan:
    """Return a plan with a Python, a secret and an ordinary variable."""
    plan = plan_of(*tasks, **more)
    env = (
        EnvVar("WANDB_API_KEY", "hunter2", "job.env", secret=True),
        EnvVar("LEVEL", "1 < 2", "job.env"),
    )
    command = Command(("python", "train.py"), env, "/job")
    python = Interpreter("/usr/bin/python3", "PATH", "3.12.1", {"tensorflow": "2.21.0"})
    return replace(
        plan,
        nodes=tuple(replace(node, interpreter=python) for node in plan.nodes),
        tasks=tuple(replace(task, command=command) for task in plan.tasks),
    )


def a_run(home: Path, *, started: float | None = None, **more: Any) -> SyntheticRun:
    run = new_run(home, "demo", started=started or time.time() - 60, **more)
    run.start()
    run.train(2, 20, total=40)
    return run


def render(paths: RunPaths) -> str:
    report = describe_report(paths, now=time.time())
    return rendering.render_file("run", report, run_id=report["run"])


def data_of(paths: RunPaths) -> Any:
    return Page(render(paths)).data


def test_a_report_has_the_state_the_curves_and_the_timeline(home_dir: Path) -> None:
    found = data_of(write_restarted(home_dir, "demo", started=time.time() - 60))
    assert (found["status"], found["snapshot"]["exit_code"]) == ("succeeded", 0)
    assert found["snapshot"]["figures"]["step"] == 240
    curves = {(curve["task"], curve["name"]) for curve in found["history"]["curves"]}
    assert {("worker:0", "loss"), ("worker:1", "rss_bytes")} <= curves
    kinds = [moment["type"] for moment in found["history"]["timeline"]]
    assert {"restarting", "checkpoint_gathered", "warned", "run_finished"} <= set(kinds)


def test_a_report_has_the_plan_the_spec_and_each_node_without_secrets(home_dir: Path) -> None:
    spec = {"job": {"script": "train.py"}}
    run = a_run(home_dir, plan=a_plan(), spec=spec)
    run.end()
    found = data_of(run.paths)
    assert found["spec"] == spec
    (node,) = found["nodes"]
    assert (node["python"], node["packages"]) == ("3.12.1", {"tensorflow": "2.21.0"})
    variables = {var["name"]: var["value"] for var in found["plan"]["tasks"][0]["env"]}
    assert variables["LEVEL"] == "1 < 2"
    assert variables["WANDB_API_KEY"] is None
    assert "hunter2" not in render(run.paths)


def test_a_node_is_described_as_preflight_has_seen_it(home_dir: Path) -> None:
    run = a_run(home_dir, plan=a_plan())
    seen = {
        "node": "local",
        "python": "3.12.9",
        "packages": {"keras": "3.15.1"},
        "gpus": ["H200"] * 2,
    }
    run.writer.close()
    run.paths.preflight.write_text(json.dumps({"seen": [seen]}))
    (node,) = data_of(run.paths)["nodes"]
    assert (node["python"], node["packages"], node["gpus"]) == (
        "3.12.9",
        {"keras": "3.15.1"},
        "2 × H200",
    )


def test_of_many_tasks_the_root_cause_has_its_plan(home_dir: Path) -> None:
    run = a_run(home_dir, tasks=[f"worker:{number}" for number in range(130)])
    run.fail()
    found = data_of(run.paths)["plan"]
    assert (found["left_out"], found["tasks"][-1]["task"]) == (29, "worker:129")


@pytest.mark.parametrize("is_lost", [True, False])
def test_without_a_root_cause_the_last_lines_are_the_chiefs(home_dir: Path, is_lost: bool) -> None:
    run = a_run(home_dir)
    run.log("worker:0", b"step 20\n")
    if is_lost:
        run.writer.state.pid = 1 << 22
        run.writer.mark_changed()
        run.writer.close()
    else:
        run.end("timed_out", 4, reason="the run took too long")
    found = data_of(run.paths)["diagnosis"]
    assert ("its coordinator died" if is_lost else "the run took too long") in found["reason"]
    assert (found["lines_of"], found["lines"][-1]) == ("worker:0", "step 20")


@pytest.mark.parametrize("broken", ["state", "plan", "spec", "events", "logs"])
def test_of_a_damaged_run_everything_else_is_there(home_dir: Path, broken: str) -> None:
    run = a_run(home_dir)
    run.log("worker:1", b"ValueError: bad batch\n")
    run.fail()
    damaged: Path = getattr(run.paths, broken)
    if damaged.is_dir():
        (damaged / "attempt-1" / "worker-1.log").unlink()
    else:
        damaged.write_bytes(b'{"half')
    found = data_of(run.paths)
    assert found["status"] == ("damaged" if broken == "state" else "failed")
    assert ("state.json cannot be read" in found["diagnosis"]["reason"]) == (broken == "state")
    assert ("plan.json cannot be read" in found["plan"].get("problem", "")) == (broken == "plan")
    assert (found["history"]["curves"] == []) == (broken == "events")
    assert (found["spec"] == {}) == (broken == "spec")
    assert ("ValueError: bad batch" in found["diagnosis"]["lines"]) == (
        broken not in ("state", "logs")
    )


def test_a_page_loads_nothing_and_runs_only_its_own_scripts(home_dir: Path) -> None:
    html = render(write_restarted(home_dir, "demo", started=time.time() - 60))
    page = Page(html)
    assert not page.attributes & {"src", "srcset", "action", "style", "onclick", "onload"}
    policy = html.partition('http-equiv="Content-Security-Policy" content="')[2].partition('"')[0]
    assert policy.startswith("default-src &#39;none&#39;; style-src &#39;sha256-")
    assert "unsafe" not in policy
    assert page.tags.count("script") == 4  # the theme, the charts, the page, its data


@given(text=st.text())
@settings(max_examples=100)
def test_no_text_is_an_element(text: str) -> None:
    html = rendering.render_file("run", {"text": text}, run_id=text)
    page = Page(html)
    assert page.tags == Page(rendering.render_file("run", {"text": ""}, run_id="")).tags
    assert page.data["text"] == text


@pytest.mark.parametrize("entry", ["run", "study"])
def test_a_bundle_has_each_module_once_and_imports_nothing(entry: str) -> None:
    script = rendering.bundle(entry)
    assert script.count("const module_charts = ") == 1
    assert not [line for line in script.splitlines() if line.startswith(("import", "export"))]
    assert "</script" not in script


def test_a_file_outside_of_the_run_folder_is_never_shown(home_dir: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.log"
    secret.write_text("the secret\n")
    run = a_run(home_dir)
    run.fail()
    state = json.loads(run.paths.state.read_text())
    for task in state["tasks"]:
        task["log"] = str(secret)
    run.paths.state.write_text(json.dumps(state))
    assert "the secret" not in render(run.paths)
