"""`up --resume RUN[@STEP]` starts a new run from a checkpoint that an earlier run gathered."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from tests.launcher.checkpoints.files import flip_a_bit

from .commandline import CommandLine, read_events, wait_for
from .live import InBackground, Live

SAVES = """
import os, struct, sys
from tfcluster_workers import reporting
folder = os.environ["TFCLUSTER_CHECKPOINT_DIR"]
END = struct.pack("<Q", 0xDB4775248B80FB57)
begin = int(os.environ.get("TFCLUSTER_RESTORED_STEP", 0))
print("begins at", begin, "with", sorted(os.listdir(folder)), sys.argv[1:], flush=True)
for step in range(begin + 1, begin + 4):
    for suffix, end in (("data-00000-of-00001", b""), ("index", END)):
        with open(f"{folder}/ckpt-{step}.{suffix}", "wb") as file:
            file.write(f"step {step} of {os.environ['TFCLUSTER_TASK']}".encode() + end)
    reporting.saved(f"{folder}/ckpt-{step}", step=step)
"""
"""A job that saves three steps in the form of complete TensorFlow checkpoints."""


@pytest.fixture
def first(shell: CommandLine) -> Path:
    """The folder of a run that has gathered steps 1 to 3."""
    shell.script("save.py", SAVES)
    spec = shell.spec("s.json", {"script": "save.py", "args": ["--width", "4"]})
    done = shell.run("up", spec.name, "--name", "first", "--", "--depth", "2")
    assert done.code == 0, done.err
    return shell.last_run()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_resume_takes_the_newest_checkpoint_and_the_runs_own_spec_from_any_folder(
    shell: CommandLine, first: Path
) -> None:
    before = contents(first / "checkpoints")
    shell.cwd = shell.root
    spec = shell.root / "work" / "s.json"

    done = shell.run("up", "--resume", first.name, "--name", "second")

    assert done.code == 0, done.err
    run = shell.last_run()
    assert run.name.startswith("second-")
    for task in ("worker:0", "worker:1"):
        assert shell.log(task).decode() == (
            "begins at 3 with ['checkpoint', 'ckpt-3.data-00000-of-00001', 'ckpt-3.index']"
            " ['--width', '4', '--depth', '2']\n"
        )
    assert f"resumes     {first.name} at step 3" in done.err, "the start panel"
    assert f"resumed     {first.name} at step 3" in done.err, "the summary"
    state = shell.state()
    assert state["resumed_from"] == {"run": first.name, "step": 3}
    assert (state["spec"], state["workdir"]) == (str(spec), str(spec.parent))
    resumed = [event for event in read_events(run) if event["type"] == "resumed"]
    assert [(event["run"], event["step"]) for event in resumed] == [(first.name, 3)]
    assert state["checkpoints"][-1]["step"] == 6
    listed = json.loads(shell.run("checkpoints", "--json", "second").out)
    assert [found["step"] for found in listed] == [4, 5, 6]
    assert contents(first / "checkpoints") == before, "the original stays as it was"


def test_resume_takes_an_earlier_step_and_another_spec(shell: CommandLine, first: Path) -> None:
    shell.script(
        "look.py", "import os\nprint(sorted(os.listdir(os.environ['TFCLUSTER_CHECKPOINT_DIR'])))"
    )
    spec = shell.spec("other.json", {"script": "look.py"}, workers=3)
    done = shell.run("up", "-d", spec.name, "--resume", f"{first.name[-4:]}@2")
    assert done.code == 0, done.err
    run_id = done.out.decode().strip()
    assert shell.run("wait", run_id).code == 0
    logs = (shell.home / "runs" / run_id / "logs" / "attempt-1").glob("*.log")
    assert {log.read_text() for log in logs} == {
        "['checkpoint', 'ckpt-2.data-00000-of-00001', 'ckpt-2.index']\n"
    }
    assert [found["step"] for found in json.loads(shell.run("checkpoints", "--json").out)] == [2]


def test_a_resumed_run_can_be_resumed_after_the_first_is_deleted(
    shell: CommandLine, first: Path
) -> None:
    assert shell.run("up", "--resume", first.name, "--name", "second").code == 0
    assert shell.run("rm", "first").code == 0
    assert shell.run("up", "--resume", "second", "--name", "third").code == 0
    assert shell.state()["resumed_from"]["step"] == 6
    assert shell.log("worker:1").startswith(b"begins at 6")


def test_resume_of_a_missing_step_names_the_steps_that_exist(
    shell: CommandLine, first: Path
) -> None:
    shell.script("nothing.py", "")
    assert shell.run("run", "-n", "1", "--name", "empty", "nothing.py").code == 0
    count = len(shell.runs())

    for what, words in {
        "nobody": "no run is named 'nobody'",
        "first@9": "it has the steps 1, 2, 3",
        "first@0": "it has the steps 1, 2, 3",
        "empty": "empty-",
    }.items():
        done = shell.run("up", "--resume", what)

        assert done.code == 2, what
        assert words in done.err
        assert len(shell.runs()) == count

    again = shell.run("restart", "empty")
    assert again.code == 0, again.err
    assert "has gathered no checkpoint: it starts from the beginning" in again.err
    assert len(shell.runs()) == count + 1


def test_restart_stops_a_live_run_and_goes_on_from_its_newest_checkpoint(
    shell: CommandLine,
) -> None:
    waits = "import time\nwhile not os.path.exists('finish'):\n    time.sleep(0.05)\n"
    shell.script("save.py", SAVES + waits)
    supervision = {"on_end": "cat > end; mv end $TFCLUSTER_STATUS.json"}
    spec = shell.spec("s.json", {"script": "save.py"}, supervision=supervision)
    run = InBackground(shell, "up", str(spec), "-e", "A=1", name="s")
    wait_for(lambda: [step["step"] for step in run.state()["checkpoints"]][-1:] == [3])

    done = shell.run("restart", "-d", run.id)

    assert done.code == 0, done.err
    assert f"{run.id} has ended: interrupted" in done.err
    assert read_end(shell, "interrupted") == (run.id, 143)
    shell.script("finish", "")
    new = done.out.decode().strip()
    assert shell.run("wait", new).code == 0
    assert read_end(shell, "succeeded") == (new, 0)
    assert shell.log("worker:1").startswith(b"begins at 3 with")
    assert shell.state()["resumed_from"] == {"run": run.id, "step": 3}
    assert json.loads((shell.last_run() / "spec.json").read_text())["job"]["env"] == {"A": "1"}


def read_end(shell: CommandLine, status: str) -> tuple[str, int]:
    """Return the run and the exit code that a command of `on_end` has got."""
    path = shell.cwd / f"{status}.json"
    wait_for(path.exists)
    end = json.loads(path.read_text())
    assert end["status"] == status
    return end["run"], end["exit_code"]


def test_a_copied_run_whose_newest_checkpoint_is_damaged_goes_on_from_the_one_before(
    shell: CommandLine, first: Path
) -> None:
    """`shutil.copy` loses the files' times, as `cp -r` and `scp -r` do."""
    copy = first.with_name(f"{first.name}-copy")
    shutil.copytree(first, copy, copy_function=shutil.copy)
    for name in ("state.json", "plan.json"):
        (copy / name).write_text((copy / name).read_text().replace(first.name, copy.name))
    flip_a_bit(copy / "checkpoints" / "ckpt-3" / "ckpt-3.data-00000-of-00001")
    damage = "the gathered checkpoint ckpt-3 is damaged: ckpt-3.data-00000-of-00001:"

    copied = shell.run("checkpoints", copy.name, "--copy", "copied")
    refused = shell.run("up", "--resume", f"{copy.name}@3")
    resumed = shell.run("up", "--resume", copy.name, "--name", "second")

    assert (copied.code, refused.code, resumed.code) == (0, 2, 0), resumed.err
    for done in (copied, refused, resumed):
        assert damage in " ".join(done.err.split())
    assert "copied ckpt-2" in copied.err
    assert shell.log("worker:1").startswith(b"begins at 2 with")


def test_a_checkpoint_without_a_reported_step_is_resumed_by_its_save_number(
    shell: CommandLine,
) -> None:
    unreported = [line for line in SAVES.splitlines() if "reporting" not in line]
    shell.script("save.py", "\n".join(unreported))
    done = shell.run("run", "-n", "1", "--name", "first", "save.py")
    assert done.code == 0, done.err
    assert "gathered a checkpoint, save 3: checkpoints/ckpt-3/ckpt-3" in done.err
    assert "checkpoint  save 3 in" in done.err, "the summary"
    listed = json.loads(shell.run("checkpoints", "--json").out)
    assert [(found["step"], found["save"]) for found in listed] == [(None, 1), (None, 2), (None, 3)]
    assert b"save 3" in shell.run("checkpoints").out

    done = shell.run("up", "--resume", "first@2")

    assert done.code == 0, done.err
    assert re.search(r"resumes +first-\S+ at ckpt-2\n", done.err)
    found = b"['checkpoint', 'ckpt-2.data-00000-of-00001', 'ckpt-2.index']"
    assert shell.log("worker:0").startswith(b"begins at 0 with " + found), "no step is known"
    assert "it has the saves 2, 3" in shell.run("up", "--resume", "first@9").err


def test_a_run_without_a_spec_file_resumes_in_its_own_folder(shell: CommandLine) -> None:
    shell.script("save.py", SAVES)
    assert shell.run("run", "-n", "1", "--name", "first", "save.py", "--a", "b").code == 0
    os.mkdir(shell.root / "elsewhere")
    shell.cwd = shell.root / "elsewhere"

    done = shell.run("up", "--resume", "first")

    assert done.code == 0, done.err
    assert shell.log("worker:0").startswith(b"begins at 3")
    assert b"['--a', 'b']" in shell.log("worker:0")
    assert shell.state()["workdir"] == str(shell.root / "work")


LARGE = """
import os, struct, time
folder, attempt = os.environ["TFCLUSTER_CHECKPOINT_DIR"], os.environ["TFCLUSTER_ATTEMPT"]
print("attempt", attempt, "finds", len(os.listdir(folder)), flush=True)
while os.listdir(folder) and attempt < "3":
    time.sleep(0.1)
if not os.listdir(folder):
    with open(f"{folder}/ckpt-1.data-00000-of-00001", "wb") as file:
        file.truncate(150_000_000)
    with open(f"{folder}/ckpt-1.index", "wb") as file:
        file.write(struct.pack("<Q", 0xDB4775248B80FB57))
"""
"""A job whose checkpoint takes a second to restore.

Restored, it goes on until it is killed, up to its third attempt: a restore may be over when a busy
test kills what does it.
"""


def test_an_agent_or_guard_killed_during_the_restore_costs_a_restart(
    shell: CommandLine,
) -> None:
    shell.script("large.py", LARGE)
    first = shell.run("run", "-n", "1", "--name", "large", "large.py")
    assert first.code == 0, first.err

    more = ["--set", "supervision.backoff_s=0", "--set", "supervision.max_restarts=2"]
    run = Live(shell, "up", "--resume", "large", *more, name="second")
    victims = (("pid", "node_connected"), ("guard_pid", "node_reconnected"))
    for attempt, (who, connected) in enumerate(victims, start=1):
        (event,) = wait_for(lambda kind=connected: [e for e in run.events() if e["type"] == kind])  # type: ignore[misc]
        wait_for(
            lambda number=attempt: (  # type: ignore[misc]
                list(run.folder.glob("tasks/worker-0/checkpoints.*.incoming"))
                or run.log("worker:0", number)
            )
        )
        os.kill(event[who], signal.SIGKILL)

    assert run.end() == 0, run.said()
    lost = [event["reason"] for event in run.events() if event["type"] == "node_lost"]
    assert lost == ["its agent went away", "the guard beside its agent was killed"]
    assert run.said().count("resumes     large-") == 1, "the start panel comes with the first start"
    assert run.log("worker:0", attempt=3) == "attempt 3 finds 3\n"
