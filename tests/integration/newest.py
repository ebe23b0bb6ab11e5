"""A stub job that saves in TensorFlow's format, and kills a part of its run at a chosen moment."""

from __future__ import annotations

import re
from pathlib import Path

LAST = 6
"""The step after which the job has finished."""
PHASES = ("training", "saving", "gathering", "finishing")

SAVES = f"""
import json, os, signal, struct, sys, time
from tfcluster_workers import reporting

victim, phase = sys.argv[1:3]
task, attempt = os.environ["TFCLUSTER_TASK"], os.environ["TFCLUSTER_ATTEMPT"]
folder, end = os.environ["TFCLUSTER_CHECKPOINT_DIR"], struct.pack("<Q", 0xDB4775248B80FB57)
os.makedirs(folder, exist_ok=True)
saved = [int(name[5:-6]) for name in os.listdir(folder) if name.endswith(".index")]
first = 1 + max(saved, default=0)
print("begins at", first - 1, flush=True)
is_first = attempt == "1" and "again" not in sys.argv


def strike(now):
    if is_first and now == phase:
        parent = os.getppid()
        if victim == "agent" and task == "worker:0":
            os.kill(parent, signal.SIGKILL)
        elif victim == "guard" and task == "worker:0":
            with open(f"/proc/{{parent}}/stat") as file:
                os.kill(int(file.read().rpartition(")")[2].split()[1]), signal.SIGKILL)
        elif victim == "coordinator" and task == "worker:0":
            with open(f"{{folder}}/../../../state.json") as file:
                os.kill(json.load(file)["pid"], signal.SIGKILL)
        elif victim == task:
            os.kill(os.getpid(), signal.SIGKILL)
        elif victim != "outside":
            return
        time.sleep(60)  # until whoever is left ends this task


reporting.waiting_for_peers()
reporting.ready()
for step in range(first, {LAST} + 1):
    reporting.progress(step)
    for suffix, content in (("data-00000-of-00001", os.urandom(1 << 20)), ("index", end)):
        with open(f"{{folder}}/ckpt-{{step}}.{{suffix}}", "wb") as file:
            file.write(content[:4])
            if step == 4:
                strike("saving")
            file.write(content[4:])
    print("saved", step, flush=True)
    reporting.saved(f"{{folder}}/ckpt-{{step}}", step=step)
    if step == 4:
        strike("gathering")
    time.sleep(0.1)
    if step == 3:
        time.sleep(1.5)
        strike("training")
strike("finishing")
"""
"""The arguments are the victim (``worker:1``, ``agent``, ``guard``, ``coordinator``; ``outside``:
the test kills, and the tasks wait for that), the phase, and ``again`` for a run after the one whose
coordinator was killed."""

BIG = """
import os, struct
folder, size = os.environ["TFCLUSTER_CHECKPOINT_DIR"], 1 << 30
os.makedirs(folder, exist_ok=True)
for step, bytes_ in ((1, 10), (2, size)) if os.environ["TFCLUSTER_TASK"] == "worker:0" else ():
    with open(f"{folder}/ckpt-{step}.data-00000-of-00001", "wb") as file:
        file.truncate(bytes_)
    with open(f"{folder}/ckpt-{step}.index", "wb") as file:
        file.write(struct.pack("<Q", 0xDB4775248B80FB57))
"""
"""A job that ends with a checkpoint of 1 GiB, which takes seconds to gather."""


def begun_at(log: str) -> int:
    """Return the step from which an attempt began."""
    return int(re.findall(r"begins at (\d+)", log)[0])


def saved_by(log: str) -> int:
    """Return the newest step that an attempt had completely saved."""
    return max(map(int, re.findall(r"saved (\d+)", log)), default=begun_at(log))


def assert_nothing_lost(folder: Path) -> None:
    """Check that each attempt began where the one before had saved last, and that all is here."""
    logs = sorted(folder.glob("logs/attempt-*/worker-0.log"))
    begins = 0
    for number, path in enumerate(logs, 1):
        log = path.read_text()
        assert path.parent.name == f"attempt-{number}"
        assert log.count("begins at") == 1, f"attempt {number} was started twice"
        assert number == 1 or begun_at(log) >= begins, f"attempt {number} began at an older step"
        begins = saved_by(log)
    assert begins == LAST
    assert (folder / "checkpoints" / f"ckpt-{LAST}" / f"ckpt-{LAST}.index").exists()
