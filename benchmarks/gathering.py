"""Gathering a checkpoint: its time compared with `scp` of the same file, its cost for training.

Hosts are the tests' lab (root, Linux): network namespaces with an sshd each, on cables shaped to
1 Gbit/s. GATHER_BYTES in the environment makes the checkpoint smaller, to try this out.
"""

from __future__ import annotations

import atexit
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Arm, Claim, Failed, Metric, Quantity, Taken
from tests.integration.hosts.office import Office
from tests.lab.machines import Lab

BYTES = int(os.environ.get("GATHER_BYTES", 1_000_000_000))
RATE = 50e6
"""The rate in bytes/s at which a checkpoint is gathered while its task trains."""
LOOKS_S = 3.0
"""The time until two scans have found the same checkpoint, and its transfer begins."""
_SAVE = """
import os, struct, time
def save(size):
    folder = os.environ["TFCLUSTER_CHECKPOINT_DIR"]
    os.makedirs(folder, exist_ok=True)
    block = os.urandom(1 << 20)
    with open(folder + "/ckpt-1.data-00000-of-00001", "wb") as file:
        for _ in range(size // len(block)):
            file.write(block)
    with open(folder + "/ckpt-1.index", "wb") as file:  # as TensorFlow's end
        file.write(struct.pack("<Q", 0xDB4775248B80FB57))
"""
_SAVE_ONLY = _SAVE + 'save(int(os.environ["BYTES"]))\n'
_TRAIN = (
    _SAVE
    + """
seconds = float(os.environ["SECONDS"])
if os.environ["TFCLUSTER_TASK"] == "worker:1":
    while not os.path.exists("trains"):  # the same folder: they are on one host
        time.sleep(0.05)
    time.sleep(float(os.environ["EXIT_S"]))
    print("leaves", time.time(), flush=True)
    os._exit(0)
import numpy
weights = numpy.random.default_rng(1).random((600, 600), dtype=numpy.float32)
save(int(os.environ["BYTES"]))
began = time.time()
open("trains", "w").close()
print("trains", began, flush=True)
while (at := time.time()) < began + seconds:
    for _ in range(4):
        weights = weights @ weights
        weights /= weights.max()
    print("step", at, time.time(), flush=True)
"""
)


@cache
def _office() -> Office:
    """Start the user's machine and one host; they end with this process."""
    stack = ExitStack()
    atexit.register(stack.close)
    folder = Path(tempfile.mkdtemp(prefix="lab-", dir="/var/tmp"))
    lab = stack.enter_context(Lab(folder))
    lab.add("home", number=254)
    office = Office(lab)
    stack.callback(office.close)
    (host,) = office.add_hosts(1)
    for machine in (office.home, host):
        lab.shape(machine, mbit=1000)
    return office


def _spec(script: str, workers: int = 1, **env: object) -> Path:
    (host,) = _office().hosts
    return _office().spec(
        script,
        cluster={"worker": [f"{host.address}:0"] * workers},
        job={
            "script": "train.py",
            "hooks": "off",
            "kind": "plain",
            "env": {"OPENBLAS_NUM_THREADS": "1"} | {k: str(v) for k, v in env.items()},
        },
    )


def _clear() -> None:
    """Delete old runs, so that a full disk does not distort later measurements."""
    shutil.rmtree(_office().home.root / ".local", ignore_errors=True)


def _gathered() -> Taken:
    """Measure from the end of the task that saved to the event that it is gathered and hashed."""
    _clear()
    run = _office().up(_spec(_SAVE_ONLY, BYTES=BYTES))
    if run.end():
        raise Failed(f"tfcluster up failed:\n{run.said[-3000:]}")
    (exited,), (gathered,) = run.of_type("task_exited"), run.of_type("checkpoint_gathered")
    data = run.folder / f"{gathered['path']}.data-00000-of-00001"
    if data.stat().st_size < BYTES - (1 << 20):
        raise Failed("the gathered file is smaller than the saved one")
    return {"until": gathered["time"] - exited["time"]}


def _copied() -> Taken:
    """Measure the same transfer by `scp`, which neither hashes the file nor waits for the disk."""
    office = _office()
    (host,) = office.hosts
    source = host.root / "copied"
    if not source.exists():
        block = os.urandom(1 << 20)
        with source.open("wb") as file:
            for _ in range(BYTES // len(block)):
                file.write(block)
    home = Path("~").expanduser()
    began = time.monotonic()
    command = ["scp", "-q", f"{host.address}:{home}/copied", f"{home}/copied"]
    done = office.home.run(command, timeout=300)
    seconds = time.monotonic() - began
    if done.returncode:
        raise Failed(done.stderr)
    (office.home.root / "copied").unlink()
    return {"until": seconds}


def _train(*, gathers: bool) -> Taken:
    """Measure the training of one run while its checkpoint is gathered, or is not."""
    _clear()
    lasts = LOOKS_S + BYTES / RATE
    spec = _spec(_TRAIN, 2, BYTES=BYTES, SECONDS=lasts + 2, EXIT_S=(LOOKS_S + lasts) / 2)
    run = _office().up(spec, *([] if gathers else ["--no-gather"]))
    lines: list[tuple[float, Sequence[str]]] = []
    assert run._process.stdout is not None
    said = []
    for line in run._process.stdout:
        said.append(line)
        lines.append((time.time(), line.rpartition("│")[2].split()))
        if "trains" in line:
            put_behind(_office().home.processes())
    if run._process.wait():
        raise Failed(f"tfcluster up failed:\n{''.join(said)[-3000:]}")
    trains = next(float(words[1]) for _, words in lines if words[:1] == ["trains"])
    began, ended = trains + LOOKS_S, trains + lasts
    if gathers:
        if not (found := run.of_type("checkpoint_gathered")):
            raise Failed(f"nothing was gathered:\n{''.join(said)[-3000:]}")
        gathered = found[0]
        ended = min(ended, float(gathered["time"]))
    return _judge(lines, run.of_type("task_exited"), began, ended)


def put_behind(pids: Iterable[int]) -> None:
    """Lower the priority of the command and its ssh.

    Elsewhere they have a machine to themselves; here they share two cores with the training and
    must not slow it down.
    """
    for pid in pids:
        # A process may end meanwhile, and so may one of its threads.
        with suppress(FileNotFoundError, ProcessLookupError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.setpriority(os.PRIO_PROCESS, int(thread), 19)
        # ENOENT: the kernel has no autogroups, or the process has ended.
        # EINVAL: the process is in the root group, which has no weight.
        with suppress(OSError):
            Path(f"/proc/{pid}/autogroup").write_text("19")


def _judge(
    lines: Sequence[tuple[float, Sequence[str]]],
    exits: Sequence[dict[str, Any]],
    began: float,
    ended: float,
) -> Taken:
    steps = [
        (came, float(words[1]), float(words[2]))
        for came, words in lines
        if words[:1] == ["step"] and began <= float(words[1]) <= ended
    ]
    leaves = next(float(words[1]) for _, words in lines if words[:1] == ["leaves"])
    if not began <= leaves <= ended:
        raise Failed(f"the other task exited {leaves - began:.1f} s after the gathering began")
    exited = next(event["time"] for event in exits if event["task"] == "worker:1")
    return {
        "step": 1000 * statistics.median(end - start for _, start, end in steps),
        "latest line": 1000 * max(came - end for came, _, end in steps),
        "exit": 1000 * (exited - leaves),
    }


def gather(*, quick: bool) -> Metric:
    """Return the metric; it needs root and sshd, as its hosts are the tests' lab."""
    return Metric(
        title=f"A checkpoint of {BYTES / 1e9:.1f} GB over 1 Gbit/s, no task training",
        quantities={"until": Quantity("s")},
        arms={
            "tfcluster, hashed": Arm(_gathered, "tfcluster up far.json"),
            "scp": Arm(_copied, "scp -q HOST:copied copied"),
        },
        claims=[Claim("tfcluster : scp", "until", "tfcluster, hashed", "scp", at_most=1.15)],
    )


def beside(*, quick: bool) -> Metric:
    """Return the metric of gathering while the task trains."""
    return Metric(
        title=f"A single-threaded training while {BYTES / 1e9:.1f} GB are gathered at 50 MB/s",
        quantities={
            "step": Quantity("ms"),
            "latest line": Quantity("ms"),
            "exit": Quantity("ms"),
        },
        arms={
            "gathering": Arm(partial(_train, gathers=True), "tfcluster up far.json"),
            "not": Arm(partial(_train, gathers=False), "tfcluster up far.json --no-gather"),
        },
        claims=[
            Claim("step, gathering : not", "step", "gathering", "not", at_most=1.05),
            Claim("latest line, gathering", "latest line", "gathering", at_most=1000),
            Claim("exit, gathering", "exit", "gathering", at_most=1000),
        ],
        note="latest line: the longest time from `print` to the command's output; exit: the time "
        "from the other task's last statement to its event.",
    )
