"""The live view, and a timeline, show one line or none for each event."""

from __future__ import annotations

from typing import Any

import pytest
from tests.documentation import unprinted

from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event
from tfcluster.ui.event_lines import format_event, format_moment

W1: dict[str, Any] = {"task": "worker:1", "attempt": 1}
AGAIN: dict[str, Any] = {"reason": "worker:1: killed by SIGKILL", "attempt": 2, "of": 4}
GATHERED: dict[str, Any] = {"path": "checkpoints/ckpt-12", "kind": "tf_checkpoint"}
BACK: dict[str, Any] = {"node": "gpu3", "tasks": ["worker:2"]}
GRAPH = (
    "Graph execution error:\n\nDetected at node X defined at (most recent call last):\n"
    "<stack traces unavailable>\nno such device"
)
INTERNAL = "tensorflow.python.framework.errors_impl.InternalError"


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (ev.Progress(task="worker:0", attempt=1, step=3), None),
        (ev.PrepareFinished(node="local", exit_code=0, duration_s=2), "prepared local in 2.0 s"),
        (ev.PrepareFinished(node="local", exit_code=2, duration_s=2),
         "prepare failed on local after 2.0 s: exit 2"),
        (ev.TaskExited(task="ps:0", attempt=1, exit_code=None, signal=15, ended_by="tfcluster"),
         "ps:0 ended after 0.0 s: SIGTERM (stopped by tfcluster)"),
        (ev.TaskError(**W1, exception="ValueError", message="bad shape\nand", file="a.py", line=12),
         "worker:1 raised ValueError at a.py:12: bad shape"),
        (ev.TaskError(**W1, exception=INTERNAL, message=GRAPH),
         "worker:1 raised InternalError: no such device"),
        (ev.CheckpointGathered(**GATHERED, step=1200),
         "gathered a checkpoint of step 1,200: checkpoints/ckpt-12"),
        (ev.CheckpointGathered(**GATHERED, step=None, save=12),
         "gathered a checkpoint, save 12: checkpoints/ckpt-12"),
        (ev.LogLost(**W1, bytes=5_000_000, reason="No space left"),
         "lost 5.0 MB of worker:1's log: No space left"),
        (ev.Warned(message="mind the gap"), "mind the gap"),
        (ev.NodeBack(**BACK, joins_in_s=0.0),
         "node gpu3 is back: worker:2 can join at the next checkpoint"),
        (ev.NodeBack(**BACK, joins_in_s=300.0),
         "node gpu3 is back: worker:2 can join at the next checkpoint after 5 min 00 s"),
        (ev.NodeBack(**BACK), "node gpu3 is back: `tfcluster scale-to` can take worker:2 in again"),
        (ev.Restarting(**AGAIN, from_checkpoint="ckpt-12"),
         "attempt 2 of 4, from ckpt-12: worker:1: killed by SIGKILL"),
        (ev.Restarting(**AGAIN, from_step=1200, delay_s=2.0),
         "attempt 2 of 4, from step 1,200, in 2.0 s: worker:1: killed by SIGKILL"),
        (ev.Restarting(**AGAIN),
         "attempt 2 of 4: worker:1: killed by SIGKILL;"
         " from the beginning: no checkpoint in $TFCLUSTER_CHECKPOINT_DIR"),
        (ev.Restarting(**AGAIN | {"reason": "worker:2: exit code 3\nthe same on worker:1"},
                       from_step=5, members=("worker:0", "worker:1")),
         "attempt 2 of 4, with 2 remaining tasks, from step 5: worker:2: exit code 3"),
        (ev.Restarting(**AGAIN | {"reason": "killed by SIGKILL"}, task="worker:1", delay_s=0.5),
         "worker:1 alone: attempt 2 of 4, in 0.5 s: killed by SIGKILL"),
        (ev.Diagnosis(root_cause={"task": "worker:1"}, collateral=("worker:0", "worker:2")),
         "worker:0, worker:2 failed because of worker:1"),
        (ev.Diagnosis(root_cause={"task": "worker:1"}), None),
        (ev.Stalled(silent_s=600, what="worker:1 is in train.py:12 `time.sleep`"),
         "no step for 10 min 00 s: worker:1 is in train.py:12 `time.sleep`"
         " (the stacks are in the logs)"),
        (ev.Stalled(silent_s=61, deadline_s=60),
         "no step for 1 min 01 s (stall_deadline_s is 1 min 00 s): no task reports anything"
         " (the stacks are in the logs)"),
        (ev.Suspended(seconds=95), "the run goes on, after 1 min 35 s in which it was suspended"),
        (ev.StallEnded(silent_s=75), "the run goes on, after 1 min 15 s without a step"),
        (ev.StepVerdict(attempt=1, bound="input", message="input-bound: …"), "input-bound: …"),
        (ev.StepVerdict(attempt=1, bound="compute", message="compute-bound: …"), None),
        (ev.StepVerdict(attempt=1), None),
        (ev.TaskFrozen(**W1, signal=19),
         "worker:1 was stopped by SIGSTOP: it neither runs nor exits"),
        (ev.TaskThawed(**W1), "worker:1 runs again"),
        (ev.Finishing(tasks=["worker:1", "evaluator:0"], left_s=55),
         "the chief has finished; worker:1, evaluator:0 may run for another 55 s"
         " (supervision.finish_grace_s)"),
        (ev.NodeReconnected(node="local", pid=1, guard_pid=2), "node local is connected again"),
        (ev.ChaosInjected(fault="kill worker:1 at step 50", task="worker:1", step=50),
         "injected fault: kill worker:1 at step 50"),
    ],
)  # fmt: skip
def test_each_event_has_its_line(event: Event, expected: str | None) -> None:
    line = format_event(event.facts())
    assert (line.text if line else None) == expected


@pytest.mark.parametrize(
    ("event", "kind", "text"),
    [
        (ev.RunStarted(version="9.8.7", run="r"), "live", "the run begins with tfcluster 9.8.7"),
        (ev.TaskStarted(task="worker:0", attempt=2, node="local", pid=1), "live",
         "attempt 2: worker:0 started"),
        (ev.TaskExited(task="ps:0", attempt=1, exit_code=3), "bad", "ps:0 ended: exit 3"),
        (ev.Diagnosis(root_cause={"task": "worker:1", "reason": "it died\nmore"}), "bad",
         "root cause: worker:1: it died"),
        (ev.RunFinished(status="timed_out", exit_code=4, reason="too long"), "bad",
         "the run ended: timed out: too long"),
        (ev.RunFinished(status="succeeded", exit_code=0), "good", "the run ended: succeeded"),
        (ev.RunFinished(status="interrupted", exit_code=143), "warn",
         "the run ended: interrupted"),
        (ev.Warned(message="careful", closing=True), "warn", "careful"),
    ],
)  # fmt: skip
def test_a_timeline_has_also_what_a_live_view_shows_elsewhere(
    event: Event, kind: str, text: str
) -> None:
    line = format_moment(event.facts())
    assert line is not None
    assert (line.kind, line.text) == (kind, text)


@pytest.mark.parametrize("event", [{}, {"type": "task_exited"}, {"type": "of_the_future"}])
def test_unknown_and_malformed_events_have_no_line(event: dict[str, object]) -> None:
    assert format_event(event) is None


def test_the_guide_shows_the_lines_of_a_restart_and_of_a_gang_that_grows_again() -> None:
    restart = ev.Restarting(**AGAIN, from_step=1200, delay_s=1)
    back = ev.NodeBack(node="10.0.0.3", tasks=["worker:2"], joins_in_s=0.0)
    reason = "worker:2 is back: growing to 3 workers"
    grown = ev.Restarting(reason=reason, attempt=4, of=6, from_step=1200, counts=False)
    first, *lines = [str(format_event(event.facts())) for event in (restart, back, grown)]
    assert unprinted("guides/supervision.md", "attempt 2", first) == []
    assert unprinted("guides/supervision.md", "is back", *lines) == []
