"""Out-of-memory kills are distinguished from other kills."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.launcher.agent.conftest import Rig, kill, wait_until

from tfcluster.agent.node import limits
from tfcluster.agent.node.limits import COUNTERS, OomDetector, killed_pid

LIMIT = 64 << 20
EATER = "import time; print('eats', flush=True); x = bytearray(300 << 20); time.sleep(60)"
NO_LOG = "/no/kernel/log"


class Tree:
    """A set of fake cgroup files, for counters that this machine's kernel does not have."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.mount = folder / "proc", folder / "cgroup"
        for part in ("self", "7", "8"):
            (self.proc / part).mkdir(parents=True)

    def mounted(self, kind: str, *, root: str = "/", options: str = "rw") -> None:
        line = f"33 24 0:28 {root} {self.mount} rw,relatime shared:9 - {kind} {kind} {options}\n"
        other = "22 1 8:1 / / rw - ext4 /dev/root rw\n"
        (self.proc / "self" / "mountinfo").write_text(other + line)

    def member(self, pid: int, line: str) -> None:
        (self.proc / str(pid) / "cgroup").write_text(f"1:cpu:/elsewhere\n{line}\n")

    def count(self, path: str, kills: int, *, name: str = "memory.events") -> None:
        folder = self.mount / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"low 0\noom {kills + 1}\noom_kill {kills}\n")

    def detector(self) -> OomDetector:
        return OomDetector(str(self.proc), NO_LOG)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    tree.mounted("cgroup2")
    tree.member(7, "0::/job/step")
    for path in ("", "job", "job/step"):
        tree.count(path, 3)
    return tree


def test_v2_counters_of_a_cgroup_and_its_parents_are_evidence(tree: Tree) -> None:
    cgroup_folders = [str(tree.mount / path) for path in ("job/step", "job", "")]
    record = limits.cgroup_folders(7, "memory", COUNTERS, str(tree.proc))
    found = [folder.rstrip("/") for folder in record]
    assert found == [folder.rstrip("/") for folder in cgroup_folders]
    for path in ("job/step", "job"):
        detector = tree.detector()
        before = detector.count_kills(7)
        assert detector.evidence(7, before) is None
        tree.count(path, 4)
        (tree.mount / path / "memory.max").write_text(f"{LIMIT}\n")
        evidence = detector.evidence(7, before)
        assert evidence is not None
        assert f"{tree.mount / path} with a limit of 64 MiB" in evidence


def test_one_counted_kill_is_evidence_for_only_one_task(tree: Tree) -> None:
    tree.member(8, "0::/job/step")
    detector = tree.detector()
    before = detector.count_kills(7), detector.count_kills(8)
    tree.count("job/step", 4)
    assert detector.evidence(7, before[0])
    assert detector.evidence(8, before[1]) is None
    tree.count("job/step", 5)
    assert detector.evidence(8, before[1])
    assert detector.evidence(7, detector.count_kills(7)) is None, (
        "what was before its start is not its"
    )


def test_v1_counters_behind_a_container_s_mount_are_found(tree: Tree) -> None:
    tree.mounted("cgroup", root="/docker/0a1b", options="rw,memory")
    tree.member(7, "4:memory:/docker/0a1b/step")
    tree.count("step", 0, name="memory.oom_control")
    detector = tree.detector()
    before = detector.count_kills(7)
    tree.count("step", 1, name="memory.oom_control")
    (tree.mount / "step" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    evidence = detector.evidence(7, before)
    assert evidence == f"cgroup {tree.mount / 'step'}: its count of out-of-memory kills rose to 1"


def test_without_any_cgroup_there_is_no_evidence(tmp_path: Path) -> None:
    detector = OomDetector(str(tmp_path), NO_LOG)
    assert detector.count_kills(7) == {}
    assert detector.evidence(7, {}) is None


@pytest.mark.parametrize(
    ("line", "pid"),
    [
        ("Memory cgroup out of memory: Killed process 205 (python3) total-vm:118kB", 205),
        ("Out of memory: Killed process 31 (python3) total-vm:9kB, UID:0", 31),
        ("oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/job,task=python3,pid=77,uid=0", 77),
        ("python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0", None),
        ("Killed process ", None),
        ("oom_reaper: reaped process 205 (python3), now anon-rss:0kB", None),
    ],
)
def test_a_line_of_the_kernel_log_names_the_pid(line: str, pid: int | None) -> None:
    assert killed_pid(line) == pid


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """Create a real cgroup with a memory limit (v1 or v2, whichever this machine has)."""
    v1 = Path("/sys/fs/cgroup/memory")
    parent = v1 if v1.is_dir() else Path("/sys/fs/cgroup")
    group = parent / f"tfcluster-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = "memory.limit_in_bytes" if v1.is_dir() else "memory.max"
        (group / limit).write_text(str(LIMIT))
    except OSError as error:
        pytest.skip(f"this user cannot make a cgroup with a limit: {error}")
    yield group
    wait_until(lambda: is_removed(group))


def is_removed(group: Path) -> bool:
    """Try to remove the cgroup; return whether it is gone.

    An ending process that is still in it makes the removal fail.
    """
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):
            (group.parent / "cgroup.procs").write_text(pid)
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


@pytest.mark.linux("cgroups")
def test_a_real_counter_is_evidence_without_the_kernel_log(small_cgroup: Path) -> None:
    detector = OomDetector("/proc", NO_LOG)
    code = "input(); x = bytearray(300 << 20)"
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE) as task:
        (small_cgroup / "cgroup.procs").write_text(str(task.pid))
        before = detector.count_kills(task.pid)
        task.communicate(b"go\n")
    assert task.returncode == -signal.SIGKILL
    shown = (
        f"cgroup {small_cgroup} with a limit of 64 MiB: its count of out-of-memory kills rose to 1"
    )
    assert detector.evidence(task.pid, before) == shown


@pytest.mark.linux("cgroups")
def test_an_out_of_memory_kill_is_reported_with_evidence(rig: Rig, small_cgroup: Path) -> None:
    (small_cgroup / "cgroup.procs").write_text(str(rig.pid))
    pid = rig.start_python(EATER)["pid"]
    exited = rig.exited()
    assert (exited["signal"], exited["ended_by"]) == (signal.SIGKILL, "itself")
    assert f"Killed process {pid}" in exited["out_of_memory"] or f"pid={pid}" in exited["oom"]


@pytest.mark.linux("cgroups")
def test_other_kills_have_no_out_of_memory_evidence(rig: Rig, small_cgroup: Path) -> None:
    (small_cgroup / "cgroup.procs").write_text(str(rig.pid))
    kill(rig.start("sleep", "300")["pid"])
    assert rig.exited()["out_of_memory"] is None
    rig.start("sleep", "300")
    rig.peer.send("signal", tasks=["worker:0"], signal=9)
    assert rig.exited()["out_of_memory"] is None
    rig.start("sh", "-c", f"{sys.executable} -S -c 'x = bytearray(300 << 20)'; exec sleep 300")
    rig.stop(grace_s=0)
    exited = rig.exited()
    assert exited["ended_by"] == "tfcluster"
    assert exited["out_of_memory"] is None
