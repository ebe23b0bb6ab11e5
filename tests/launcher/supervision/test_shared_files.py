"""Files that two tasks of one attempt wrote lead to a warning, as does a model that is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.launcher.conftest import plan_of

from tfcluster.agent.catalogue import SavedModel, WrittenFile, Wrote
from tfcluster.supervision.gang import Gang, SharedFiles

TASKS = [f"worker:{index}" for index in range(12)]


def wrote(*paths: str, host: str = "a") -> Wrote:
    return Wrote(files=[WrittenFile(path=path, file=f"{host}:{path}") for path in paths])


def warning(reports: Sequence[tuple[str, Wrote]]) -> str | None:
    """Return the warning of a run whose tasks have sent these reports."""
    gang = Gang(replace(plan_of(*TASKS), workdir="/w"))
    for task, report in reports:
        gang.note_report(gang[task], report, 0.0)
    return gang.shared_files.warning()


def test_files_of_one_task_each_are_not_warned_about() -> None:
    assert warning([]) is None
    assert warning([("worker:0", wrote("/w/a", "/w/a")), ("worker:1", wrote("/w/b"))]) is None


def test_one_path_on_two_machines_is_two_files() -> None:
    assert warning([("worker:0", wrote("/a")), ("worker:1", wrote("/a", host="b"))]) is None


def test_the_warning_names_the_first_files_with_their_tasks() -> None:
    reports = [(task, wrote("/w/pred.npy")) for task in reversed(TASKS)]
    others = wrote("/elsewhere/b", "/c", "/d", "/e")
    reports += [(task, others) for task in ("worker:10", "worker:2")]
    assert warning(reports) == (
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
