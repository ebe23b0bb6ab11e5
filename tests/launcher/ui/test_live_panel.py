"""The live view is readable from 60 to 200 columns; ``golden/`` holds it as text.

After an intended change, run with ``TFCLUSTER_WRITE_GOLDEN=1`` and review the difference.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.documentation import unprinted

from tfcluster.rundir.snapshot import TaskSnapshot
from tfcluster.rundir.states import Status
from tfcluster.ui.follow import Leaving
from tfcluster.ui.live_panel import choose_tasks, draw_frame

from .frames import START, frame_of, run_of, scene_of, worker

GOLDEN = Path(__file__).parent / "golden"
SAMPLES = [1000.0 + 20 * (n % 9) for n in range(30)]


def workers(count: int, **more: Any) -> list[TaskSnapshot]:
    return [worker(index, **more) for index in range(count)]


@pytest.mark.parametrize("columns", [60, 80, 100, 140, 200])
def test_a_training_reads_well_at_every_width(columns: int) -> None:
    shown = ""
    for count in (1, 2, 4, 64):
        run = run_of(*workers(count), warnings=["one", "the evaluator\nis late"])
        run.checkpoints = [{"path": "checkpoints/ckpt-3", "step": 1000, "kind": "tf_checkpoint"}]
        scene = scene_of(run, samples=SAMPLES)
        lines = frame_of(scene, columns, last_line="Epoch 4/10 and the line goes on for a while")
        shown += "\n".join(lines) + "\n\n"
    golden = GOLDEN / f"frames-{columns}.txt"
    if os.environ.get("TFCLUSTER_WRITE_GOLDEN"):
        golden.write_text(shown)
    assert shown == golden.read_text()


def test_the_page_shows_a_frame_as_it_is() -> None:
    tasks = workers(4, step=104, epoch=3, total_steps=400, examples_per_second=705.2)
    tasks[3].step = 93
    scene = scene_of(run_of(*tasks), samples=SAMPLES[:9])
    leaving = Leaving(lambda: None, "stop the run", "ends the run")
    frame = frame_of(scene, 79, last_line="step 80: loss 1.4950")
    printed = "\n".join([*frame, *leaving.lines(with_keys=False)])
    assert unprinted("guides/live-view.md", "worker:3  running", printed) == []


@pytest.mark.parametrize("columns", [60, 80, 100, 140, 200])
@pytest.mark.parametrize("rows", [6, 9, 12, 40])
def test_a_frame_never_exceeds_its_room(columns: int, rows: int) -> None:
    odd = {"\u202e\x1b[2J" + "损" * 10_000: 1e300, "x" * 10_000: float("nan"), "loss": -1e-300}
    many = workers(64, metrics=odd, state="failed", rss_bytes=10**15, step=10**12)
    many[3].task, many[4].phase = "\x1b]0;x\x07" * 90, "\u202e\n" * 90
    run = run_of(*many, warnings=["\x1b[2J" + "警告" * 300] * 90, waits_for="字" * 300)
    run.name, run.host = "שלום\u202e" * 60, "\x07" * 300
    run.gathering = {"what": "\n\n\x1b[31m", "node": "n" * 300}
    lines = frame_of(scene_of(run, samples=[1e300, 0.0, -1.0]), columns, rows, "مرحبا\x1b[2J" * 99)
    assert all(character.isprintable() for line in lines for character in line)
    assert any("loss" in line for line in lines)


def test_the_loss_is_first_and_stays_at_any_width() -> None:
    run = run_of(worker(0, metrics={"val_loss": 0.4, "a" * 80: 1.0, "accuracy": 0.9, "loss": 0.3}))
    for columns in (10, 20, 40, 60, 200):
        line = draw_frame(scene_of(run), columns, 12, lambda task: "")[1]
        assert line.plain.startswith("loss 0.3")
    assert "val_loss 0.4" in frame_of(scene_of(run), 120)[1]


def test_before_the_first_step_each_task_shows_its_phase() -> None:
    quiet: dict[str, Any] = {"step": None, "epoch": None, "metrics": {}, "state": "starting"}
    run = run_of(
        worker(0, **quiet, phase="waiting for peers"),
        worker(1, **quiet, phase="importing TensorFlow"),
    )
    lines = frame_of(scene_of(run), 80, last_line="a line")
    assert lines[2].endswith("waiting for peers")
    assert lines[3].endswith("importing TensorFlow")
    assert len(lines) == 4


def test_of_many_tasks_the_first_the_troubled_and_the_slowest_are_shown() -> None:
    tasks = workers(64, step=1000)
    tasks[40].step, tasks[50].state = 3, "lost"
    shown = [task.task for task in choose_tasks(run_of(*tasks), 4)]
    assert shown == ["worker:0", "worker:40", "worker:50"]
    lines = frame_of(scene_of(run_of(*tasks)), 80, rows=10)
    assert lines[-1] == "and 59 more: 59 running, step 1,000"


def test_parameter_servers_and_the_evaluator_do_not_lead() -> None:
    server = worker(0, step=None, metrics={}, examples_per_second=None)
    server.task = "ps:0"
    evaluator = worker(0, step=9000, metrics={"loss": 0.9})
    evaluator.task = "evaluator:0"
    lines = frame_of(scene_of(run_of(worker(0, step=500), server, evaluator)), 100)
    assert lines[1].startswith("loss 0.3141")
    assert any("step 500 of 4,000" in line for line in lines)
    assert any(line.startswith("evaluator:0") and line.endswith("loss 0.9") for line in lines)
    assert any(line.startswith("ps:0") for line in lines)


TRIALS: dict[str, Any] = {
    "trials": [
        {"id": "03", "status": "COMPLETED", "objective": "val_loss", "score": 0.25},
        {"id": "04", "status": "RUNNING"},
    ],
    "best_trial": "03",
}
PAUSED: dict[str, Any] = {"waits_for": "a pause of 2 s before attempt 2"}


@pytest.mark.parametrize(
    ("tasks", "run", "shown"),
    [
        ([{"step": 120, "total_steps": None, "epochs": None, "epoch": None}], {},
         ["step 120, total unknown", "-ETA"]),
        ([{"step": 1000, "epoch": None}], {},
         ["━" * 9, "─" * 29 + "  25%  step 1,000 of 4,000  ETA 1 min 15 s"]),
        ([{}], {"status": Status.STOPPING, "stop_by": START + 200},
         ["stopping 3 min 12 s", "8.0 s left, Ctrl-C again kills at once"]),
        ([{"state": "waiting", "step": None}],
         {"status": Status.QUEUED, "waits_for": "nodes: Resources"},
         ["waiting for nodes: Resources"]),
        ([{}], {"status": Status.RESTARTING, "restarts": [{"attempt": 2, "of": 4}], **PAUSED},
         ["attempt 2 of 4", "waiting for a pause of 2 s before attempt 2"]),
        ([{"frozen_by": 19}, {"state": "failed", "ended_at": START + 9, "exit_code": 3}], {},
         ["stopped by SIGSTOP", "exit 3", "-a line"]),
        ([{}], TRIALS, ["trials: 1 done, 1 running, best is 03 with val_loss 0.25"]),
        ([{}, {"node": "gpu1"}], {}, ["this machine, gpu1"]),
    ],
    ids=range(8),
)  # fmt: skip
def test_a_frame_says_what_a_run_does_or_waits_for(
    tasks: list[dict[str, Any]], run: dict[str, Any], shown: list[str]
) -> None:
    made = run_of(*(worker(index) for index in range(len(tasks))), **run)
    for task, facts in zip(made.tasks, tasks, strict=True):
        for name, value in facts.items():
            setattr(task, name, value)
    text = "\n".join(frame_of(scene_of(made), 100, last_line="a line"))
    for part in shown:
        assert (part.removeprefix("-") in text) is not part.startswith("-"), text
