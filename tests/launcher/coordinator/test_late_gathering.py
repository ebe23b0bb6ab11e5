"""What a run has left is gathered after its end, once, and nothing while it goes on."""

from __future__ import annotations

import pytest
from tests.launcher.checkpoints.files import write_prefix
from tests.launcher.conftest import plan_of

from tfcluster.coordinator import resume
from tfcluster.coordinator.late_gathering import gather_left
from tfcluster.errors import SetupError
from tfcluster.rundir import registry, run_writer
from tfcluster.rundir.figures import state_json
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status
from tfcluster.typed_json import to_json


@pytest.fixture
def said(paths: RunPaths) -> list[str]:
    """Return the list of what `gather_left` says, after the chief of a run has saved ``ckpt-7``."""
    run_writer.require_json(paths.plan, to_json(plan_of()))
    write_prefix(paths.task_checkpoints(plan_of().chief), "ckpt-7")
    return []


def record(paths: RunPaths, state: RunSnapshot, **facts: object) -> None:
    for name, value in facts.items():
        setattr(state, name, value)
    run_writer.require_json(paths.state, state_json(state))


def test_what_a_run_has_missed_is_gathered_once(
    paths: RunPaths, state: RunSnapshot, said: list[str]
) -> None:
    record(paths, state, status=Status.INTERRUPTED, exit_code=143, missed="gathering was stopped")

    assert gather_left(paths, said.append)
    assert said == [f"gathered ckpt-7, which {paths.run_id} had left"]
    now = registry.load_recorded(paths)
    assert now.missed is None
    assert [held["path"] for held in now.checkpoints] == ["checkpoints/ckpt-7/ckpt-7"]
    assert gather_left(paths, said.append)
    assert len(said) == 1


def test_nothing_is_gathered_from_a_run_that_goes_on_or_has_missed_nothing(
    paths: RunPaths, state: RunSnapshot, said: list[str]
) -> None:
    for facts in ({"status": Status.RUNNING}, {"status": Status.SUCCEEDED, "exit_code": 0}):
        record(paths, state, **facts)
        assert gather_left(paths, said.append)
    assert said == []
    assert not paths.checkpoints.exists() or not any(paths.checkpoints.iterdir())


def test_a_run_whose_plan_is_damaged_keeps_its_reason_and_says_why(
    paths: RunPaths, state: RunSnapshot, said: list[str]
) -> None:
    record(paths, state, status=Status.INTERRUPTED, exit_code=143, missed="gathering was stopped")
    paths.plan.write_text("{")

    assert not gather_left(paths, said.append)
    assert said[0].startswith(f"the last checkpoints of {paths.run_id} cannot be gathered: ")
    assert registry.load_recorded(paths).missed == "gathering was stopped"


def test_a_restart_does_not_take_an_older_checkpoint_where_the_newest_is_missed(
    paths: RunPaths, state: RunSnapshot, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFCLUSTER_HOME", str(paths.root.parents[1]))
    record(paths, state, status=Status.INTERRUPTED, exit_code=143, missed="gathering was stopped")
    paths.plan.write_text("{")

    with pytest.raises(SetupError, match=r"newest files of .+ could not be gathered"):
        resume.find(paths.run_id, said.append, takes_older=False)
    with pytest.raises(resume.NoCheckpointError):
        resume.find(paths.run_id, said.append)
