"""`down`, `wait`, `rm` and `prune` on ended, lost and live runs; no process is started."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tests.launcher.conftest import MakeRun, plan_of

from tfcluster.cli.main import cli
from tfcluster.errors import NodeLostError, TfclusterError
from tfcluster.rundir import registry, run_writer
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import this_process
from tfcluster.rundir.states import Status
from tfcluster.typed_json import to_json

DAY_S = 86400.0
RUNNING = Status.RUNNING


def run(command: str, *args: str, answer: str | None = None) -> tuple[int, str, str]:
    """Run a command; return its exit code (or its error's), stdout, and stderr (or the error)."""
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    done = CliRunner().invoke(found, args, input=answer, standalone_mode=False)
    if isinstance(done.exception, TfclusterError):
        return done.exception.exit_code, done.stdout, str(done.exception)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return 1, done.stdout, type(done.exception).__name__
    code = done.return_value
    return code if isinstance(code, int) else 0, done.stdout, done.stderr


@pytest.fixture
def lost(make_run: MakeRun) -> RunPaths:
    gone = subprocess.Popen(["true"])
    gone.wait()
    return make_run("lost", status=RUNNING, pid=gone.pid)


@pytest.mark.parametrize(
    ("status", "code"), [("succeeded", 0), ("failed", 1), ("interrupted", 130)]
)
def test_wait_returns_the_exit_code_of_an_ended_run_and_down_says_how_it_ended(
    make_run: MakeRun, status: str, code: int
) -> None:
    paths = make_run(status=Status(status), exit_code=code)
    assert run("wait", paths.run_id)[0] == code
    out = run("wait", "--json", paths.run_id)[1]
    assert json.loads(out) == {"run": paths.run_id, "status": status, "exit_code": code}
    said = f"{paths.run_id} had already ended: {status}\n"
    assert run("down", paths.run_id)[::2] == (0, said)


@pytest.mark.parametrize("shared", [None, "/mnt/exp7"])
def test_status_names_the_command_that_continues_a_run_with_a_shared_checkpoint_folder(
    make_run: MakeRun, shared: str | None
) -> None:
    """Nothing is gathered from that folder; without one a restart would begin anew."""
    paths = make_run(status=Status.INTERRUPTED)
    assert "continue" not in run("status", paths.run_id)[1]
    plan = plan_of()
    plan = replace(plan, checkpoints=replace(plan.checkpoints, dir=shared))
    run_writer.write_json(paths.plan, to_json(plan))
    has_command = f"tfcluster restart {paths.run_id[-4:]}" in run("status", paths.run_id)[1]
    assert has_command is bool(shared)


def test_wait_and_down_do_not_hang_on_a_lost_run(lost: RunPaths) -> None:
    code, _, message = run("wait", lost.run_id)
    assert (code, "its coordinator died" in message) == (3, True)
    code, out, message = run("down", "--json", lost.run_id)
    assert code == 0
    assert "its coordinator died" in message
    assert json.loads(out) == [{"run": lost.run_id, "status": "lost"}]


def test_down_and_wait_without_a_live_run_are_refused_except_down_all(make_run: MakeRun) -> None:
    make_run()
    assert run("down")[0] == run("wait")[0] == 2
    assert run("down", "--all", "--json")[:2] == (0, "[]\n")


def test_down_of_a_coordinator_that_does_not_listen_names_its_pid(make_run: MakeRun) -> None:
    paths = make_run(status=RUNNING)
    code, _, message = run("down", paths.run_id)
    assert code == 3
    assert f"pid {this_process().pid}" in message
    assert f"kill {this_process().pid}" in message


@pytest.fixture
def used_lost_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[RunPaths], None]:
    """Record that a run, whose coordinator died, used a docker that no longer answers."""
    client = tmp_path / "docker"
    client.write_text("#!/bin/sh\necho Cannot connect to the Docker daemon >&2\nexit 1\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def note(paths: RunPaths) -> None:
        folder = paths.root.parents[1] / "leftovers"
        folder.mkdir(exist_ok=True)
        coordinator = f"{socket.gethostname()}/{os.getuid()}/1/1"
        (folder / paths.run_id).write_text(f"docker\nDOCKER_HOST=unix:///away\n{coordinator}\n")

    return note


def test_down_all_continues_after_a_run_that_does_not_answer(
    make_run: MakeRun,
    lost: RunPaths,
    used_lost_docker: Callable[[RunPaths], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tfcluster.rundir.waiting.LISTENS_WITHIN_S", 0.0)
    silent = make_run("silent", status=RUNNING, started=time.time() - DAY_S)
    contained = make_run("contained", started=time.time() - DAY_S)
    used_lost_docker(contained)
    code, _out, message = run("down", "--all")
    assert code == 3
    assert f"the coordinator of {silent.run_id}" in message
    assert f"it may still have what belongs to {contained.run_id}" in message
    assert f"`tfcluster rm {contained.run_id}` gives up on" in message
    assert registry.load(lost).ended_at is not None, "the lost run was cleaned up"

    shutil.rmtree(silent.root)
    assert run("down", "--all")[0] == 3, "it may still be there"
    code, _, message = run("rm", contained.run_id)
    assert (code, f"what belongs to {contained.run_id}" in message) == (0, True)
    assert run("down", "--all") == (0, "", "")


def test_what_a_silent_backend_may_have_of_a_removed_run_is_kept_until_rm_gives_it_up(
    make_run: MakeRun, used_lost_docker: Callable[[RunPaths], None]
) -> None:
    paths = make_run("contained")
    used_lost_docker(paths)
    shutil.rmtree(paths.root)
    for _ in range(2):
        for arguments in (["--all"], [paths.run_id]):
            code, _, message = run("down", *arguments)
            assert code == 3, message
            assert f"`tfcluster rm {paths.run_id}` gives up on" in message
    assert f"`tfcluster rm {paths.run_id}` gives up on" in run("ps")[2]
    code, out, message = run("rm", paths.run_id, "--json")
    assert (code, json.loads(out)) == (0, [paths.run_id])
    assert f"forgot {paths.run_id}" in message
    assert run("down", "--all") == (0, "", "")
    assert run("rm", paths.run_id)[0] == 2


def test_scale_to_refuses_runs_that_have_ended_or_do_not_answer(
    make_run: MakeRun, lost: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfcluster.rundir.waiting.LISTENS_WITHIN_S", 0.0)
    ended, silent = make_run("ended"), make_run("silent", status=RUNNING)
    code, _, message = run("scale-to", "nobody", "2")
    assert (code, "no run is named 'nobody'" in message) == (2, True)
    for paths in (ended, lost):
        code, _, message = run("scale-to", paths.run_id, "2")
        assert (code, f"{paths.run_id} has ended" in message) == (2, True)
        assert f"tfcluster up SPEC --resume {paths.run_id}" in message
    code, _, message = run("scale-to", silent.run_id, "2")
    assert (code, f"the coordinator of {silent.run_id}" in message) == (3, True)


def test_scale_to_shows_the_answer_of_the_coordinator(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = make_run(status=RUNNING)
    monkeypatch.setattr(
        "tfcluster.rundir.control.scale_to", lambda path, workers: f"{workers} from now on"
    )
    code, _, message = run("scale-to", paths.run_id, "2")
    assert (code, message.strip()) == (0, f"{paths.run_id}: 2 from now on")
    code, out, _ = run("scale-to", "--json", paths.run_id, "2")
    assert json.loads(out) == {"run": paths.run_id, "workers": 2, "answer": "2 from now on"}
    state = registry.load(paths)
    state.job = {"backend": "slurm", "id": "17", "restarts": 0}
    run_writer.write_json(paths.state, state.to_json())
    code, _, message = run("scale-to", paths.run_id, "2")
    assert (code, "its coordinator runs in a job of slurm" in message) == (2, True)


def test_rm_deletes_each_run_that_it_can_once_and_nothing_beside_a_live_one(
    make_run: MakeRun, lost: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreached(paths: RunPaths, say: object) -> None:
        raise NodeLostError("far: its tasks may run until 12:00:00", fix="later")

    monkeypatch.setattr("tfcluster.coordinator.cleanup.end_on_hosts", unreached)
    over, live = make_run("over", status=Status.FAILED), make_run("live", status=RUNNING)
    code, _, message = run("rm", over.run_id, live.run_id)
    assert (code, f"{live.run_id} is live" in message) == (2, True)
    assert over.root.exists()
    code, out, message = run("rm", "--json", lost.run_id, over.run_id, over.run_id[-4:])
    assert (code, json.loads(out)) == (3, [over.run_id])
    assert "far: its tasks may run until" in message
    assert lost.root.exists()
    assert not over.root.exists()
    assert run("rm", over.run_id)[0] == 2


def test_rm_of_a_name_of_several_runs_asks_or_refuses(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = [make_run("two", started=float(at)) for at in (100, 200)]
    code, _, message = run("rm", "two")
    assert code == 2
    assert all(f"{paths.run_id}  succeeded" in message for paths in two)
    assert "delete all: tfcluster rm -y two" in message
    monkeypatch.setattr("tfcluster.ui.terminal.Terminal.can_ask", True)
    assert run("rm", "two", answer="n\n")[::2] == (1, "Abort")
    assert [paths.root.exists() for paths in two] == [True, True]
    assert run("rm", two[0].run_id)[0] == 0
    assert run("rm", "two")[0] == 0, "there is one left"
    three = [make_run("three", started=float(at)) for at in (100, 200, 300)]
    assert run("rm", "three", answer="y\n")[0] == 0
    assert not any(paths.root.exists() for paths in three)
    live = [make_run("live"), make_run("live", started=200.0, status=RUNNING)]
    assert "is live" in run("rm", "-y", "live")[2]
    assert all(paths.root.exists() for paths in live)


@pytest.fixture
def five(make_run: MakeRun) -> list[RunPaths]:
    """Return ended runs of 4 days ago to today; the oldest run of all is still live."""
    now = time.time() - 60
    ages = [make_run(f"r{age}", started=now - age * DAY_S) for age in (4, 3, 2, 1, 0)]
    make_run("live", status=RUNNING, started=now - 9 * DAY_S)
    return ages


def remaining(runs: list[RunPaths]) -> list[str]:
    return [paths.run_id.partition("-")[0] for paths in runs if paths.root.exists()]


@pytest.mark.parametrize(
    ("args", "kept"),
    [
        (["-y"], ["r4", "r3", "r2", "r1", "r0"]),
        (["-y", "--keep", "2"], ["r1", "r0"]),
        (["-y", "--keep", "0"], []),
        (["-y", "--older-than", "60h"], ["r2", "r1", "r0"]),
        (["-y", "--older-than", "1.5d", "--keep", "4"], ["r3", "r2", "r1", "r0"]),
        (["-n", "--keep", "0"], ["r4", "r3", "r2", "r1", "r0"]),
    ],
    ids=" ".join,
)
def test_prune_deletes_ended_runs_by_age_and_number(
    five: list[RunPaths], args: list[str], kept: list[str]
) -> None:
    code, out, _ = run("prune", "--json", *args)
    assert code == 0
    assert remaining(five) == kept
    if "-n" not in args:
        assert len(json.loads(out)) == 5 - len(kept)
    assert [state.name for _, state in registry.runs() if not state.status.is_final] == ["live"]


def test_prune_asks_first(five: list[RunPaths], monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, message = run("prune", "--keep", "0")
    assert (code, "`tfcluster prune -y` deletes them" in message) == (2, True)
    assert all(paths.run_id in message for paths in five)
    monkeypatch.setattr("tfcluster.ui.terminal.Terminal.can_ask", True)
    found = cli.get_command(click.Context(cli), "prune")
    assert found is not None
    asked = CliRunner().invoke(found, ["--keep", "0"], input="n\n", standalone_mode=False)
    assert type(asked.exception).__name__ == "Abort"
    assert "delete" not in asked.stderr, "before the answer nothing is deleted"
    assert all(paths.run_id in asked.stderr for paths in five)
    assert len(remaining(five)) == 5
    assert run("prune", "--keep", "0", answer="y\n")[0] == 0
    assert remaining(five) == []


@pytest.mark.parametrize("age", ["", "30", "d", "-1d", "1y", "1d1h", "nand"])
def test_an_invalid_age_is_refused(make_run: MakeRun, age: str) -> None:
    make_run()
    code, _, message = run("prune", "-y", "--older-than", age)
    assert code == 2
    assert "is not an age" in message
    assert len(registry.runs()) == 1


def test_a_run_whose_on_end_still_runs_is_kept(make_run: MakeRun) -> None:
    paths = make_run()
    run_writer.make_reserve(paths)  # its coordinator, this process, has not closed it
    code, _, message = run("rm", paths.run_id)
    assert (code, "on_end of" in message, f"pid {os.getpid()}" in message) == (2, True, True)
    assert run("prune", "--keep", "0", "-y", "--json")[1] == "[]\n"
    run_writer.release_reserve(paths)
    assert json.loads(run("rm", "--json", paths.run_id)[1]) == [paths.run_id]
