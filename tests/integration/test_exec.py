"""Commands beside a task of a live run, with pipes and with a terminal, and a debugger in it."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.documentation import DOCS, blocks

from .commandline import CommandLine, screen, wait_for
from .live import Live, is_alive
from .user_session import SCRIPT, STEPS, evaluate_at_breakpoint, read_launch_json


@contextlib.contextmanager
def training(shell: CommandLine) -> Iterator[Live]:
    """Yield a run of two workers that take steps; both have to go on until the block's end."""
    shell.script(SCRIPT, STEPS)
    run = Live(shell, "run", "-n", "2", SCRIPT)
    wait_for(lambda: all(task.get("step") for task in run.state()["tasks"]), what="a step")
    yield run
    steps = [task["step"] for task in run.state()["tasks"]]
    wait_for(lambda: all(t["step"] > n for t, n in zip(run.state()["tasks"], steps, strict=True)))
    (shell.cwd / "finish").touch()
    assert run.end() == 0, run.said()
    assert {task["attempt"] for task in run.state()["tasks"]} == {1}


@pytest.mark.slow
def test_a_command_beside_a_task_with_pipes_and_with_a_terminal(shell: CommandLine) -> None:
    with training(shell) as run:
        script = 'cat; echo "$TFCLUSTER_TASK in $PWD" >&2; command -v python3 >&2; exit 7'
        done = shell.run("exec", run.run_id, "worker:1", "--", "sh", "-c", script, input=b"a\0b")
        assert (done.code, done.out) == (7, b"a\0b"), done.err
        python = Path(sys.executable).parent / "python3"
        assert done.err.split() == ["worker:1", "in", str(shell.cwd), str(python)]
        # Without RUN it is the only live one; a signal is 128 and its number, as in a shell.
        assert shell.run("exec", "worker:0", "sh", "-c", "kill -TERM $$").code == 143
        config = shell.run("exec", "worker:1", "--", "sh", "-c", 'echo "$TF_CONFIG"')
        assert json.loads(config.out)["task"] == {"type": "worker", "index": 1}

        # Far more than all windows together; the reader takes what it wants.
        counted = shell.shell("tfcluster exec worker:1 -- yes | head -c 20000000 | wc -c")
        assert counted.out.strip() == b"20000000", counted.err
        copied = shell.shell("head -c 5000000 /dev/zero | tfcluster exec worker:1 -- wc -c")
        assert copied.out.strip() == b"5000000", copied.err

        unknown = shell.run("exec", "worker:7", "--", "true")
        assert (unknown.code, "has no task worker:7" in unknown.err) == (2, True)
        missing = shell.run("exec", "worker:1", "--", "/no/such/program")
        assert (missing.code, "/no/such/program: No such file" in missing.err) == (2, True)
        assert "no task is named" in shell.run("exec", run.run_id, "--", "ls").err

        with screen(shell, "exec", "worker:1", rows=33, columns=111) as window:
            before = window.local_modes()
            wait_for(lambda: (window.read(0.1) and b"$" in window.seen) or b"#" in window.seen)
            assert not window.local_modes() & termios.ECHO, "it is raw"
            window.type(b"stty size; echo $TFCLUSTER_TASK $((6*7)); sleep 600\r")
            wait_for(lambda: window.read(0.1) and b"worker:1 42" in window.seen)
            assert b"33 111" in window.seen
            termios.tcsetwinsize(window._user, (44, 122))
            window.type(b"\x03stty size; exit 5\r")  # Ctrl-C ends `sleep`, not the command
            assert window.read_all() == 5, window.seen
            assert b"44 122" in window.seen
            assert window.local_modes() == before

        # What it has started ends with the user's command, however that ends.
        script = "setsid sleep 600 & echo $!; sleep 600"
        stuck = shell.start("exec", "worker:1", "--", "sh", "-c", script)
        assert stuck.stdout is not None
        pid = int(stuck.stdout.readline())
        stuck.send_signal(signal.SIGKILL)
        wait_for(lambda: not is_alive(pid), what="the end of its processes")
        last = shell.start("exec", "worker:1", "--", "sh", "-c", "echo started; exec sleep 600")
        assert last.stdout is not None
        assert last.stdout.readline() == b"started\n"
    assert last.wait(60) == 137
    assert last.stderr is not None
    assert "worker:1 has ended, and with it the command" in last.stderr.read().decode()


def launched(shell: CommandLine) -> tuple[Any, dict[str, Any]]:
    """Start `tfcluster debug`; return its process and the configuration that it prints."""
    process = shell.start("debug", "worker:1")
    return process, read_launch_json(process)


def vs_code_task() -> dict[str, Any]:
    """Return the task of docs/guides/editors.md that waits for `tfcluster debug`."""
    page = blocks(DOCS / "guides/editors.md")
    text = next(block.text for block in page if "problemMatcher" in block.text)
    task: dict[str, Any] = json.loads(text)["tasks"][0]
    return task


@pytest.mark.slow
def test_a_debugger_attaches_to_a_task_through_a_port_of_this_machine(shell: CommandLine) -> None:
    with training(shell) as run:
        process, configuration = launched(shell)
        (mapping,) = configuration["pathMappings"]
        assert mapping == {"localRoot": str(shell.cwd), "remoteRoot": str(shell.cwd)}
        assert configuration["name"] == f"worker:1 of {run.run_id}"
        pid = evaluate_at_breakpoint(configuration, "step > 0 and os.getpid()")
        assert pid == str(run.state()["tasks"][1]["pid"])
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        again, second = launched(shell)  # debugpy listens already
        assert second["connect"]["port"] != 0
    assert again.wait(60) == 0
    said = again.stderr.read().decode()
    assert "worker:1 has ended" in said
    waits_for = vs_code_task()["problemMatcher"]["background"]
    assert re.search(waits_for["beginsPattern"], said)
    assert re.search(waits_for["endsPattern"], said)
