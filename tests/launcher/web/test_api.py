"""The API describes the runs of its home, and no other file."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.launcher.conftest import MakeRun, plan_of

from tfcluster.plans.plan import EnvVar
from tfcluster.rundir import run_writer
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status
from tfcluster.typed_json import object_to_json

from .conftest import TestClient, Write, change

HOSTILE = "<script>alert(1)</script>\"'\u202e\x1b]0;x\x07\ud800"


def test_runs_are_listed_newest_first_with_the_progress_of_the_chief(
    client: TestClient, make_run: MakeRun
) -> None:
    old, new = make_run("old", started=100.0), make_run("new", started=200.0, status=Status.RUNNING)

    def train(state: RunSnapshot) -> None:
        chief, other = state.tasks
        chief.step, chief.epoch, chief.epochs, chief.total_steps = 40, 2, 5, 100
        chief.metrics, chief.examples_per_second = {"loss": float("nan")}, 1234.5
        other.step = 41

    change(new, train)
    found = client.get("/api/runs").json()

    assert [row["run"] for row in found["runs"]] == [new.run_id, old.run_id]
    row = found["runs"][0]
    assert (row["name"], row["status"], row["tasks"]) == ("new", "running", 2)
    assert (row["task"], row["step"], row["total_steps"]) == ("worker:0", 40, 100)
    assert (row["epoch"], row["epochs"]) == (2, 5)
    assert (row["metrics"], row["examples_per_second"]) == ({"loss": "NaN"}, 1234.5)
    assert found["runs"][1]["ended_at"] == 110.0


def test_a_changed_deleted_or_new_run_is_noticed(client: TestClient, make_run: MakeRun) -> None:
    def listed() -> dict[str, str]:
        return {row["run"]: row["status"] for row in client.get("/api/runs").json()["runs"]}

    first, second = make_run("a", status=Status.RUNNING), make_run("b")
    assert listed() == {first.run_id: "running", second.run_id: "succeeded"}

    change(first, lambda state: setattr(state, "status", Status.FAILED))
    shutil.rmtree(second.root)
    third = make_run("c")

    assert listed() == {first.run_id: "failed", third.run_id: "succeeded"}


@pytest.mark.parametrize("may_pass", [False, True])
def test_a_run_whose_state_was_readable_is_damaged_until_it_is_again(
    client: TestClient, make_run: MakeRun, may_pass: bool
) -> None:
    """An error of the machine that may pass leaves the row as it was."""

    def listed() -> list[str]:
        return [row["status"] for row in client.get("/api/runs").json()["runs"]]

    paths = make_run()
    state, kept = paths.state.read_text(), paths.root / "kept"
    assert listed() == ["succeeded"]
    paths.state.rename(kept)
    if may_pass:
        paths.state.symlink_to(paths.state)  # too many levels of links
    else:
        paths.state.write_text("{")
    assert listed() == ["succeeded" if may_pass else "damaged"]
    paths.state.unlink()
    paths.state.write_text(state)
    assert listed() == ["succeeded"]


def test_a_damaged_run_is_listed_with_the_reason(client: TestClient, make_run: MakeRun) -> None:
    paths = make_run()
    paths.state.write_text("{")

    row = client.get("/api/runs").json()["runs"][0]
    answer = client.get(f"/api/runs/{paths.run_id}")

    assert (row["run"], row["status"], row["tasks"]) == (paths.run_id, "damaged", 0)
    assert row["reason"]
    assert answer.json()["snapshot"]["status"] == "damaged"
    assert answer.json()["diagnosis"]["reason"].startswith("state.json cannot be read: ")
    assert client.get(f"/api/runs/{paths.run_id}/logs").status_code == 409


def test_a_run_has_its_plan_without_secrets_at_the_chosen_ports(
    client: TestClient, make_run: MakeRun
) -> None:
    paths, plan = make_run(), plan_of()
    secret = EnvVar("WANDB_API_KEY", "hunter22", "job.secrets", secret=True)
    tasks = [replace(t, command=replace(t.command, env=(secret,))) for t in plan.tasks]
    run_writer.require_json(paths.plan, object_to_json(replace(plan, tasks=tuple(tasks))))
    change(paths, lambda state: setattr(state.tasks[1], "address", "127.0.0.1:4711"))

    answer = client.get(f"/api/runs/{paths.run_id}")
    found = answer.json()["plan"]

    assert "hunter22" not in answer.text
    task = found["tasks"][1]
    assert (task["task"], task["node"]) == ("worker:1", "local")
    assert task["argv"] == ["python", "main.py"]
    assert task["tf_config"]["cluster"]["worker"][1] == "127.0.0.1:4711"
    assert task["start"] == "cd / && python main.py"
    assert {"name": "WANDB_API_KEY", "value": None, "source": "job.secrets", "secret": True} in (
        task["env"]
    )


def test_a_failure_comes_with_its_cause_its_fix_and_the_last_lines(
    client: TestClient, make_run: MakeRun, write_log: Write
) -> None:
    paths = make_run(status=Status.FAILED, exit_code=1)
    write_log(paths, "worker:1", b"first\n\x1b[31mValueError: no\x1b[0m\n")

    def fail(state: RunSnapshot) -> None:
        cause = {"task": "worker:1", "attempt": 1, "reason": "ValueError: no", "hint": "say yes"}
        state.diagnosis = {"root_cause": cause | {"exit_code": 1}, "collateral": ["worker:0"]}
        state.tasks[1].log = "logs/attempt-1/worker-1.log"

    change(paths, fail)
    found = client.get(f"/api/runs/{paths.run_id}").json()["diagnosis"]

    assert (found["task"], found["how"]) == ("worker:1", "exit 1")
    assert found["reason"] == "ValueError: no"
    assert found["text"] == ["→ say yes", "worker:0 failed because of it."]
    assert found["lines"] == ["first", "ValueError: no"]
    assert found["collateral"] == ["worker:0"]


def test_hostile_text_is_data_in_json_and_escaped_in_pages(
    client: TestClient, make_run: MakeRun
) -> None:
    paths = make_run("evil", status=Status.FAILED)

    def attack(state: RunSnapshot) -> None:
        state.name = state.reason = HOSTILE
        state.tasks[0].metrics = {HOSTILE: 1e308}
        state.warnings = [HOSTILE]

    change(paths, attack)
    answer = client.get(f"/api/runs/{paths.run_id}")

    assert answer.headers["content-type"] == "application/json"
    assert answer.text.isascii()
    assert json.loads(answer.content)["snapshot"]["name"] == HOSTILE
    pages = ("/", *(f"/runs/{run}" for run in (paths.run_id, HOSTILE[:20])))
    for path in (*pages, f"/compare?runs={HOSTILE[:20]}"):
        page = client.get(path)
        assert page.headers["content-type"].startswith("text/html")
        assert "<script>alert" not in page.text


@pytest.mark.parametrize(
    "name",
    ["%2e%2e", "%2e", "..%2f..", "%2e%2e%2fhome", "nope", "%00", "a%00b", "latest", "link",
     "file", "%c3%28", "x" * 5000],
)  # fmt: skip
def test_only_a_folder_of_the_home_is_a_run(
    client: TestClient, home_dir: Path, make_run: MakeRun, name: str
) -> None:
    paths = make_run()
    outside = home_dir.parent / "outside"
    shutil.copytree(paths.root, outside)
    (home_dir / "runs" / "link").symlink_to(outside)
    (home_dir / "runs" / "file").write_text("")
    for rest in ("", "/history", "/logs", "/stream"):
        assert client.get(f"/api/runs/{name}{rest}").status_code == 404
    assert client.get(f"/runs/{name}").status_code == 404
    assert [row["run"] for row in client.get("/api/runs").json()["runs"]] == [paths.run_id]


def test_a_log_that_is_a_link_or_a_pipe_is_not_read(
    client: TestClient, make_run: MakeRun, write_log: Write
) -> None:
    paths = make_run(status=Status.FAILED)
    log = write_log(paths, "worker:0", b"mine\n")
    (log.parent / "worker-1.log").symlink_to("/etc/passwd")
    os.mkfifo(log.parent / "ps-0.log")
    (paths.logs / "attempt-2").symlink_to("/etc")

    lines = client.get(f"/api/runs/{paths.run_id}/logs").json()["lines"]

    assert [line["text"] for line in lines] == ["mine"]


@pytest.mark.parametrize(
    "query",
    ["task=worker:9", "task=x", "lines=x", "attempt=-1", "offset=1/worker-0:x", "lines=%b2",
     "offset=../../etc/passwd:3:x", "offset=1/worker-0:-5"],
)  # fmt: skip
def test_a_senseless_question_about_logs_is_refused(
    client: TestClient, make_run: MakeRun, write_log: Write, query: str
) -> None:
    paths = make_run()
    write_log(paths, "worker:0", b"line\n")

    answer = client.get(f"/api/runs/{paths.run_id}/logs?{query}")

    assert answer.status_code == 400
    assert answer.json()["error"]


def test_a_page_compares_at_most_six_runs(client: TestClient, make_run: MakeRun) -> None:
    names = [make_run(f"r{number}").run_id for number in range(7)]

    for path in ("/compare", "/api/compare"):
        assert client.get(path, params={"runs": ",".join(names[:6])}).status_code == 200
        assert client.get(path, params={"runs": ",".join(names)}).status_code == 400
