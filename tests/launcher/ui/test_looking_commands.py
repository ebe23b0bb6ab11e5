"""The commands `ps`, `status`, `logs` and `checkpoints` print run folders as text or JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tfcluster.checkpoints.completeness import find
from tfcluster.checkpoints.copying import scan
from tfcluster.checkpoints.store import Store
from tfcluster.cli.main import main
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import this_process

MakeRun = Callable[..., RunPaths]
Tfcluster = Callable[..., "Done"]


@dataclass(frozen=True, slots=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TFCLUSTER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def tfcluster(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Tfcluster:
    """Run a command in this process; return its exit code and output."""

    def run(*args: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["tfcluster", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capfd.readouterr())

    return run


@pytest.fixture
def make_run(home: Path) -> MakeRun:
    """Make a run folder; a live run names this test's process as its coordinator."""

    def make(run_id: str, *, status: str = "succeeded", started_at: float = 1.7e9) -> RunPaths:
        paths = RunPaths.of(run_id, home)
        paths.attempt_logs(1).mkdir(parents=True)
        coordinator = this_process()
        task = {"task": "worker:0", "node": "local", "address": "127.0.0.1:4000", "attempt": 1}
        state = {
            "run": run_id, "name": run_id.rsplit("-", 3)[0], "status": status, "attempt": 1,
            "host": coordinator.host, "boot_id": coordinator.boot_id,
            "pid": coordinator.pid, "pid_start": coordinator.start,
            "started_at": started_at, "ended_at": None if status == "running" else started_at + 5,
            "tasks": [
                task | {"task": name, "state": "running" if status == "running" else "succeeded"}
                for name in ("worker:0", "worker:1")
            ],
        }  # fmt: skip
        paths.state.write_text(json.dumps(state))
        (paths.attempt_logs(1) / "worker-0.log").write_bytes(b"epoch 1\nloss 0.5\nno end")
        (paths.attempt_logs(1) / "worker-1.log").write_bytes(b"epoch 1\nloss 0.7\n")
        return paths

    return make


def test_ps_lists_live_runs_and_with_all_every_run(tfcluster: Tfcluster, make_run: MakeRun) -> None:
    make_run("old-20260914-153012-k7f3", started_at=1.6e9)
    make_run("new-20260915-153012-abcd", status="running")
    live = tfcluster("ps")
    assert [line.split()[0] for line in live.stdout.splitlines()] == [
        "RUN",
        "new-20260915-153012-abcd",
    ]
    known = json.loads(tfcluster("ps", "-a", "--json").stdout)
    assert [run["status"] for run in known] == ["succeeded", "running"]


def test_ps_without_a_live_run_says_so_and_leaves_stdout_empty(
    tfcluster: Tfcluster, make_run: MakeRun
) -> None:
    make_run("old-20260914-153012-k7f3")
    done = tfcluster("ps")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "no run is live (1 run ended: `tfcluster ps -a`)\n"
    assert json.loads(tfcluster("ps", "--json").stdout) == []


def test_status_shows_the_latest_run_or_the_one_named(
    tfcluster: Tfcluster, make_run: MakeRun
) -> None:
    make_run("old-20260914-153012-k7f3", started_at=1.6e9)
    make_run("new-20260915-153012-abcd")
    assert tfcluster("status").stdout.startswith("new-20260915-153012-abcd\n")
    assert tfcluster("status", "k7f3").stdout.startswith("old-20260914-153012-k7f3\n")
    assert json.loads(tfcluster("status", "old", "--json").stdout)["status"] == "succeeded"


@pytest.mark.parametrize("command", ["status", "logs", "checkpoints"])
def test_an_unknown_run_is_an_error_with_a_similar_name(
    tfcluster: Tfcluster, make_run: MakeRun, command: str
) -> None:
    make_run("mnist-20260914-153012-k7f3")
    done = tfcluster(command, "mnits")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean mnist" in done.stderr


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (
            [],
            [
                "worker:0 │ epoch 1",
                "worker:0 │ loss 0.5",
                "worker:0 │ no end",
                "worker:1 │ epoch 1",
                "worker:1 │ loss 0.7",
            ],
        ),
        (["--task", "worker:1"], ["worker:1 │ epoch 1", "worker:1 │ loss 0.7"]),
        (["--grep", r"loss 0\.\d"], ["worker:0 │ loss 0.5", "worker:1 │ loss 0.7"]),
        (["--tail", "1"], ["worker:0 │ no end", "worker:1 │ loss 0.7"]),
        (["--attempt", "2"], []),
        (
            ["--collapse"],
            [
                "worker:0 │ epoch 1 (×2)",
                "worker:0 │ loss 0.5",
                "worker:0 │ no end",
                "worker:1 │ loss 0.7",
            ],
        ),
    ],
)
def test_logs(
    tfcluster: Tfcluster, make_run: MakeRun, options: list[str], shown: list[str]
) -> None:
    make_run("old-20260914-153012-k7f3")
    done = tfcluster("logs", *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == shown


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
    tfcluster: Tfcluster, make_run: MakeRun, options: list[str], shown: list[str], message: str
) -> None:
    paths = make_run("old-20260914-153012-k7f3")
    for log, text in ((paths.attempt_logs(2) / "worker-1.log", "again\n"),
                      (paths.prepare_log("local"), "done\n")):  # fmt: skip
        log.parent.mkdir()
        log.write_text(text)

    done = tfcluster("logs", *options)

    assert done.returncode == 0
    assert done.stdout.splitlines() == shown
    assert done.stderr.strip().endswith(message) if message else done.stderr == ""


def test_a_long_line_is_one_record_too(tfcluster: Tfcluster, make_run: MakeRun) -> None:
    paths = make_run("old-20260914-153012-k7f3")
    lines = ['short "one"', "é" * 400_001, "", "last"]
    (paths.attempt_logs(1) / "worker-0.log").write_text("\n".join(lines))
    done = tfcluster("logs", "--json", "--task", "worker:0")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["line"] for record in records] == lines
    assert {record["task"] for record in records} == {"worker:0"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "worker1"], "'worker1' is not a task; write JOB:INDEX"),
        (["--grep", "("], "'(' is not a regular expression"),
        (["--tail", "-1"], "Invalid value for '--tail'"),
        (["--attempt", "0"], "Invalid value for '--attempt'"),
    ],
)
def test_bad_options_of_logs_are_reported(
    tfcluster: Tfcluster, make_run: MakeRun, options: list[str], message: str
) -> None:
    make_run("old-20260914-153012-k7f3")
    done = tfcluster("logs", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_logs_of_a_live_run_are_followed_to_its_end(home: Path, make_run: MakeRun) -> None:
    paths = make_run("live-20260914-153012-k7f3", status="running")
    follower = subprocess.Popen(
        [sys.executable, "-m", "tfcluster.cli.main", "logs", "-f"],
        env=os.environ | {"TFCLUSTER_HOME": str(home)},
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


def test_logs_end_quietly_when_the_reader_exits(home: Path, make_run: MakeRun) -> None:
    paths = make_run("old-20260914-153012-k7f3")
    (paths.attempt_logs(1) / "worker-0.log").write_bytes(b"line\n" * 200_000)
    done = subprocess.run(
        f"{sys.executable} -m tfcluster.cli.main logs | head -1",
        shell=True,
        env=os.environ | {"TFCLUSTER_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("worker:0 │ line\n", "")


@pytest.fixture
def gathered(make_run: MakeRun, tmp_path: Path) -> RunPaths:
    """Return a run that gathered two models."""
    paths = make_run("old-20260914-153012-k7f3")
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
    header, *rows = tfcluster("checkpoints").stdout.splitlines()
    assert header.split() == ["STEP", "KIND", "SIZE", "PATH"]
    assert [row.rsplit("/", 1)[1] for row in rows] == ["model-1.keras", "model-2.keras"]
    known = json.loads(tfcluster("checkpoints", "k7f3", "--json").stdout)
    assert [Path(found["path"]).is_file() for found in known] == [True, True]


def test_only_the_path_is_printed_for_scripts(tfcluster: Tfcluster, gathered: RunPaths) -> None:
    done = tfcluster("checkpoints", "--path")
    assert done.stderr == ""
    assert Path(done.stdout.removesuffix("\n")).name == "model-2.keras"
    assert Path(done.stdout.removesuffix("\n")).is_file()


def test_the_newest_is_copied_into_an_empty_folder_only(
    tfcluster: Tfcluster, gathered: RunPaths, tmp_path: Path
) -> None:
    target = tmp_path / "taken"
    assert tfcluster("checkpoints", "--copy", str(target)).returncode == 0
    with zipfile.ZipFile(target / "model-2.keras") as model:
        assert json.loads(model.read("config.json")) == {"name": "model-2.keras"}
    again = tfcluster("checkpoints", "--copy", str(target))
    assert again.returncode == 2
    assert "is not an empty folder" in again.stderr


def test_no_checkpoint_is_reported_with_a_fix(tfcluster: Tfcluster, make_run: MakeRun) -> None:
    make_run("old-20260914-153012-k7f3")
    listed = tfcluster("checkpoints")
    assert (listed.returncode, listed.stdout) == (0, "")
    assert "has gathered no checkpoint" in listed.stderr
    assert json.loads(tfcluster("checkpoints", "--json").stdout) == []
    path = tfcluster("checkpoints", "--path")
    assert path.returncode == 2
    assert "TFCLUSTER_CHECKPOINT_DIR" in path.stderr


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_logs_as_json_names_the_task_of_each_line(
    tfcluster: Tfcluster, make_run: MakeRun, follow: tuple[str, ...]
) -> None:
    make_run("old-20260914-153012-k7f3")
    done = tfcluster("logs", "--json", *follow)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    by_task = {task: [r["line"] for r in lines if r["task"] == task] for task in ("worker:0",)}
    assert by_task == {"worker:0": ["epoch 1", "loss 0.5", "no end"]}
    assert {"time": None, "task": "worker:1", "attempt": 1, "line": "loss 0.7"} in lines


@pytest.mark.parametrize("other", ["--json", "--time"])
def test_lines_with_a_time_cannot_be_collapsed(
    tfcluster: Tfcluster, make_run: MakeRun, other: str
) -> None:
    make_run("old-20260914-153012-k7f3")
    done = tfcluster("logs", other, "--collapse")
    assert done.returncode == 2
    assert "leave out one" in done.stderr
