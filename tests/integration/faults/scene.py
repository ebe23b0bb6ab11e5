"""Runs one cell of the table of faults as a user would and checks its outcome."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integration.commandline import CommandLine, wait_for
from tests.integration.run_folder import RunFolder

from .cells import Cell

HERE = Path(__file__).parent
JOB_FILES = ("inject.py", "train.py", "stub_worker.py", "stub_gang.py", "recordings.json")
MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
UNIFIED_GROUPS = Path("/sys/fs/cgroup")


class Ended(RunFolder):
    """The output and the run folder of a run that has ended."""

    def __init__(self, code: int, said: str, folder: Path) -> None:
        self.code, self.said, self._folder = code, said, folder

    @property
    def folder(self) -> Path:
        return self._folder

    def last_output(self) -> str:
        """Return the end of the output, events and logs, as the message of a failed assertion."""
        logs = sorted(self.folder.glob("logs/*/*.log"))
        ends = [f"{log}:\n{log.read_text(errors='replace')[-1500:]}" for log in logs]
        kept = [e for e in self.events() if e["type"] not in {"progress", "checkpoint_gathered"}]
        return "\n".join([self.said[-3000:], *map(str, kept), *ends])


@dataclass(frozen=True, slots=True)
class Trained:
    """The numbers in a job's last line."""

    loss: float
    accuracy: float

    @classmethod
    def of(cls, log: str) -> Trained:
        (found,) = re.findall(r"^trained: loss (\S+) accuracy (\S+)$", log, re.M)
        return cls(*map(float, found))

    def is_close(self, other: Trained) -> bool:
        """Compare with a tolerance: sums in another order may differ in the last digits."""
        return abs(self.loss - other.loss) + abs(self.accuracy - other.accuracy) < 2e-4


@dataclass(frozen=True, slots=True)
class Job:
    """The job that a cell runs: a stub or a real training, its Python and its limits."""

    script: str
    args: Sequence[str] = ()
    python: str | None = None
    memory_bytes: int = 400 << 20
    """The memory limit of the whole run, if the fault is to run out of memory."""
    supervision: Any = None
    timeout_s: float = 120


def copy_jobs(folder: Path) -> None:
    for name in JOB_FILES:
        shutil.copy(HERE / name, folder)


def play(shell: CommandLine, cell: Cell, job: Job, *, workers: int) -> Ended:
    """Run the job with the fault of `cell` to its end and return the result."""
    copy_jobs(shell.cwd)
    spec = shell.spec(
        "faults.json",
        {"script": job.script, "args": list(job.args), "env": {"FAULT": cell.fault}},
        workers=workers,
        supervision=job.supervision or {},
    )
    options = [f"--python={job.python}"] if job.python else []
    options += [f"--chaos={cell.chaos}"] if cell.chaos else []
    command = ("up", *options, str(spec))
    if cell.kind == "out-of-memory":
        with memory_limit(job.memory_bytes) as group:
            line = f"echo $$ > {group}/cgroup.procs; exec tfcluster {shlex.join(command)}"
            done = shell.shell(line, timeout=job.timeout_s)
    else:
        done = shell.run(*command, timeout=job.timeout_s)
    assert shell.runs(), done.err
    return Ended(done.code, done.err, shell.last_run())


def check(shell: CommandLine, ended: Ended, cell: Cell, *, workers: int, trained: Trained) -> None:
    """Check the whole expected outcome of `cell`; `trained` is the result without a fault."""
    expected, tasks = cell.expected, [f"worker:{index}" for index in range(workers)]
    assert ended.code == expected.code, ended.last_output()
    status = {0: "succeeded", 1: "failed", 4: "timed_out"}[expected.code]
    assert ended.state()["status"] == status
    check_root_cause(ended, cell)
    if cell.chaos is not None:
        assert [event["fault"] for event in ended.of_type("chaos_injected")] == [cell.chaos]
    assert ended.state()["attempt"] == expected.attempts, ended.last_output()
    assert len(ended.of_type("restarting")) == expected.attempts - 1
    if expected.attempts > 1:
        check_resumed(ended, expected.from_steps, tasks)
    if expected.code == 0:
        for task in tasks:
            found = Trained.of(ended.log(task, expected.attempts))
            assert found.is_close(trained), (task, found, trained)
    assert shell.left() == []
    ports = [port for event in ended.of_type("ports_held") for port in event["ports"].values()]
    assert len(ports) >= workers
    # No process of this run lives; another test that took one of the ports will release it.
    wait_for(lambda: not any(map(is_held, ports)), what=f"the release of the ports {ports}")


def check_root_cause(ended: Ended, cell: Cell) -> None:
    diagnoses = ended.of_type("diagnosis")
    if cell.expected.root_cause is None:
        assert diagnoses == [], ended.last_output()
        return
    cause = diagnoses[0]["root_cause"]
    assert (cause["task"], cause["kind"]) == (cell.task, cell.expected.root_cause), (
        ended.last_output()
    )
    assert cell.task not in diagnoses[0].get("collateral", ())
    assert cause["task"] in ended.said
    if cell.kind == "never-starts":
        last_line = next(line for line in ended.log(cell.task, 1).splitlines() if "fault" in line)
        assert last_line in ended.said
        for log in ended.folder.glob("logs/attempt-1/*.log"):
            assert "most recent call first" in log.read_text(errors="replace"), log


def check_resumed(ended: Ended, steps: Sequence[int], tasks: Sequence[str]) -> None:
    """Check that all tasks of attempt 2 start at the same one of `steps` and no save is lost."""
    starts = {
        step
        for task in tasks
        for step in re.findall(r"^starting at step (\d+)$", ended.log(task, 2), re.M)
    }
    assert len(starts) == 1, ended.last_output()
    start = int(*starts)
    saves = re.findall(r"^saved step (\d+)$", ended.log(tasks[0], 1), re.M)
    assert start in steps, ended.last_output()
    assert start >= int(saves[-1] if saves else 0), ended.last_output()
    (restarting,) = ended.of_type("restarting")
    assert (restarting["attempt"], restarting.get("from_step")) == (2, start or None)


def is_held(port: int) -> bool:
    """Return whether a process holds the port.

    The kernel keeps closed connections for a minute; they do not count.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return True
    return False


# -- memory --------------------------------------------------------------------------------------


@contextlib.contextmanager
def memory_limit(limit: int) -> Iterator[Path]:
    """Yield a control group with at most `limit` bytes of memory, removed when the block ends."""
    root = UNIFIED_GROUPS if not MEMORY_GROUPS.exists() else MEMORY_GROUPS
    name = "memory.max" if root == UNIFIED_GROUPS else "memory.limit_in_bytes"
    group = root / f"tfc-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / name).write_text(str(limit))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no memory limit can be set here ({error}): root of a control group is needed")
    try:
        yield group
    finally:
        group.rmdir()
