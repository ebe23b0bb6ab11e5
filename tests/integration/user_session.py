"""A user's session beside a live run: `exec`, `stacks`, `debug` and `restart`, on any backend.

    python user_session.py RUN

It is a program, with the standard library alone, because the users of a lab type their commands on
another machine's network, or as somebody else. The run is one of `STEPS`; in the end none is live.
It prints the hostname beside the second task.
"""

from __future__ import annotations

import ast
import json
import signal
import socket
import subprocess
import sys
import time
from subprocess import PIPE
from typing import Any

STEPS = """
import os, struct, time
from tfcluster_workers import reporting

def train(step):
    reporting.progress(step)
    time.sleep(0.02)

folder = os.environ["TFCLUSTER_CHECKPOINT_DIR"]
if os.environ["TFCLUSTER_TASK"] == "worker:0":
    os.makedirs(folder, exist_ok=True)
    saved = 1 + sum(name.endswith(".index") for name in os.listdir(folder))
    with open(f"{folder}/ckpt-{saved}.data-00000-of-00001", "w") as file:
        file.write("weights")
    with open(f"{folder}/ckpt-{saved}.index", "wb") as file:  # as TensorFlow's end
        file.write(struct.pack("<Q", 0xDB4775248B80FB57))
reporting.ready()
for step in range(1, 1_000_000):
    train(step)
    if os.path.exists("finish"):
        break
"""
"""A job that takes steps; its chief saves at its start, beside the checkpoints that it finds."""
SCRIPT = "train.py"
STOP_LINE = "    time.sleep(0.02)"
TASK = "worker:1"
HANG_S = 100.0


class Editor:
    """A debugger's client: the Debug Adapter Protocol as VS Code speaks it."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=HANG_S)
        self._file = self._socket.makefile("rb")
        self._count = 0

    def ask(self, command: str, **arguments: Any) -> None:
        self._count += 1
        request = {"seq": self._count, "type": "request", "command": command}
        body = json.dumps({**request, "arguments": arguments}).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def take(self, **facts: Any) -> dict[str, Any]:
        """Return the next message with these fields."""
        while True:
            header = self._file.readline()
            assert header, f"the connection ended; {facts} did not come"
            assert self._file.readline() == b"\r\n"
            size = int(header.split(b":")[1])
            message: dict[str, Any] = json.loads(self._file.read(size))
            if facts.items() <= message.items():
                return message

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def read_launch_json(debug: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Return the configuration that a `tfcluster debug` prints."""
    assert debug.stdout is not None
    lines = []
    while (line := debug.stdout.readline()) and line != b"}\n":
        lines.append(line)
    assert line, debug.communicate()[1]
    configuration: dict[str, Any]
    (configuration,) = json.loads(b"".join([*lines, line]))["configurations"]
    return configuration


def evaluate_at_breakpoint(configuration: dict[str, Any], expression: str) -> str:
    """Stop the task in `train`, evaluate an expression there, and let it go on."""
    editor = Editor(configuration["connect"]["port"])
    editor.ask("initialize", adapterID="debugpy", pathFormat="path")
    editor.ask("attach", **configuration)
    editor.take(event="initialized")
    lines = [{"line": 1 + STEPS.split("\n").index(STOP_LINE)}]
    (mapping,) = configuration["pathMappings"]
    script = {"path": f"{mapping['localRoot']}/{SCRIPT}"}
    editor.ask("setBreakpoints", source=script, breakpoints=lines)
    editor.ask("configurationDone")
    thread = editor.take(event="stopped")["body"]["threadId"]
    editor.ask("stackTrace", threadId=thread)
    frame = editor.take(command="stackTrace")["body"]["stackFrames"][0]
    assert frame["name"] == "train", frame
    editor.ask("evaluate", expression=expression, frameId=frame["id"])
    result = str(editor.take(command="evaluate")["body"]["result"])
    editor.ask("disconnect", terminateDebuggee=False)
    editor.take(command="disconnect")
    editor.close()
    return result


def _start(*arguments: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "tfcluster.cli.main", *arguments]
    return subprocess.Popen(argv, stdin=PIPE, stdout=PIPE, stderr=PIPE)


def _said(*arguments: str, given: bytes = b"", code: int = 0) -> str:
    """Return what a command prints; its exit code has to be `code`."""
    process = _start(*arguments)
    out, err = process.communicate(given, timeout=HANG_S)
    assert process.returncode == code, (arguments, process.returncode, out, err)
    return out.decode()


def _wait_for_steps(run: str, after: int = 0) -> None:
    """Wait until both tasks have taken a step after this one, in their first attempt."""
    deadline = time.monotonic() + HANG_S
    while True:
        state = json.loads(_said("status", run, "--json"))
        if sum((task.get("step") or 0) > after for task in state["tasks"]) == 2:
            assert state["attempt"] == 1, state
            return
        assert time.monotonic() < deadline, f"no step of {run}: {state}"
        time.sleep(0.1)


def _try_exec(run: str) -> None:
    script = 'cat; echo " for $TFCLUSTER_TASK"; hostname; exit 7'
    said = _said("exec", run, TASK, "--", "sh", "-c", script, given=b"in", code=7)
    first, hostname = said.splitlines()
    assert first == f"in for {TASK}", said
    sys.stdout.write(f"{hostname}\n")


def _try_stacks(run: str) -> None:
    (task,) = json.loads(_said("stacks", run, TASK, "--json"))["tasks"]
    functions = [frame["function"] for frame in task["threads"][0]]
    assert (task["task"], functions[-1]) == (TASK, "<module>"), task


def _try_debug(run: str) -> None:
    debug = _start("debug", run, TASK)
    expression = "os.environ['TFCLUSTER_TASK'], step"
    evaluated = evaluate_at_breakpoint(read_launch_json(debug), expression)
    task, step = ast.literal_eval(evaluated)
    assert task == TASK
    debug.send_signal(signal.SIGINT)
    _, err = debug.communicate(timeout=HANG_S)
    assert debug.returncode == 0, err
    _wait_for_steps(run, step)


def _try_restart(run: str) -> str:
    """Return the new run, which has to go on with the checkpoint that the first one had saved."""
    new = _said("restart", run, "-d").split()[-1]
    assert new != run
    _wait_for_steps(new)
    listing = 'ls "$TFCLUSTER_CHECKPOINT_DIR"'
    assert "ckpt-2.index" in _said("exec", new, "worker:0", "--", "sh", "-c", listing)
    return new


def main(run: str) -> None:
    _wait_for_steps(run)
    _try_exec(run)
    _try_stacks(run)
    _try_debug(run)
    new = _try_restart(run)
    _said("down", "--now", new)


if __name__ == "__main__":
    main(sys.argv[1])
