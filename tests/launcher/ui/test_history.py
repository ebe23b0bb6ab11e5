"""The summary, `status` and the status line show a run's history: restarts, causes, faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.documentation import unprinted

from tfcluster.rundir.goodput import Goodput
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import RunSnapshot, TaskSnapshot
from tfcluster.rundir.states import Status
from tfcluster.ui import history
from tfcluster.ui.live_panel import format_status_line
from tfcluster.ui.panels import closing_panel, root_cause_panel, runs_grid, status_panel
from tfcluster.ui.render import part_lines, plain_text

START = 1_700_000_000.0
KILLED = {"attempt": 2, "of": 4, "from_step": 1200, "reason": "worker:1: killed by SIGKILL"}


def snapshot(status: Status = Status.RUNNING) -> RunSnapshot:
    """Return a run in its second attempt; worker:0 was stopped, worker:1 failed."""
    tasks = [
        TaskSnapshot(
            f"worker:{index}", "local", f"127.0.0.1:4000{index}", state=state, attempt=2,
            started_at=START, log=f"logs/attempt-2/worker-{index}.log",
        )
        for index, state in enumerate(["stopped", "failed"])
    ]  # fmt: skip
    tasks[0].signal, tasks[0].ended_by, tasks[0].ended_at = 15, "tfcluster", START + 3
    tasks[1].exit_code, tasks[1].ended_by, tasks[1].ended_at = 3, "itself", START + 2
    return RunSnapshot(
        run="demo-k7f3", name="demo", status=status, tasks=tasks, host="laptop", boot_id="b",
        pid=1, pid_start=1, started_at=START, attempt=2, restarts=[dict(KILLED)],
        ended_at=START + 65 if status.is_final else None,
        diagnosis={
            "root_cause": {
                "task": "worker:1", "attempt": 2, "exit_code": 3, "reason": "exit code 3",
                "hint": "look at train.py", "docs": "docs/failures.md#exit",
                "not_restarted": "restarts are off",
            },
            "collateral": [],
        },
    )  # fmt: skip


def shown(run: RunSnapshot, paths: RunPaths, width: int = 100) -> str:
    return plain_text(status_panel(run, paths, now=START + 10, this_host="laptop"), width)


def test_restarts_are_listed_with_their_reasons(paths: RunPaths) -> None:
    run = snapshot(Status.SUCCEEDED)
    text = plain_text(closing_panel(run, paths), 100)
    assert "attempt   2 of 4" in text
    assert "restarts  attempt 2 from step 1,200: worker:1: killed by SIGKILL" in text


def test_only_the_last_of_many_restarts_are_listed() -> None:
    run = snapshot()
    run.restarts = [KILLED | {"attempt": number} for number in range(2, 40)]
    facts = dict(history.list_facts(run))
    assert facts["attempt"] == "39 of 4"
    assert facts["restarts"].splitlines()[0] == "… 28 earlier restarts"
    assert len(facts["restarts"].splitlines()) == 11


def test_a_failure_is_explained_until_the_run_has_recovered(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(paths.root)
    assert "root cause" not in shown(snapshot(Status.RUNNING), paths)
    assert "root cause" not in shown(snapshot(Status.SUCCEEDED), paths)
    assert root_cause_panel(snapshot(Status.SUCCEEDED), paths) is None
    failed = shown(snapshot(Status.FAILED), paths)
    assert "root cause: worker:1: exit code 3" in failed
    assert "→ look at train.py (`tfcluster help failures#exit`)" in failed
    assert "Not restarted: restarts are off." in failed
    assert "Not restarted" not in shown(snapshot(Status.RESTARTING), paths)


def test_a_planned_restart_does_not_show_the_cause_of_an_earlier_one(paths: RunPaths) -> None:
    run = snapshot(Status.RESTARTING)
    assert "root cause" in shown(run, paths)
    run.restarts.append(KILLED | {"attempt": 3, "planned": True, "reason": "scaling to 2 workers"})
    assert "root cause" not in shown(run, paths)


def test_cause_and_collateral_failures_are_marked() -> None:
    run = snapshot(Status.FAILED)
    cause, stopped = run.tasks[1], run.tasks[0]
    assert history.format_blame(run, cause) == " (cause)"
    assert history.format_blame(run, stopped) == ""
    assert run.diagnosis is not None
    run.diagnosis["root_cause"]["also"] = ["worker:0"]
    assert history.format_blame(run, stopped) == " (same error)"
    run.diagnosis["root_cause"]["also"] = []
    run.diagnosis["collateral"] = ["worker:0"]
    stopped.state, stopped.ended_by, stopped.exit_code = "failed", "itself", 1
    assert history.format_blame(run, stopped) == " (collateral)"
    run.status = Status.SUCCEEDED
    assert history.format_blame(run, cause) == history.format_blame(run, stopped) == ""


def test_the_log_of_the_failed_attempt_is_named() -> None:
    run = snapshot(Status.FAILED)
    assert history.log_of_cause(run) == "logs/attempt-2/worker-1.log"
    assert run.diagnosis is not None
    run.diagnosis["root_cause"]["attempt"] = 1
    assert history.log_of_cause(run) == "logs/attempt-1/worker-1.log"


def test_waits_lost_nodes_and_stopped_tasks_are_shown(paths: RunPaths) -> None:
    run = snapshot(Status.RESTARTING)
    run.waits_for, run.nodes = "the agent of local", {"local": "lost"}
    run.tasks[0].frozen_by = 19
    assert "waiting for  the agent of local" in shown(run, paths)
    assert "nodes        local is lost" in shown(run, paths)
    assert "worker:0  stopped by SIGSTOP" in shown(run, paths)
    line = format_status_line(run, now=START + 12, width=100)
    assert line == (
        "restarting 12 s · attempt 2 of 4 · waiting for the agent of local · worker:0 stopped"
    )


def test_a_lost_run_asks_for_cleanup_until_it_is_done(paths: RunPaths) -> None:
    run = snapshot(Status.LOST)
    run.ended_at = None
    assert "`tfcluster down demo-k7f3` cleans up" in shown(run, paths)
    run.ended_at = START + 5
    assert "cleans up" not in shown(run, paths)


def test_a_run_of_another_host_names_the_host(paths: RunPaths) -> None:
    run = snapshot()
    assert "running on laptop" in plain_text(
        status_panel(run, paths, now=START, this_host="gpu1"), 80
    )
    grid = runs_grid([run], now=START, this_host="gpu1")
    assert "running on laptop" in part_lines(grid, 100)[1]
    assert " on " not in part_lines(runs_grid([run], now=START, this_host="laptop"), 100)[1]


KILL = "kill worker:1 at step 50"


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        ({"restarts": [KILLED | {"task": "worker:1", "from_step": None}]},
         {"restarts": "worker:1 attempt 2: worker:1: killed by SIGKILL"}),
        ({"resumed_from": {"run": "demo-aaaa", "step": 1200, "a newer": "key"}},
         {"resumed": "demo-aaaa at step 1,200"}),
        ({"resumed_from": {"run": "demo-aaaa", "step": None}}, {"resumed": "demo-aaaa"}),
        ({"chaos": [{"fault": KILL}]}, {"injected": f"{KILL}: never detected, not resumed"}),
        ({"chaos": [{"fault": KILL, "detected_after_s": 0.004}]},
         {"injected": f"{KILL}: detected after 4 ms, not resumed"}),
        ({"chaos": [{"fault": KILL, "detected_after_s": 0.2, "resumed_after_s": 2.31,
                     "resumed_step": 41}]},
         {"injected": f"{KILL}: detected after 0.2 s, resumed after 2.3 s at step 41"}),
    ],
)  # fmt: skip
def test_what_has_happened_to_a_run_is_listed(facts: dict[str, Any], shown: dict[str, str]) -> None:
    run = replace(snapshot(), **{"restarts": [], **facts})
    assert dict(history.list_facts(run)) == shown
    assert "attempt" not in format_status_line(run, now=START, width=100)


def test_the_summary_says_where_the_time_went_and_what_a_restart_cost(paths: RunPaths) -> None:
    spent = {"start": 11.251, "steps": 14.804, "restart": 1.467, "restore": 1.42}
    spent |= {"repeated": 2.023, "other": 4.96, "gathering": 0.067, "stalled": 0.03}
    known = Goodput(since=50.0, until=50.0, counted=spent, step=500, restarts=1, lost_steps=60)
    run = replace(snapshot(Status.SUCCEEDED), goodput=known)
    shown = plain_text(closing_panel(run, paths), 100)
    assert unprinted("guides/goodput.md", "41.1%", shown) == []
    assert "stalled" not in shown, "less than a thousandth of the time"
    assert "goodput" not in dict(history.list_facts(run, has_timeline=True))
    for unknown in (None, Goodput(since=50.0, until=60.0)):
        assert "goodput" not in dict(history.list_facts(replace(run, goodput=unknown)))


@pytest.mark.parametrize(
    ("lost", "doing", "said"),
    [(0, "steps", "; no step lost"), (60, "steps", "; 60 steps lost"), (0, "restore", "")],
)
def test_the_cost_of_restarts_includes_the_lost_steps(lost: int, doing: str, said: str) -> None:
    known = Goodput(
        since=50.0, until=50.0, counted={"restart": 2.0}, step=9, restarts=1, lost_steps=lost,
        doing=doing,
    )  # fmt: skip
    shown = history.format_goodput(known).splitlines()[1]
    assert shown == f"a restart cost 2.0 s on average: 2.0 s until the processes ran{said}"


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([500], "no step"),
        ([500, 400], "no step"),
        ([400], "100 steps since the newest checkpoint"),
        ([400, None], None),
        ([], "500 steps unless they are saved elsewhere: no checkpoint was gathered"),
    ],
)
def test_a_stopped_run_says_how_many_steps_are_lost(steps: list[int | None], said: str) -> None:
    run = snapshot(Status.INTERRUPTED)
    run.goodput = Goodput(since=50.0, until=50.0, step=500)
    run.checkpoints = [{"path": "checkpoints/backup", "step": step} for step in steps]
    assert dict(history.list_facts(run)).get("lost") == said
    assert "lost" not in dict(history.list_facts(replace(run, status=Status.RUNNING)))


def test_a_verdict_on_the_steps_is_no_reason_while_no_steps_are_taken() -> None:
    run = snapshot()
    run.diagnosis = None
    run.step_verdict = {"bound": "input", "message": "input-bound: worker:1 waits"}
    assert history.slowing_verdict(run) == run.step_verdict
    for status in (Status.STALLED, Status.SUSPENDED, Status.SUCCEEDED):
        assert history.slowing_verdict(replace(run, status=status)) is None
