"""The commands `ps`, `status`, `logs` and `checkpoints` print run folders as text or JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from tests.launcher.conftest import Tfcluster
from tests.launcher.ui.conftest import MakeEnded

from tfcluster.checkpoints.copying import scan
from tfcluster.checkpoints.recognition import find
from tfcluster.checkpoints.store import Store
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.states import Status


def test_ps_lists_live_runs_and_with_all_every_run(
    tfcluster: Tfcluster, make_ended: MakeEnded
) -> None:
    make_ended("old", started=1.6e9)
    done = tfcluster("ps")
    assert (done.code, done.out, done.err) == (
        *(0, ""),
        "no run is live (1 run ended: `tfcluster ps -a`)\n",
    )
    assert json.loads(tfcluster("ps", "--json").out) == []
    new = make_ended("new", status=Status.RUNNING, started=1.7e9)
    rows = tfcluster("ps").out.splitlines()
    assert [line.split()[0] for line in rows] == ["RUN", new.run_id]
    known = json.loads(tfcluster("ps", "-a", "--json").out)
    assert [run["status"] for run in known] == ["succeeded", "running"]


def test_status_shows_the_latest_run_or_the_one_named(
    tfcluster: Tfcluster, make_ended: MakeEnded
) -> None:
    old, new = make_ended("old", started=1.6e9), make_ended("new", started=1.7e9)
    assert tfcluster("status").out.startswith(f"{new.run_id}\n")
    assert tfcluster("status", old.run_id[-4:]).out.startswith(f"{old.run_id}\n")
    assert json.loads(tfcluster("status", "old", "--json").out)["status"] == "succeeded"


@pytest.mark.parametrize("command", ["status", "logs", "checkpoints"])
def test_an_unknown_run_is_an_error_with_a_similar_name(
    tfcluster: Tfcluster, make_ended: MakeEnded, command: str
) -> None:
    make_ended("mnist")
    done = tfcluster(command, "mnits")
    assert (done.code, done.out) == (2, "")
    assert "did you mean mnist" in done.err


COLLAPSED = [(0, "epoch 1 (×2)"), (0, "loss 0.5"), (0, "no end"), (1, "loss 0.7")]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["--task", "worker:1"], ["worker:1 │ epoch 1", "worker:1 │ loss 0.7"]),
        (["--grep", r"loss 0\.\d"], ["worker:0 │ loss 0.5", "worker:1 │ loss 0.7"]),
        (["--tail", "1"], ["worker:0 │ no end", "worker:1 │ loss 0.7"]),
        (["--attempt", "2"], []),
        (["--collapse", "--tail", "3"], [f"worker:{n} │ {t}" for n, t in COLLAPSED]),
    ],
)
def test_logs(
    tfcluster: Tfcluster, make_ended: MakeEnded, options: list[str], shown: list[str]
) -> None:
    make_ended()
    done = tfcluster("logs", *options)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == shown


@pytest.mark.parametrize(
    ("options", "shown", "message"),
    [
        (
            [],
            ["worker:0 │ epoch 1", "worker:0 │ loss 0.5", "worker:0 │ no end", "worker:1 │ again"],
            ": attempt 1 of worker:0; attempt 2 of worker:1. --attempt N shows another",
        ),
        (["--task", "worker:1"], ["worker:1 │ again"], ": attempt 2. --attempt N shows another"),
        (["--task", "worker:0", "--tail", "1"], ["worker:0 │ no end"], ""),
        (
            ["--attempt", "1", "--task", "worker:1"],
            ["worker:1 │ epoch 1", "worker:1 │ loss 0.7"],
            "",
        ),
        (["--attempt", "2"], ["worker:1 │ again"], ""),
        (["--task", "prepare"], ["prepare │ done"], ""),
    ],
)
def test_logs_of_a_task_that_restarted_alone(
    tfcluster: Tfcluster, make_ended: MakeEnded, options: list[str], shown: list[str], message: str
) -> None:
    paths = make_ended()
    for log, text in ((paths.attempt_logs(2) / "worker-1.log", "again\n"),
                      (paths.step_log("prepare", "local"), "done\n")):  # fmt: skip
        log.parent.mkdir()
        log.write_text(text)

    done = tfcluster("logs", *options)

    assert done.code == 0
    assert done.out.splitlines() == shown
    assert done.err.strip().endswith(message) if message else done.err == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "worker1"], "'worker1' is not a task; write JOB:INDEX"),
        (["--grep", "("], "'(' is not a regular expression"),
        (["--tail", "-1"], "Invalid value for '--tail'"),
        (["--attempt", "0"], "Invalid value for '--attempt'"),
        (["--collapse", "--json"], "leave out one"),
        (["--collapse", "--time"], "leave out one"),
    ],
)
def test_bad_options_of_logs_are_reported(
    tfcluster: Tfcluster, make_ended: MakeEnded, options: list[str], message: str
) -> None:
    make_ended()
    done = tfcluster("logs", *options)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert "Traceback" not in done.err


def test_logs_of_a_live_run_are_followed_to_its_end(make_ended: MakeEnded) -> None:
    paths = make_ended(status=Status.RUNNING)
    follower = subprocess.Popen(
        [sys.executable, "-m", "tfcluster.cli.main", "logs", "-f"],
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    try:
        assert follower.stdout is not None
        first = follower.stdout.readline()
        with (paths.attempt_logs(1) / "worker-0.log").open("ab") as log:
            log.write(b", now\nlater\n")
        time.sleep(0.3)
        assert follower.poll() is None
        state = json.loads(paths.state.read_text())
        fresh = paths.state.with_name("fresh.json")
        fresh.write_text(json.dumps(state | {"status": "succeeded"}))
        fresh.replace(paths.state)
        rest, _ = follower.communicate(timeout=200)
    finally:
        follower.kill()
        follower.wait()
    lines = (first + rest).decode().splitlines()
    assert [line for line in lines if line.startswith("worker:0")] == [
        "worker:0 │ epoch 1",
        "worker:0 │ loss 0.5",
        "worker:0 │ no end, now",
        "worker:0 │ later",
    ]
    assert follower.returncode == 0


def test_logs_end_quietly_when_the_reader_exits(make_ended: MakeEnded) -> None:
    paths = make_ended()
    (paths.attempt_logs(1) / "worker-0.log").write_bytes(b"line\n" * 200_000)
    done = subprocess.run(
        f"{sys.executable} -m tfcluster.cli.main logs | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("worker:0 │ line\n", "")


@pytest.fixture
def gathered(make_ended: MakeEnded, tmp_path: Path) -> RunPaths:
    """Return a run that gathered two models."""
    paths = make_ended()
    store = Store(paths.checkpoints)
    for name in ("model-1.keras", "model-2.keras"):
        source = tmp_path / f"chief-{name}"
        source.mkdir()
        with zipfile.ZipFile(source / name, "w") as model:
            model.writestr("config.json", json.dumps({"name": name}))
        files = scan(source)
        (found,) = find(files, files)
        assert store.add(found, source, step=None)
    return paths


def test_checkpoints_are_listed_oldest_first(tfcluster: Tfcluster, gathered: RunPaths) -> None:
    header, *rows = tfcluster("checkpoints").out.splitlines()
    assert header.split() == ["STEP", "KIND", "SIZE", "PATH"]
    assert [row.rsplit("/", 1)[1] for row in rows] == ["model-1.keras", "model-2.keras"]
    known = json.loads(tfcluster("checkpoints", "old", "--json").out)
    assert [Path(found["path"]).is_file() for found in known] == [True, True]
    done = tfcluster("checkpoints", "--path")
    assert done.err == ""
    assert Path(done.out.removesuffix("\n")).name == "model-2.keras"
    assert Path(done.out.removesuffix("\n")).is_file()


def test_the_newest_is_copied_into_an_empty_folder_only(
    tfcluster: Tfcluster, gathered: RunPaths, tmp_path: Path
) -> None:
    target = tmp_path / "taken"
    assert tfcluster("checkpoints", "--copy", str(target)).code == 0
    with zipfile.ZipFile(target / "model-2.keras") as model:
        assert json.loads(model.read("config.json")) == {"name": "model-2.keras"}
    again = tfcluster("checkpoints", "--copy", str(target))
    assert again.code == 2
    assert "is not an empty folder" in again.err


def test_no_checkpoint_is_reported_with_a_fix(tfcluster: Tfcluster, make_ended: MakeEnded) -> None:
    make_ended()
    listed = tfcluster("checkpoints")
    assert (listed.code, listed.out) == (0, "")
    assert "has gathered no checkpoint" in listed.err
    assert json.loads(tfcluster("checkpoints", "--json").out) == []
    path = tfcluster("checkpoints", "--path")
    assert path.code == 2
    assert "TFCLUSTER_CHECKPOINT_DIR" in path.err
