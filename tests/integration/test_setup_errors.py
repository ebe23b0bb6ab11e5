"""Setup errors give a clear message, the right exit code and a proper end, and lose nothing."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from .commandline import CommandLine, screen, wait_for
from .live import Live

HELLO = "import os, sys\nprint('hello', os.environ['TFCLUSTER_TASK'], sys.argv[1:])\n"


@pytest.fixture
def line(shell: CommandLine) -> CommandLine:
    shell.script("hello.py", HELLO)
    return shell


@pytest.fixture
def small_disk(line: CommandLine) -> Iterator[Path]:
    """A disk of 2 MiB for the runs."""
    line.home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", line.home], check=True)
    yield line.home
    line.clean_up()
    subprocess.run(["umount", "--lazy", line.home], check=True)


def refused(line: CommandLine, *args: str, code: int = 3) -> str:
    """Run a command that must be refused before it starts anything; return its message."""
    done = line.run(*args)
    assert done.code == code, done.err
    assert done.out == b""
    assert "Traceback" not in done.err
    assert "  → " in done.err, f"no cure in: {done.err}"
    assert done.err.startswith("tfcluster: ")
    return done.err


def went_well(line: CommandLine, *args: str) -> None:
    """Assert that `tfcluster run -n 2 hello.py` (or `args` that print the same) succeeds."""
    done = line.run(*(args or ("run", "-n", "2", "hello.py")))
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    for task in ("worker:0", "worker:1"):
        assert f"{task} │ hello {task}" in done.out.decode()
    assert line.events()[-1]["type"] == "run_finished"


# -- the script and its Python ------------------------------------------------------------------


@pytest.mark.parametrize("job", ["module", "script"])
def test_a_python_without_tensorflow_is_refused(line: CommandLine, job: str) -> None:
    venv.create(line.root / "bare", symlinks=True)
    line.script("train.py", "import tensorflow as tf\nprint(tf.__version__)\n")
    what = ["-m", "tfcluster_workers.jobs.keras_mnist"] if job == "module" else ["train.py"]

    said = refused(line, "run", "--python", str(line.root / "bare"), *what)

    assert f"{line.root}/bare/bin/python" in said
    assert "TensorFlow" in said
    assert "pip install" in said


@pytest.mark.parametrize(
    ("python", "code"),
    [("/nonexistent/python", 2), ("/etc/passwd", 2), ("/bin/true", 3), ("/bin/cat", 3)],
)
def test_an_unusable_python_is_refused(line: CommandLine, python: str, code: int) -> None:
    said = refused(line, "run", "--python", python, "hello.py", code=code)

    assert python in said
    assert "index out of range" not in said


def test_a_script_whose_name_begins_with_a_dash_runs(line: CommandLine) -> None:
    line.script("-dash.py", HELLO)

    went_well(line, "run", "-n", "2", "--", "-dash.py", "-n", "9")


# -- ports and folders --------------------------------------------------------------------------


def test_a_port_held_by_another_process_is_refused(line: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        spec = line.spec("fixed.json", {"script": "hello.py"})
        cluster = {"worker": [f"127.0.0.1:{port}", "127.0.0.1:0"]}
        spec.write_text(json.dumps(json.loads(spec.read_text()) | {"cluster": cluster}))

        done = line.run("up", "fixed.json")

    assert done.code == 3
    assert f"port 127.0.0.1:{port}" in done.err
    assert f"pid {os.getpid()}" in done.err
    assert "  → " in done.err
    assert done.out == b""
    assert "Traceback" not in done.err
    assert line.state()["status"] == "failed"
    assert line.events()[-1]["exit_code"] == 3


def test_a_home_on_a_read_only_disk_is_refused(line: CommandLine, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)

    said = refused(line, "run", "hello.py")

    assert "Read-only file system" in said
    assert "TFCLUSTER_HOME" in said


def test_a_run_works_with_a_home_whose_path_is_too_long_for_sockets(line: CommandLine) -> None:
    line.env["TFCLUSTER_HOME"] = str(line.home / ("deep" * 30))

    done = line.run("run", "-n", "2", "hello.py")

    assert done.code == 0, done.err


@pytest.mark.parametrize("problem", ["missing", "too long", "unset", "not a folder"])
def test_a_run_works_with_an_unusable_runtime_folder(line: CommandLine, problem: str) -> None:
    long = line.root / ("x" * 120)
    long.mkdir()
    places = {"missing": "/nonexistent", "too long": str(long), "not a folder": "/etc/passwd"}
    line.env.pop("XDG_RUNTIME_DIR")
    if problem in places:
        line.env["XDG_RUNTIME_DIR"] = places[problem]

    went_well(line)


def test_a_run_works_without_home_in_the_environment(line: CommandLine) -> None:
    line.env.pop("HOME")

    went_well(line)


def test_a_run_works_in_a_read_only_workdir(line: CommandLine) -> None:
    folder = line.root / "fixed"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    try:
        (folder / "hello.py").write_text(HELLO)
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        line.cwd = folder

        went_well(line)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_run_survives_the_deletion_of_its_workdir(line: CommandLine) -> None:
    line.cwd = line.root / "gone"
    line.cwd.mkdir()
    line.script(
        "script.py",
        "import pathlib, shutil, os, time\n"
        f"here, up = os.getcwd(), pathlib.Path({str(line.root / 'up')!r})\n"
        "if os.environ['TFCLUSTER_TASK'] == 'worker:1':\n"
        "    up.touch()\n"
        "while not up.exists():\n"
        "    time.sleep(0.02)\n"
        "if os.environ['TFCLUSTER_TASK'] == 'worker:0':\n"
        "    shutil.rmtree(here)\n"
        "while os.path.exists(here):\n"
        "    time.sleep(0.02)\n"
        "print('still here')\n",
    )

    done = line.run("run", "-n", "2", "script.py")

    assert done.code == 0, done.err
    assert done.out.decode().count("still here") == 2
    assert "Traceback" not in done.err


def test_a_deleted_current_folder_is_refused(line: CommandLine) -> None:
    script = line.cwd / "hello.py"

    done = line.shell(f"mkdir gone && cd gone && rmdir ../gone && tfcluster run {script}")

    assert done.code == 3
    assert done.err == "tfcluster: the current folder was deleted\n  → cd to another one\n"


@pytest.mark.parametrize("name", ["a b 'quoted\" ünï→\nnew line", "-rf $HOME `x` %s {} *"])
def test_a_run_works_in_a_folder_with_an_odd_name(line: CommandLine, name: str) -> None:
    line.cwd = line.root / name
    line.cwd.mkdir()
    line.script("hello.py", HELLO)
    line.spec("s.json", {"script": "hello.py"})

    went_well(line)
    went_well(line, "up", str(line.cwd / "s.json"))


def test_a_run_survives_the_deletion_of_its_home(line: CommandLine) -> None:
    """Training continues, and the warning does not suggest a lack of disk space."""
    home = str(line.home)  # the run may write while it is deleted
    line.script(
        "delete.py",
        f"import os, shutil\nwhile os.path.exists({home!r}):\n    shutil.rmtree({home!r}, True)",
    )

    done = line.run("run", "-n", "1", "delete.py")

    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    last = done.err.splitlines()[-1]
    assert last.startswith(f"warning: {line.home}/runs/delete-")
    assert last.endswith(" does not record how the run ended: the folder was deleted")


# -- a disk that is full ------------------------------------------------------------------------

FLOOD = """
import pathlib, sys, time
for n in range(40):
    sys.stdout.write(f"{n:06d} " + "x" * 100_000 + "\\n")
    sys.stdout.flush()
    time.sleep(0.02)
pathlib.Path(sys.argv[1]).touch()
"""


def test_a_full_disk_costs_log_lines_and_their_bytes_are_reported(
    line: CommandLine, small_disk: Path
) -> None:
    line.script("flood.py", FLOOD)
    finished = line.root / "finished"

    done = line.run("run", "-n", "1", "flood.py", str(finished))

    assert done.code == 0, done.err
    assert finished.exists(), "training went on"
    assert "Traceback" not in done.err
    assert "s log: No space left on device" in done.err
    events = line.events()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["type"] == "run_finished"
    lost = sum(event["bytes"] for event in events if event["type"] == "log_lost")
    assert lost + len(line.log("worker:0")) == 40 * 100_008
    state = line.state()
    assert (state["status"], state["exit_code"]) == ("succeeded", 0)
    assert state["tasks"][0]["log_lost_bytes"] == lost
    summary = done.err[done.err.index(" succeeded after") :]
    assert "lost" in summary, "the summary repeats what scrolled by"


FILLS_THE_DISK = """
import pathlib, sys, time
home, room = map(pathlib.Path, sys.argv[1:])
print("first", flush=True)
while not any(log.stat().st_size for log in home.glob("runs/*/logs/attempt-1/worker-0.log")):
    time.sleep(0.01)
ballast = home / "ballast"
file = ballast.open("wb", buffering=0)
try:
    while file.write(bytes(4096)): pass
except OSError: pass
print("x" * 100_000, flush=True)
while not room.exists():
    time.sleep(0.01)
ballast.unlink()
file.close()
print("last", flush=True)
"""
"""A job that fills the disk: each step waits until other processes have logged the one before."""


def test_a_log_continues_once_the_disk_has_space_again(line: CommandLine, small_disk: Path) -> None:
    room = line.root / "room"
    line.script("fills.py", FILLS_THE_DISK)
    run = Live(line, "run", "-n", "1", "fills.py", str(small_disk), str(room))
    wait_for(lambda: "s log: No space left" in run.said() or run.process.poll() is not None)
    room.touch()

    assert run.end() == 0, run.said()
    log = run.log("worker:0")
    assert log.startswith("first\n")
    assert log.endswith("\nlast\n")
    assert re.search(r"\[tfcluster: \d+ bytes lost here: No space left on device\]", log)
    assert "worker:0 │ last" in run.out.read_text()


# -- odd output ---------------------------------------------------------------------------------


def test_a_worker_that_closes_its_stdout_and_stderr_is_waited_for(line: CommandLine) -> None:
    done_file = line.root / "done"
    line.script(
        "closes.py",
        "import os, pathlib, time\n"
        "print('before', flush=True)\n"
        "os.close(1); os.close(2)\n"
        "time.sleep(1)\n"
        f"pathlib.Path({str(done_file)!r}).touch()\n"
        "os._exit(0)\n",
    )

    done = line.run("run", "-n", "1", "closes.py")

    assert done.code == 0, done.err
    assert done.out.decode() == "worker:0 │ before\n"
    assert done_file.exists()


# -- terminals and descriptors ------------------------------------------------------------------

PROGRESS = """
import sys, time
done = open(sys.argv[1], "wb", buffering=0)
for n in range(int(sys.argv[2])):
    print(f"step {n:05d} " + "." * 60, flush=True)
    done.write(b".")
    time.sleep(0.001)
"""


def test_training_continues_after_the_reader_of_stdout_has_left(line: CommandLine) -> None:
    at = line.root / "at"
    line.script("progress.py", PROGRESS)
    line.spec("s.json", {"script": "progress.py", "args": [str(at), "1500"]}, workers=1)

    run = line.start("up", "s.json")
    assert run.stdout is not None
    assert run.stdout.readline().decode() == "worker:0 │ step 00000 " + "." * 60 + "\n"
    run.stdout.close()
    assert run.stderr is not None
    said = run.stderr.read().decode()

    assert run.wait(60) == 0, said
    assert at.stat().st_size == 1500
    assert said.count("stdout is closed; training continues") == 1
    assert "succeeded after" in said
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", "2>&-", ">&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_a_run_works_with_closed_or_full_standard_streams(line: CommandLine, closed: str) -> None:
    done = line.shell(f"tfcluster run -n 2 hello.py {closed}")

    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    if ">&-" not in closed.replace("2>&-", ""):
        assert "worker:1 │ hello worker:1" in done.out.decode()
    assert line.state()["exit_code"] == 0
    assert line.log("worker:1").startswith(b"hello worker:1"), "no stray bytes in a log"
    assert line.log("worker:1").count(b"\n") == 1


@pytest.mark.parametrize("columns", [40, 12])
def test_a_run_fits_a_narrow_terminal(line: CommandLine, columns: int) -> None:
    with screen(line, "run", "-n", "2", "hello.py", columns=columns) as window:
        assert window.read_all() == 0

    assert b"hello worker:1" in window.seen
    assert b"Traceback" not in window.seen
    rules = re.findall(r"─+", window.seen.decode())
    assert all(len(rule) <= columns for rule in rules)


@pytest.mark.parametrize(
    ("name", "value"), [("TERM", "dumb"), ("NO_COLOR", "1"), ("CI", "1")], ids=str
)
def test_a_terminal_without_decoration_gets_plain_text(
    line: CommandLine, name: str, value: str
) -> None:
    line.env[name] = value

    with screen(line, "run", "-n", "2", "hello.py") as window:
        assert window.read_all() == 0

    assert b"hello worker:1" in window.seen
    assert not re.search(rb"\x1b\[[0-9;]*m", window.seen), "no colours"
    if name != "NO_COLOR":
        assert b"\x1b" not in window.seen, "and no status line"


def test_a_run_works_without_a_terminal(line: CommandLine) -> None:
    done = line.shell("setsid tfcluster run -n 2 hello.py < /dev/null > out 2> err; echo $?")

    assert done.out == b"0\n"
    out, err = (line.cwd / "out").read_text(), (line.cwd / "err").read_text()
    assert "worker:0 │ hello worker:0" in out
    assert "succeeded after" in err
    assert "\x1b" not in out + err


def test_the_home_may_lie_in_the_working_directory(line: CommandLine) -> None:
    line.env["TFCLUSTER_HOME"] = str(line.cwd / "home")

    done = line.run("run", "-n", "2", "hello.py")

    assert done.code == 0
    assert "New files" not in done.err
