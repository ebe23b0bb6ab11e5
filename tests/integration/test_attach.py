"""`attach` and `logs -f` follow a run in a second terminal, across restarts, and only read."""

from __future__ import annotations

import json
import os
import select
import signal
import termios

import pytest

from .commandline import CommandLine, screen, wait_for
from .live import FAMILY, Family, InBackground

RESTARTS = """
import os, time
attempt = int(os.environ["TFCLUSTER_ATTEMPT"])
print(f"attempt {attempt} begins", flush=True)
while not os.path.exists(f"end-{attempt}"):
    time.sleep(0.02)
print(f"attempt {attempt} ends", flush=True)
if attempt == 1 and os.environ["TFCLUSTER_TASK"] == "worker:1":
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def restarting(shell: CommandLine) -> InBackground:
    """A run in its first attempt, which fails once the file ``end-1`` exists."""
    shell.script("task.py", RESTARTS)
    spec = shell.spec("s.json", {"script": "task.py"}, supervision={"backoff_s": 0})
    run = InBackground(shell, "up", spec.name)
    run.wait_for_line("attempt 1 begins")
    return run


def follow(shell: CommandLine, run: InBackground, *args: str) -> tuple[int, str, str]:
    """Follow a run with a command from the first attempt on; return its code, stdout and stderr."""
    out, err = shell.root / "looking.out", shell.root / "looking.err"
    with out.open("wb") as to_out, err.open("wb") as to_err:
        looking = shell.start(*args, stdout=to_out, stderr=to_err)
    wait_for(lambda: "worker:1 │ attempt 1 begins" in out.read_text())
    shell.script("end-1", "")
    run.wait_for_line("attempt 1 ends", "worker:1")
    shell.script("end-2", "")
    return looking.wait(30), out.read_text(), err.read_text()


def test_attach_shows_restarts_then_the_summary_and_exits_with_0(
    shell: CommandLine, restarting: InBackground
) -> None:
    code, out, said = follow(shell, restarting, "attach")

    assert code == 0
    assert "Ctrl-C detaches, the run continues" in said
    assert "worker:0 │ attempt 1 begins" in out, "the last lines of before"
    assert out.index("worker:1 │ attempt 1 ends") < out.index("worker:1 │ attempt 2 begins")
    assert "attempt 2 of 4: worker:1: killed by SIGKILL; from the beginning: no checkpoint" in said
    assert f"{restarting.id} succeeded after" in said
    assert "restarts" in said
    assert shell.run("wait", restarting.id).code == 0


def test_every_command_works_while_a_run_waits_to_restart(shell: CommandLine) -> None:
    shell.script("task.py", RESTARTS)
    spec = shell.spec("s.json", {"script": "task.py"}, supervision={"backoff_s": 60})
    shell.script("end-1", "")
    run = InBackground(shell, "up", spec.name)
    wait_for(lambda: run.state()["status"] == "restarting")

    listed = json.loads(shell.run("ps", "--json").out)
    assert [(found["run"], found["status"]) for found in listed] == [(run.id, "restarting")]
    status = shell.run("status", run.id).out.decode()
    assert "waiting for  a pause of" in status
    assert "root cause: worker:1: killed by SIGKILL" in status
    waiting = shell.start("wait", run.id)
    with screen(shell, "attach") as shown:
        wait_for(lambda: shown.read(0.1) and b"waiting for a pause" in shown.seen)
        done = shell.run("down", run.id)
        assert done.code == 0, done.err
        assert shown.read_all() == 0

    assert f"{run.id} interrupted after" in shown.seen.decode()
    assert waiting.wait(60) == 143
    assert run.state()["attempt"] == 1


def test_attach_and_logs_f_end_when_the_coordinator_is_killed(shell: CommandLine) -> None:
    shell.script("family.py", FAMILY)
    run = InBackground(shell, "run", "-n", "2", "family.py")
    looking = [shell.start("attach"), shell.start("logs", "-f")]
    family = Family(run)
    shown = [process.stdout for process in looking if process.stdout]
    wait_for(lambda: len(select.select(shown, [], [], 0)[0]) == len(shown))

    os.kill(run.coordinator(), signal.SIGKILL)

    attached, following = [process.communicate(timeout=30) for process in looking]
    assert [process.returncode for process in looking] == [0, 0]
    assert f"{run.id} is lost: its coordinator died" in attached[1].decode()
    assert f"tfcluster down {run.id}" in attached[1].decode()
    assert b"family" in following[0]
    family.assert_gone()
    run.down()


def test_logs_f_follows_all_attempts_to_the_end(
    shell: CommandLine, restarting: InBackground
) -> None:
    code, out, err = follow(shell, restarting, "logs", "-f", "--task", "worker:1")

    assert code == 0
    lines = [line.partition(" │ ")[2] for line in out.splitlines()]
    assert lines == [f"attempt {n} {what}" for n in (1, 2) for what in ("begins", "ends")]
    assert "attempt 2 of 4" in err

    newest = shell.run("logs")
    assert b"attempt 1" not in newest.out
    assert newest.out.count(b"attempt 2 ends") == 2
    assert f"{restarting.id}: attempt 2. --attempt N shows another" in newest.err
    assert shell.run("logs", "--attempt", "1").out.count(b"attempt 1 begins") == 2


def test_ctrl_c_detaches_and_the_run_continues(shell: CommandLine) -> None:
    shell.script("family.py", FAMILY)
    run = InBackground(shell, "run", "-n", "2", "family.py")
    family = Family(run)
    with screen(shell, "attach", columns=60) as shown:
        wait_for(lambda: shown.read(0.1) and shown.seen.count(b"family") >= 2)
        shown.type(b"\x03")
        assert shown.read_all() == 0
    said = shown.seen.decode(errors="replace")

    assert f"detached; {run.id} keeps running" in said
    assert f"tfcluster down {run.id[-4:]}" in said
    assert "Traceback" not in said
    assert len(family.living()) == 6
    for command in ("attach", "top"):
        with screen(shell, command) as shown:
            wait_for(lambda: shown.read(0.1) and not shown.local_modes() & termios.ECHO)
            shown.process.terminate()
            assert shown.read_all() == 143, shown.seen
            assert shown.local_modes() & termios.ECHO, command
    run.down()


def test_attach_json_prints_the_lines_of_the_event_file(shell: CommandLine) -> None:
    shell.script("family.py", FAMILY)
    run = InBackground(shell, "run", "-n", "2", "family.py")
    attached = shell.start("attach", "--json")
    shown = attached.stdout
    assert shown is not None
    wait_for(lambda: select.select([shown], [], [], 0)[0], what="the first events")
    Family(run)
    shell.script("finish", "")
    out, err = attached.communicate(timeout=30)

    assert attached.returncode == 0
    assert [json.loads(line)["type"] for line in out.splitlines()][-1] == "run_finished"
    assert out == (run.folder / "events.jsonl").read_bytes()
    assert b"worker:0 " in err


def test_attach_to_an_ended_run_shows_its_result(shell: CommandLine) -> None:
    shell.script("task.py", "raise SystemExit(3)")
    assert shell.run("run", "-n", "1", "--name", "r", "task.py").code == 1

    done = shell.run("attach", "r")

    assert done.code == 0
    assert "has ended" in done.err
    assert "root cause: worker:0, exit 3" in done.err
    assert "failed after" in done.err
    assert done.out == b""
    assert shell.run("attach").code == 2, "no run is live"
