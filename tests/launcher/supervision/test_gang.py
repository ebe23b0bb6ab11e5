"""A gang knows the grace of its tasks, and what their reports give reason to warn about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.launcher.conftest import plan_of
from tests.launcher.messages import task_report

from tfcluster.agent.catalogue import Progress, SavedModel, SettingRead, WrittenFile, Wrote
from tfcluster.plans.keras_settings import settings_json
from tfcluster.plans.plan import EnvVar
from tfcluster.rundir.events import RunStopping, TaskExited
from tfcluster.rundir.states import Status
from tfcluster.spec.model import ClusterSpec
from tfcluster.supervision.decisions import Outcome, Record, StopTasks
from tfcluster.supervision.gang import Gang, SharedFiles
from tfcluster.supervision.supervisor import Supervisor

SAVES = {"kind": "saves_on_sigterm"}
WAITS = {"kind": "waiting_for_peers"}
READY = {"kind": "task_ready"}
PROGRESS = {"kind": "progress", "step": 1}


def started(*tasks: str, hooks: bool = True) -> Gang:
    return start_all(Gang(plan_of(*tasks, hooks=hooks)))


def start_all(gang: Gang) -> Gang:
    for member in list(gang):
        gang.put(replace(member, started_at=0.0))
    return gang


def change(gang: Gang, task: str, **facts: Any) -> None:
    gang.put(replace(gang[task], **facts))


@pytest.mark.parametrize(
    ("hooks", "reports", "most_s", "expected"),
    [
        (True, [], 30.0, 2.0),
        (True, [], 1.0, 1.0),
        (True, [SAVES], 30.0, 30.0),
        (True, [SAVES], 300.0, 300.0),
        (True, [SAVES, WAITS], 30.0, 0.0),
        (True, [WAITS, READY], 30.0, 2.0),
        (True, [WAITS, PROGRESS, SAVES], 30.0, 30.0),
        (False, [], 30.0, 10.0),
        (False, [], 5.0, 5.0),
    ],
)
def test_the_grace_of_a_task_depends_on_its_reports_and_its_hooks(
    hooks: bool, reports: list[dict[str, Any]], most_s: float, expected: float
) -> None:
    (member,) = started("worker:0", hooks=hooks)
    for report in reports:
        member = member.after(task_report(**report), 0.0)
    assert member.stop_grace_s(most_s) == expected


def test_tasks_with_the_same_grace_are_stopped_by_one_order() -> None:
    state = Supervisor(plan_of("worker:0", "worker:1", "worker:2"))
    start_all(state.gang).note_report(state.gang["worker:1"], task_report(**SAVES), 0.0)
    state.end.stop_tasks(state.gang.running(), "", 0.0, grace_s=None)
    stops = [order for order in state.end.orders if isinstance(order, StopTasks)]
    assert {stop.tasks: stop.grace_s for stop in stops} == {
        ("worker:0", "worker:2"): 2.0,
        ("worker:1",): 30.0,
    }
    state.end.orders.clear()
    state.end.stop_tasks(state.gang.running(), "", 0.0, grace_s=0.0)
    (at_once,) = [order for order in state.end.orders if isinstance(order, StopTasks)]
    assert (at_once.grace_s, len(at_once.tasks)) == (0.0, 3)


@pytest.mark.parametrize(("is_started", "longest_s"), [(True, 30.0), (False, 0.0)])
def test_the_longest_grace_of_the_running_tasks_is_announced(
    is_started: bool, longest_s: float
) -> None:
    state = Supervisor(plan_of("worker:0", "worker:1"))
    if is_started:
        start_all(state.gang).note_report(state.gang["worker:1"], task_report(**SAVES), 0.0)
    state.end.end_run("Ctrl-C", Outcome(Status.INTERRUPTED, 130), 0.0, grace_s=None)
    assert state.end.orders[0] == Record(RunStopping(why="Ctrl-C", grace_s=longest_s))


def exit_of(gang: Gang, task: str, *, ended_by: str = "itself", description: str = "") -> None:
    event = TaskExited(task=task, attempt=1, exit_code=1, ended_by=ended_by)
    gang.note_exit(gang[task], event, error=None, last_lines=description)


def test_the_hint_of_a_failure_considers_that_the_spec_asks_for_keras_3() -> None:
    message = "Traceback (most recent call last):\nValueError: Cannot convert '1' to a shape.\n"
    for version, is_asked in (("3", True), ("auto", False)):
        spec = ClusterSpec.model_validate(
            {"cluster": {"worker": 1}, "job": {"script": "x.py"}, "keras": {"version": version}}
        )
        settings = EnvVar("TFCLUSTER_SETTINGS", settings_json(spec), "tfcluster")
        plan = plan_of("worker:0")
        command = replace(plan.tasks[0].command, env=(settings,))
        gang = Gang(replace(plan, tasks=(replace(plan.tasks[0], command=command),)))
        exit_of(gang, "worker:0", description=message)
        (failure,) = gang.failures
        assert ((failure.hint or "").startswith("the spec asks for Keras 3")) is is_asked


def test_a_gang_that_ran_before_a_restart_counts_as_started() -> None:
    """A run that is stopped while checkpoints are restored would otherwise not copy its outputs."""
    gang = started("worker:0", "worker:1")
    gang.enlist([member.id for member in gang], 2)
    assert gang.has_started


TASKS = [f"worker:{index}" for index in range(12)]


def wrote(*paths: str, host: str = "a") -> Wrote:
    return Wrote(files=[WrittenFile(path=path, file=f"{host}:{path}") for path in paths])


def files_warning(reports: Sequence[tuple[str, Wrote]]) -> str | None:
    """Return the warning of a run whose tasks have sent these reports."""
    gang = Gang(replace(plan_of(*TASKS), workdir="/w"))
    for task, report in reports:
        gang.note_report(gang[task], report, 0.0)
    return gang.shared_files.warning()


def test_files_of_one_task_each_are_not_warned_about() -> None:
    assert files_warning([]) is None
    assert files_warning([("worker:0", wrote("/w/a", "/w/a")), ("worker:1", wrote("/w/b"))]) is None


def test_one_path_on_two_machines_is_two_files() -> None:
    assert files_warning([("worker:0", wrote("/a")), ("worker:1", wrote("/a", host="b"))]) is None


def test_the_warning_names_the_first_files_with_their_tasks() -> None:
    reports = [(task, wrote("/w/pred.npy")) for task in reversed(TASKS)]
    others = wrote("/elsewhere/b", "/c", "/d", "/e")
    reports += [(task, others) for task in ("worker:10", "worker:2")]
    assert files_warning(reports) == (
        "two tasks wrote the same file, which now holds what one of them wrote last, or a mix:"
        " pred.npy (worker:0, worker:1 and 10 more), /elsewhere/b (worker:2, worker:10),"
        " /c (worker:2, worker:10) and 2 more. Write it in the first worker only, or below"
        " $TFCLUSTER_CHECKPOINT_DIR, which each task has for itself"
    )


def test_a_folder_that_all_tasks_share_is_no_fix() -> None:
    files = SharedFiles("/w", "/w/checkpoints")
    for task in ("worker:0", "worker:1"):
        files.note(task, 1, wrote("/w/checkpoints/a").files)
    found = files.warning()
    assert found is not None
    assert found.endswith("in the first worker only, or under a name that contains $TFCLUSTER_TASK")


def test_a_restart_may_write_what_an_earlier_attempt_wrote() -> None:
    files = SharedFiles("/w", None)
    files.note("worker:0", 1, wrote("/w/a").files)
    files.note("worker:1", 2, wrote("/w/a").files)
    assert files.warning() is None
    files.note("worker:0", 2, wrote("/w/a").files)
    found = files.warning()
    assert found is not None
    assert "a (worker:0, worker:1)" in found


def test_a_model_of_the_chief_that_is_gone_when_all_tasks_have_ended_is_warned_about() -> None:
    gang = Gang(replace(plan_of(*TASKS), workdir="/w"))
    gang.note_report(gang["worker:1"], SavedModel(path="/w/own"), 0.0)
    assert gang.lost_model(lambda path: False) is None
    gang.note_report(gang["worker:0"], SavedModel(path="/w/export/model"), 0.0)
    assert gang.lost_model(lambda path: path == "/w/export/model") is None
    assert gang.lost_model(lambda path: False) == (
        "export/model, saved by worker:0, no longer exists: another task may have removed it, or a"
        " folder above it"
    )


def settings_warning(settings: dict[str, object], *read: str) -> str | None:
    """Return the warning of a run whose task has trained and has read the settings `read`."""
    gang = Gang(replace(plan_of("worker:0"), settings=settings))
    gang.note_report(gang["worker:0"], Progress(step=1), 0.0)
    for name in read:
        gang.note_report(gang["worker:0"], SettingRead(name=name), 0.0)
    return gang.unread_settings()


def test_settings_that_a_task_has_read_are_not_warned_about() -> None:
    assert settings_warning({"communication": "RING"}, "communication", "communication") is None


def test_unread_settings_share_one_warning_that_names_each_fix_once() -> None:
    settings: dict[str, object] = {
        "communication": "RING",
        "bytes_per_pack": 1024,
        "precision": "mixed_bfloat16",
    }
    assert settings_warning(settings, "bytes_per_pack") == (
        "no task has read strategy.communication = RING, keras.precision = mixed_bfloat16: it had "
        "no effect. The script must call tfcluster_workers.strategy.make() for its strategy and "
        "tfcluster_workers.keras_choice.apply_precision(keras)"
    )


def test_an_unknown_setting_is_named_as_is() -> None:
    assert settings_warning({"jit": True}) == "no task has read jit = True: it had no effect"
