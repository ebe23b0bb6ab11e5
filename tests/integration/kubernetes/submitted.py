"""Jobs for tests of submitted runs: they say where they are, save, and wait for a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.integration.commandline import CommandLine, wait_for
from tests.integration.live import Live

from .desk import HANG_S, Desk

RELEASE = "/tmp/release"
JOB = f"""
import os, signal, struct, sys, time
folder, task = os.environ["TFCLUSTER_CHECKPOINT_DIR"], os.environ["TFCLUSTER_TASK"]
step, wanted = 0, sys.argv[1] if len(sys.argv) > 1 else "0"

def save():
    global step
    step += 1
    if task == "worker:0":
        os.makedirs(folder, exist_ok=True)
        with open(f"{{folder}}/ckpt-{{step}}.data-00000-of-00001", "w") as file:
            file.write(f"weights {{step}}")
        with open(f"{{folder}}/ckpt-{{step}}.index", "wb") as file:  # as TensorFlow's end
            file.write(struct.pack("<Q", 0xDB4775248B80FB57))

def leave(*_):
    save()
    sys.exit(42)

signal.signal(signal.SIGTERM, leave)
found = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
step = max([int(name[5:-6]) for name in found if name.endswith(".index")], default=0)
attempt, secret = os.environ["TFCLUSTER_ATTEMPT"], os.environ.get("SECRET")
print(f"attempt {{attempt}} from {{step}} {{secret}}", flush=True)
save()
while not os.path.exists("{RELEASE}"):
    time.sleep(0.05)
print("released", flush=True)
sys.exit(int(wanted))
"""
"""Saves at its start, waits until `RELEASE` exists in its pod, and ends with its argument."""


def spec(
    desk: Desk,
    *,
    code: int = 0,
    runtime: dict[str, Any] | None = None,
    prepare: str = "",
    **more: Any,
) -> Path:
    """Write a spec of two workers that run `JOB`, and a program `prepare` first."""
    desk.shell.script("train.py", JOB)
    desk.shell.env["SECRET"] = "kept-secret"
    job: dict[str, Any] = {"script": "train.py", "args": [str(code)], "hooks": "off"}
    job["env"] = {"SECRET": None}
    if prepare:
        desk.shell.script("before.py", prepare)
        job["prepare"] = {"script": "before.py"}
    more = {"supervision": {"backoff_s": 0, "max_restarts": 0}, **more}
    return desk.shell.spec("spec.json", job, runtime=desk.runtime(**(runtime or {})), **more)


def up(desk: Desk, *args: str, name: str = "r", **more: Any) -> Live:
    return Live(desk.shell, "up", str(spec(desk, **more)), *args, name=name)


def await_attempt(run: Live, number: int) -> str:
    """Wait until both tasks have written their first line; return that of the chief."""
    for task in ("worker:0", "worker:1"):
        wait_for(
            lambda task=task: run.log(task, number).count("\n") or ended_early(run),  # type: ignore[misc]
            timeout=HANG_S,
            what=f"attempt {number} of {task}: {run.said()}",
        )
    text = run.log("worker:0", number)
    assert text, run.said()
    return text.split("\n")[0]


def ended_early(run: Live) -> bool:
    return run.state()["status"] in ("failed", "succeeded", "interrupted")


def await_checkpoint(desk: Desk, run: Live, name: str) -> None:
    """Wait until the coordinator has gathered a checkpoint."""

    def is_gathered() -> bool:
        return any(name in str(event.get("path")) for event in run.events())

    wait_for(lambda: is_gathered() or ended_early(run), timeout=HANG_S, what=run.said())


def release(desk: Desk, path: str = RELEASE) -> None:
    """Have the tasks in all pods end; the end of one may take the others with it."""
    for pod in task_pods(desk):
        wait_for(lambda pod=pod: _is_released(desk, pod, path), timeout=HANG_S, what=pod)  # type: ignore[misc]


def _is_released(desk: Desk, pod: str, path: str) -> bool:
    touched = desk.kubectl.run("exec", pod, "--", "touch", path)
    return touched.returncode == 0 or pod not in task_pods(desk)


def task_pods(desk: Desk) -> list[str]:
    names = desk.kubectl("get", "pods", "-l", "tfcluster.dev/role=task", "-o", "name").split()
    return [name.removeprefix("pod/") for name in names]


def uids(desk: Desk) -> list[str]:
    """Return the ids of the tasks' pods, in the order of their names."""
    pods = desk.kubectl.json("get", "pods", "-l", "tfcluster.dev/role=task")["items"]
    return [pod["metadata"]["uid"] for pod in pods]


def coordinator(desk: Desk) -> str:
    """Return the name of the coordinator's only running pod."""

    def look() -> list[str]:
        pods = desk.kubectl.json("get", "pods", "-l", "tfcluster.dev/role=coordinator")["items"]
        return [
            pod["metadata"]["name"]
            for pod in pods
            if pod["status"].get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        ]

    (name,) = wait_for(look, timeout=HANG_S)
    return name


def ended(run: Live, code: int) -> Live:
    assert run.end(HANG_S) == code, run.said()
    return run


def checkpoint(run: Live, name: str) -> str:
    return (run.folder / "checkpoints" / name / f"{name}.data-00000-of-00001").read_text()


def elsewhere(desk: Desk) -> CommandLine:
    """Return the command line of another machine: another home with the same kubeconfig."""
    root = desk.shell.root / "elsewhere"
    root.mkdir()
    made = CommandLine(root)
    made.env["KUBECONFIG"] = desk.shell.env["KUBECONFIG"]
    return made


def said(run: Live) -> str:
    return " ".join(run.said().split())


def of_type(run: Live, kind: str) -> list[dict[str, Any]]:
    return [event for event in run.events() if event["type"] == kind]


def note_fault(run: Live, since: float, fault: str, attempt: int = 2) -> None:
    """Add a row to the table of faults: class, outcome, and seconds until all tasks run again.

    `since`: the time of the fault. The environment variable KUBERNETES_FAULTS names the file.
    """
    if (path := os.environ.get("KUBERNETES_FAULTS")) is None:
        return
    starts = [each["time"] for each in of_type(run, "task_started") if each["attempt"] == attempt]
    causes = [each["root_cause"]["kind"] for each in of_type(run, "diagnosis")]
    again = [each for each in of_type(run, "restarting") if each["attempt"] == attempt]
    counted = "free" if again and again[0].get("counts") is False else "counted"
    outcome = f"attempt {attempt}, {counted if again else 'the coordinator goes on'}"
    with open(path, "a") as file:
        row = (fault, causes[attempt - 2] if causes else "", outcome, f"{max(starts) - since:.1f}")
        file.write(f"| {' | '.join(row)} |\n")


def objects_of(text: str) -> list[dict[str, Any]]:
    """Return the objects that a message asks an administrator to apply."""
    listed = text.partition("<<'END'")[2].rpartition("END")[0]
    found: list[dict[str, Any]] = json.loads(" ".join(listed.split()))["items"]
    return found
