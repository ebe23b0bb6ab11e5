"""When a run that takes no step is stalled, and when one that reports none gets a hint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.launcher.conftest import plan_of
from tests.launcher.supervision.story import IN_FIT, Replay, frame, replay_of, stack

from tfcluster.agent import catalogue as msg
from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision import decisions as do
from tfcluster.supervision.endings import STACKS_WAIT_S
from tfcluster.supervision.silence import BUSY, ENDING_S, HINT_S, STALLED_S


def training(*, step_s: float = 0.1, kind: str = "training") -> Replay:
    """Return a run whose tasks have joined and taken steps of this time."""
    replay = replay_of(kind=kind).joined()
    for step in range(1, 11):
        replay.says("worker:0", "progress", step=step).says("worker:1", "progress", step=step)
        replay.after(step_s)
    return replay


def stalls_of(replay: Replay) -> int:
    return len(replay.all(ev.Stalled))


def test_a_run_is_stalled_after_ten_seconds_without_a_step() -> None:
    replay = training()
    replay.stacks["worker:1"] = stack("/home/me/hang.py:12 time.sleep(9)")
    replay.after(STALLED_S - 0.2)
    assert stalls_of(replay) == 0
    replay.after(0.2)
    stalled = replay.last(ev.Stalled)
    assert (stalled.silent_s, stalled.causes) == (STALLED_S, ("worker:1",))
    assert stalled.what == (
        "worker:1 is in hang.py:12 `time.sleep`; worker:0 waits for it in an all-reduce"
    )
    assert stalled.tasks["worker:0"] == "waits in an all-reduce"


def test_the_stacks_are_taken_once_and_the_run_goes_on() -> None:
    replay = training().after(3000)
    assert stalls_of(replay) == 1
    assert [type(order) for order in replay.orders] == [do.AskForStacks]
    assert replay.supervisor.outcome is None


@pytest.mark.parametrize("kind", ["progress", "alive", "evaluated", "saved"])
def test_the_next_sign_of_work_ends_a_stall(kind: str) -> None:
    facts: dict[str, dict[str, object]] = {
        "progress": {"step": 11},
        "evaluated": {"step": 10},
        "saved": {"path": "/c/ckpt-1"},
    }
    replay = training().after(30).says("worker:1", kind, **facts.get(kind, {}))
    assert replay.last(ev.StallEnded).silent_s == pytest.approx(30.1)
    replay.after(STALLED_S - 0.1)
    assert stalls_of(replay) == 1
    replay.after(300)
    assert stalls_of(replay) == 2


def reports_steps(*steps: int, of: int, every_s: float) -> Replay:
    replay = replay_of()
    for step in steps:
        replay.says("worker:0", "progress", step=step, steps_per_execution=of).after(every_s)
    return replay


@pytest.mark.parametrize(
    ("replay", "patience_s"),
    [
        (training(step_s=8), 72),
        (reports_steps(100, 200, 300, of=100, every_s=4), 36),
        (training().after(9).says("worker:0", "progress", step=11), 27),
        (replay_of().after(20).says("worker:0", "progress", step=1), 60),
        (training(step_s=0.1).says("worker:0", "progress", step=1), STALLED_S),
    ],
    ids=["long steps", "several steps in one call", "a pause", "a first step", "a second training"],
)
def test_a_run_may_be_silent_for_longer_where_it_was_so_before(
    replay: Replay, patience_s: float
) -> None:
    assert stalls_of(replay.after(patience_s - 1)) == 0
    assert stalls_of(replay.after(2)) == 1


def test_a_run_that_reports_no_step_is_never_stalled() -> None:
    replay = replay_of().joined("worker:0").after(290)
    assert stalls_of(replay) == 0


def test_a_task_that_traces_a_function_is_at_work() -> None:
    replay = training()
    traced = "/site-packages/tensorflow/python/framework/func_graph.py:77"
    replay.stacks["worker:1"] = stack(traced, "/home/me/train.py:20 model.evaluate(test)")
    replay.after(STALLED_S + 1)
    assert stalls_of(replay) == 0
    replay.stacks["worker:1"] = IN_FIT
    replay.after(STALLED_S)
    assert stalls_of(replay) == 1


@pytest.mark.parametrize(("is_in_fit", "step"), [(True, 11), (False, 11), (True, 20)])
def test_a_task_that_left_its_script_is_to_blame_for_one_that_waits_in_fit(
    is_in_fit: bool, step: int
) -> None:
    """On JAX it does not end: at its exit it waits for the others, for five minutes."""
    replay = training()
    replay.says("worker:0", "progress", step=11, total_steps=20)
    replay.says("worker:1", "progress", step=step, total_steps=20)
    trainer = "/site-packages/keras/src/backend/jax/trainer.py"
    function = "fit" if is_in_fit else "predict"
    inside = msg.Frame(file=trainer, line=420, function=function, code="")
    replay.stacks["worker:0"] = [msg.Thread(frames=[inside, frame("/home/me/train.py:20 f(x)")])]
    replay.stacks["worker:1"] = stack("/site-packages/jax/_src/api.py:9")
    replay.after(ENDING_S + 1)
    assert replay.last(ev.Stalled).causes == ("worker:1",)
    if not is_in_fit or step == 20:
        assert replay.after(600).stopped() == [], "it may compute something by itself"
        return
    assert replay.stopped() == ["worker:0", "worker:1"]
    replay.ended("worker:0", "worker:1").gather()
    assert replay.outcome() == (Status.FAILED, 1)
    assert (replay.cause()["task"], replay.cause()["reason"]) == (
        "worker:1",
        "stopped training at step 11 of 20 and left its script; worker:0 waited for it"
        " (train.py:20 `f`)",
    )


def test_a_task_that_hangs_at_its_exit_after_an_exception_fails_with_that() -> None:
    replay = training()
    error = {"exception": "OSError", "message": "[Errno 5] Input/output error"}
    replay.says("worker:1", "doubt", about="fit", **error).says("worker:1", "task_error", **error)
    fit = msg.Frame(file="/site-packages/keras/src/trainer.py", line=1, function="fit", code="")
    inner, outer = IN_FIT[0].frames
    replay.stacks["worker:0"] = [msg.Thread(frames=[inner, fit, outer])]
    replay.stacks["worker:1"] = stack("/site-packages/mlflow/tracking/fluent.py:9")
    replay.after(ENDING_S + 1).ended("worker:0", "worker:1").gather()
    assert replay.cause()["task"] == "worker:1"
    assert replay.cause()["reason"] == "OSError: [Errno 5] Input/output error"


def test_a_task_that_has_left_its_script_may_take_a_while_to_exit() -> None:
    """On a busy machine, the threads of tf.data take more than ten seconds to end."""
    replay = training()
    waits = stack(
        "/lib/python3.11/threading.py:1139", "/tfcluster_workers/hooks/iterator_ends.py:8"
    )
    replay.stacks = {"worker:0": waits, "worker:1": waits}
    replay.after(ENDING_S - 1)
    assert stalls_of(replay) == 0
    what = replay.after(2).last(ev.Stalled).what
    assert what == "worker:0, worker:1 have left their scripts and exit"


def test_a_step_may_take_longer_on_a_node_with_too_much_work() -> None:
    """With ten processes for each core, an evaluation took more than ten seconds to begin."""
    replay = training()
    replay.load = 3 * BUSY
    assert stalls_of(replay.after(3 * STALLED_S - 1)) == 0
    assert replay.after(2).last(ev.Stalled).silent_s == 3 * STALLED_S
    assert len(replay.orders) == 2, "the stacks are taken again"


def test_a_chief_that_is_left_alone_may_evaluate_and_export_in_silence() -> None:
    replay = training().exits("worker:1").after(ENDING_S - 1)
    assert stalls_of(replay) == 0
    what = replay.after(2).last(ev.Stalled).what
    assert what == "worker:1 has ended; worker:0 waits in an all-reduce"


def test_a_step_that_comes_before_the_stacks_prevents_the_stall() -> None:
    replay = training()
    replay.stacks["worker:1"] = None
    replay.after(STALLED_S).says("worker:0", "progress", step=11).after(STACKS_WAIT_S)
    assert stalls_of(replay) == 0


def test_a_task_that_does_not_answer_is_waited_for_only_shortly() -> None:
    replay = training()
    replay.stacks["worker:1"] = None
    replay.after(STALLED_S + STACKS_WAIT_S - 0.2)
    assert stalls_of(replay) == 0
    replay.after(0.3)
    assert "worker:1 does not answer" in replay.last(ev.Stalled).what


def test_a_stopped_task_is_named_with_its_signal() -> None:
    replay = training().after(5).froze("worker:1").after(STALLED_S - 5)
    assert replay.last(ev.Stalled).what.startswith("worker:1 was stopped by SIGSTOP")


def test_a_run_that_is_stopped_is_not_stalled_any_more() -> None:
    replay = training().after(20).stop()
    replay.says("worker:0", "progress", step=11)  # a task that ends sends its last step
    replay.after(300)
    assert stalls_of(replay) == 1
    assert not any(isinstance(event, ev.StallEnded) for event in replay.events)


def test_stacks_are_no_output_of_a_task() -> None:
    """They are written to its log."""
    replay = training(kind="plain")
    silence, now = replay.supervisor.silence, replay.now
    replay.supervisor.stacks_asked(now - 5, now)
    for written in (now + 0.3, now - 0.002):
        silence.note_output(written)
        assert silence.written_at == now - 5
    silence.note_output(now + STACKS_WAIT_S + 1)
    assert silence.written_at == now + STACKS_WAIT_S + 1


def test_stacks_that_were_asked_for_before_the_end_do_not_end_it() -> None:
    """The chief ends with 0 before all have answered; the other has `finish_grace_s` to follow."""
    replay = training()
    replay.stacks["worker:0"] = None
    replay.after(STALLED_S).exits("worker:0").after(30)
    assert replay.stopped() == []
    replay.exits("worker:1")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


def test_a_run_that_is_ended_while_it_stalls_says_so() -> None:
    replay = training()
    replay.stacks["worker:1"] = stack("/home/me/hang.py:12 time.sleep(9)")
    replay.after(60).stop().ended("worker:0", "worker:1")
    outcome = replay.end()
    reason = (
        "it had taken no step for 60 s: worker:1 is in hang.py:12 `time.sleep`; worker:0 waits for"
        " it in an all-reduce"
    )
    assert outcome.event() == ev.RunFinished(
        status=Status.INTERRUPTED, exit_code=130, reason=reason, hint=None
    )


def test_a_deadline_that_passes_while_the_run_stalls_says_so() -> None:
    replay = replay_of(run_deadline_s=100)
    for task in ("worker:0", "worker:1"):
        replay.says(task, "task_ready").says(task, "progress", step=1)
    replay.after(110)
    outcome = replay.supervisor.end.ending
    assert outcome is not None
    assert outcome.error is not None
    assert "run_deadline_s = 100 s; it had taken no step for 100 s: " in outcome.error.message


def test_tasks_that_form_no_cluster_stall_too() -> None:
    replay = training(kind="plain").after(20)
    assert replay.last(ev.Stalled).causes == ()
    replay.exits("worker:0").exits("worker:1")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


@pytest.mark.parametrize("kind", ["training", "plain"])
def test_a_script_that_reports_nothing_gets_one_hint(kind: str) -> None:
    replay = replay_of(kind=kind).after(HINT_S - 1)
    assert replay.messages(ev.Hint) == []
    replay.after(1)
    (hint,) = replay.messages(ev.Hint)
    assert "reporting.progress(step, total=" in hint
    assert replay.after(3600).messages(ev.Hint) == [hint]


@pytest.mark.parametrize(
    ("report", "facts"),
    [
        ("progress", {"step": 1}),
        ("alive", {}),
        ("evaluated", {"step": 1}),
        ("saved", {"path": "x"}),
    ],
)
def test_any_work_that_one_task_reports_is_enough(report: str, facts: dict[str, Any]) -> None:
    replay = replay_of().says("worker:1", report, **facts).after(3600)
    assert replay.messages(ev.Hint) == []


@pytest.mark.parametrize(
    ("begins", "ends"),
    [
        (("waiting_for_peers", {}), ("task_ready", {})),
        (("task_phase", {"name": "importing TensorFlow"}), ("task_phase", {"name": ""})),
    ],
)
def test_neither_the_wait_for_peers_nor_the_import_of_tensorflow_counts(
    begins: tuple[str, dict[str, Any]], ends: tuple[str, dict[str, Any]]
) -> None:
    replay = replay_of().after(5).says("worker:0", begins[0], **begins[1]).after(200)
    assert replay.messages(ev.Hint) == []
    replay.says("worker:0", ends[0], **ends[1]).after(HINT_S - 1)
    assert replay.messages(ev.Hint) == []
    assert len(replay.after(1).messages(ev.Hint)) == 1


def test_a_child_without_hooks_is_named_with_its_command() -> None:
    replay = (
        replay_of().says("worker:1", "trains_in_child", command="python -E fit.py").after(HINT_S)
    )
    (hint,) = replay.messages(ev.Hint)
    assert "worker:1 seems to train in a child process" in hint
    assert "`python -E fit.py`" in hint
    assert "`tfcluster run SCRIPT`" in hint


def test_tasks_without_hooks_and_searches_get_none() -> None:
    assert Replay(plan_of(hooks=False)).after(100).messages(ev.Hint) == []
    assert Replay(replace(plan_of(), kind="tuner")).after(100).messages(ev.Hint) == []
