"""The usable cores of a machine, read from the kernel's files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tfcluster.agent.node import limits

pytestmark = pytest.mark.linux("cores of a process")


class Machine:
    """A `/sys/devices/system` and a `/proc` made of files."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sys, self.proc, self.mount = root / "sys", root / "proc", root / "cgroup"
        self._monkeypatch = monkeypatch

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def has_nodes(self, *lists: str) -> None:
        self.write(self.sys / "node/online", f"0-{len(lists) - 1}")
        for number, cpulist in enumerate(lists):
            self.write(self.sys / f"node/node{number}/cpulist", cpulist)

    def has_siblings(self, *lists: str) -> None:
        self.write(self.sys / "cpu/smt/active", "1")
        for siblings in lists:
            for core in siblings.split(","):
                path = self.sys / f"cpu/cpu{core}/topology/thread_siblings_list"
                self.write(path, siblings)

    def allows(self, *usable: int) -> None:
        self._monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(usable), raising=False)

    def mounted(self, kind: str, options: str = "rw") -> None:
        line = f"29 23 0:26 / {self.mount} rw - {kind} {kind} {options}"
        self.write(self.proc / "self/mountinfo", line)

    def by_node(self) -> list[list[int]]:
        return limits.by_node(str(self.sys))

    def limit(self) -> float | None:
        return limits.limit(str(self.proc))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path, monkeypatch)
    made.allows(0, 1, 2, 3)
    return made


def test_cores_are_grouped_by_numa_node(machine: Machine) -> None:
    machine.has_nodes("0,2", "1,3")
    assert machine.by_node() == [[0, 2], [1, 3]]


def test_only_cores_in_affinity_and_cpuset_are_used(machine: Machine) -> None:
    machine.has_nodes("0-3,8-11", "4-7,12-15", "")
    machine.allows(1, 2, 9, 13)
    assert machine.by_node() == [[1, 2, 9], [13]]
    machine.allows(5)
    assert machine.by_node() == [[5]]


def test_the_threads_of_a_core_are_next_to_each_other(machine: Machine) -> None:
    machine.has_nodes("0-1,4-5", "2-3,6-7")
    machine.has_siblings("0,4", "1,5", "2,6", "3,7")
    machine.allows(*range(8))
    assert machine.by_node() == [[0, 4, 1, 5], [2, 6, 3, 7]]
    machine.allows(0, 1, 4)
    assert machine.by_node() == [[0, 4, 1]]


def test_without_kernel_files_all_cores_form_one_node(machine: Machine) -> None:
    assert machine.by_node() == [[0, 1, 2, 3]]
    machine.has_nodes("0", "nonsense")
    assert machine.by_node() == [[0], [1, 2, 3]], "no core is lost"


def test_the_real_machine_lists_exactly_the_allowed_cores() -> None:
    found = [core for node in limits.by_node() for core in node]
    assert sorted(found) == sorted(os.sched_getaffinity(0))
    assert 1 <= limits.usable() <= len(found)


@pytest.mark.parametrize(
    ("own", "above", "limit"),
    [
        ("max 100000", "max 100000", None),
        ("250000 100000", "max 100000", 2.5),
        ("400000 100000", "150000 50000", 3.0),
        ("nonsense", "max 100000", None),
    ],
)
def test_a_cgroup_limits_the_cpu_time(
    machine: Machine, own: str, above: str, limit: float | None
) -> None:
    machine.mounted("cgroup2")
    machine.write(machine.proc / "self/cgroup", "0::/job/step")
    machine.write(machine.mount / "job/step/cpu.max", own)
    machine.write(machine.mount / "job/cpu.max", above)
    assert machine.limit() == limit


@pytest.mark.parametrize(("quota", "limit"), [("-1", None), ("200000", 2.0)])
def test_a_cgroup_v1_limits_the_cpu_time(machine: Machine, quota: str, limit: float | None) -> None:
    machine.mounted("cgroup", "rw,cpu,cpuacct")
    machine.write(machine.proc / "self/cgroup", "5:cpu,cpuacct:/job")
    machine.write(machine.mount / "job/cpu.cfs_quota_us", quota)
    machine.write(machine.mount / "job/cpu.cfs_period_us", "100000")
    assert machine.limit() == limit


@pytest.mark.parametrize(("cores", "limit"), [("3", 3.0), ("8", 4.0), ("", 4.0)])
def test_the_share_of_a_job_limits_the_cpu_time(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, cores: str, limit: float
) -> None:
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", cores)
    machine.mounted("cgroup2")
    machine.write(machine.proc / "self/cgroup", "0::/")
    machine.write(machine.mount / "cpu.max", "400000 100000")
    assert machine.limit() == limit


def test_without_cgroups_there_is_no_limit(machine: Machine) -> None:
    assert machine.limit() is None
