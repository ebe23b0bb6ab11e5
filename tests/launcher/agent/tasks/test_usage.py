"""The memory and processor time of running tasks: which processes count, and what is read."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.launcher.agent.conftest import Rig, wait_until

from tfcluster.agent.node.gpu_meter import GpuMeter
from tfcluster.agent.tasks.task import Task
from tfcluster.agent.tasks.usage_meter import UsageMeter, _clock

pytestmark = pytest.mark.linux("the usage of processes is read from /proc")

TICKS = os.sysconf("SC_CLK_TCK")
MEGABYTE = 1 << 20
BUSY = "import time\nwhile True: pass"
WITH_CHILDREN = """
import subprocess, sys, time
hold = "x = bytearray(40 << 20); import time; print(1, flush=True); time.sleep(60)"
for alone in (False, True):  # one in the task's process group, one in a session of its own
    child = subprocess.Popen([sys.executable, "-S", "-c", hold], stdout=-1, start_new_session=alone)
    child.stdout.readline()
time.sleep(60)
"""


def usage_of(rig: Rig) -> dict[str, dict[str, float]]:
    used = rig.peer.take("node_usage")["tasks"]
    return {one.pop("task"): one for one in used}


def test_memory_and_time_of_a_running_task_are_reported_soon_after_its_start(rig: Rig) -> None:
    rig.start_python(BUSY)
    used = usage_of(rig)["worker:0"]
    assert used["rss_bytes"] > 4 * MEGABYTE
    assert 0 < used["cores"] < 1.5


def test_processes_that_a_task_has_started_count_as_the_task_s(rig: Rig) -> None:
    rig.start_python(WITH_CHILDREN)
    rig.start("sleep", "60", task="worker:1")
    while (used := usage_of(rig))["worker:0"]["rss_bytes"] < 80 * MEGABYTE:
        pass  # they are being started
    assert used["worker:1"]["rss_bytes"] < 10 * MEGABYTE
    assert used["worker:1"]["cores"] < 0.1


def test_the_prepare_step_is_not_measured(rig: Rig) -> None:
    order = {"task": "prepare", "argv": ["sleep", "2"], "env": {}, "log": str(rig.log("prepare"))}
    rig.peer.send("start", attempt=0, tasks=[order])
    rig.exited("prepare")
    assert all(message["type"] != "node_usage" for message in rig.peer.messages)


class FakeTask:
    """A process of the test that a meter takes for a task."""

    gpus: str | None = "-1"
    gpu_order: str | None = None
    attempt = 1

    def __init__(self, *argv: str) -> None:
        self.process = subprocess.Popen(argv, start_new_session=True)
        self.name, self.pid, self.started_at = "worker:0", self.process.pid, time.monotonic()


@pytest.fixture
def busy() -> Iterator[FakeTask]:
    task = FakeTask(sys.executable, "-S", "-c", BUSY)
    yield task
    task.process.kill()
    task.process.wait()


def test_a_sample_measures_the_time_since_the_one_before(busy: FakeTask) -> None:
    meter = UsageMeter()
    meter.begin(busy)  # type: ignore[arg-type]

    def has_run() -> bool:
        report = meter.sample([busy])  # type: ignore[list-item]
        return report is not None and report.tasks[0].cores > 0.2

    wait_until(has_run)
    os.kill(busy.pid, 19)
    meter.sample([busy])  # type: ignore[list-item]
    time.sleep(0.2)
    report = meter.sample([busy])  # type: ignore[list-item]
    assert report is not None
    assert report.tasks[0].cores < 0.1


def test_a_machine_without_proc_has_no_samples(busy: FakeTask, tmp_path: Path) -> None:
    meter = UsageMeter(proc=str(tmp_path / "missing"))
    meter.begin(busy)  # type: ignore[arg-type]
    assert meter.sample([busy]) is None  # type: ignore[list-item]


def test_nothing_is_due_when_nothing_runs(busy: FakeTask) -> None:
    meter = UsageMeter()
    meter.begin(busy)  # type: ignore[arg-type]
    while_running = meter.due_at
    meter.end(busy)  # type: ignore[arg-type]
    assert (while_running is None, meter.due_at) == (False, None)


class FakeProc:
    """A /proc with processes of the test's choice."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.meter = UsageMeter(proc=str(folder))
        self.task = SimpleNamespace(name="worker:0", pid=100, attempt=1, gpus="-1", started_at=0.0)
        self.set(100, parent=1)
        self.meter.begin(cast("Task", self.task))
        self.measure()

    def set(self, pid: int, *, parent: int, seconds: float = 0.0, start: int = 1) -> None:
        """Create or change a process that leads a group; it has one page of memory."""
        fields = ["S", parent, pid, *[0] * 8, round(seconds * TICKS), *[0] * 7, start, 0, 1]
        (self._folder / str(pid)).mkdir(exist_ok=True)
        (self._folder / str(pid) / "stat").write_text(f"{pid} (a) {' '.join(map(str, fields))}")

    def end(self, pid: int) -> None:
        shutil.rmtree(self._folder / str(pid))

    def measure(self) -> tuple[int, float]:
        """Return the number of the task's processes and their processor seconds."""
        found = self.meter._read([self.task.pid])
        rss, seconds = found[self.task.pid]
        return rss // os.sysconf("SC_PAGE_SIZE"), seconds


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def test_a_new_process_counts_from_the_next_sample_on(proc: FakeProc) -> None:
    for number in range(1, 7):
        proc.set(100 + number, parent=100, seconds=1.0)
        proc.set(200 + number, parent=1, seconds=1.0)
        assert proc.measure() == (1 + number, number)


def test_a_process_with_the_number_of_an_ended_one_is_another_process(proc: FakeProc) -> None:
    proc.set(101, parent=100, seconds=1.0)
    assert proc.measure() == (2, 1.0)
    proc.set(101, parent=1, seconds=5.0, start=2)
    proc.set(102, parent=101, seconds=5.0, start=3)
    assert proc.measure() == (1, 0.0)


def test_a_task_can_have_the_number_of_an_ended_process(proc: FakeProc) -> None:
    proc.set(300, parent=1)
    proc.measure()
    proc.set(300, parent=1, seconds=2.0, start=2)
    proc.task.pid = 300
    proc.meter.begin(cast("Task", proc.task))
    assert proc.measure() == (1, 2.0)


def test_a_machine_without_free_processes_or_descriptors_does_not_end_the_agent(
    busy: FakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = UsageMeter()
    meter.begin(busy)  # type: ignore[arg-type]
    was_due = meter.due_at
    for place, code in (("listdir", errno.EMFILE), ("fork", errno.EAGAIN)):

        def fails(*_: object, code: int = code) -> None:
            raise OSError(code, "none is free")

        with monkeypatch.context() as patch:
            meter._gpus = GpuMeter(device="/dev/null")
            meter._gpus.use_of("0")
            patch.setattr(os, place, fails)
            meter.sample([busy])  # type: ignore[list-item]
        assert meter.due_at != was_due
        was_due = meter.due_at
    meter.close()


# -- GPUs

FAKE_NVML = """
/* A small stand-in for NVIDIA's libnvidia-ml.so.1: two GPUs, the second one cut into parts.
   With MODELS they are different ones. */
#include <stdio.h>
#include <stdlib.h>
#include <stddef.h>
#define NUMBER(gpu) ((size_t)(gpu))
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **gpu)
{ *gpu = (void *)NUMBER(i + 1); return 0; }
int nvmlDeviceGetUUID(void *gpu, char *text, unsigned size)
{ snprintf(text, size, "GPU-%zu", NUMBER(gpu)); return 0; }
int nvmlDeviceGetName(void *gpu, char *text, unsigned size)
{ snprintf(text, size, "Model %zu", getenv("MODELS") ? NUMBER(gpu) : 0); return 0; }
int nvmlDeviceGetUtilizationRates(void *gpu, unsigned *use)
{ use[0] = 75; return NUMBER(gpu) == 2 ? 3 : 0; }
int nvmlDeviceGetMemoryInfo(void *gpu, unsigned long long *memory)
{ memory[0] = 100; memory[2] = NUMBER(gpu) * 10; return 0; }
"""


@pytest.fixture(scope="module")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    source, library = folder / "fake_nvml.c", folder / "libfake_nvml.so"
    source.write_text(FAKE_NVML)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


@pytest.mark.parametrize(
    ("visible", "use", "memory"),
    [
        ("0", 0.75, 10),
        ("1", None, 20),
        ("0,1", 0.75, 30),
        (None, 0.75, 30),
        ("GPU-1", 0.75, 10),
        ("-1", None, None),
        ("", None, None),
    ],
)
def test_the_gpus_of_a_task_are_those_that_cuda_shows_it(
    fake_nvml: Path, visible: str | None, use: float | None, memory: int | None
) -> None:
    meter = GpuMeter(str(fake_nvml), "/dev/null")
    meter.use_of("0,1")

    def has_answered() -> bool:
        meter.ask()
        return meter.use_of("0,1") != (None, None)

    wait_until(has_answered)
    assert meter.use_of(visible) == (use, memory)
    assert meter.use_of(visible, "PCI_BUS_ID") == (use, memory)
    pid = meter.pid
    meter.close()
    assert os.waitpid(pid, 0) == (pid, 0)


def test_the_numbers_of_different_gpus_mean_nothing_where_cuda_sorts_them_by_speed(
    fake_nvml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELS", "2")
    meter = GpuMeter(str(fake_nvml), "/dev/null")
    meter.use_of(None)

    def has_answered() -> bool:
        meter.ask()
        return meter.use_of(None) == (0.75, 30)

    wait_until(has_answered)
    assert meter.use_of("0") == meter.use_of("0,1", "FASTEST_FIRST") == (None, None)
    assert meter.use_of("GPU-2") == meter.use_of("1", "PCI_BUS_ID") == (None, 20)
    pid = meter.pid
    meter.close()
    os.waitpid(pid, 0)


def test_no_process_asks_where_there_is_no_gpu_or_no_task_sees_one(fake_nvml: Path) -> None:
    without_device = GpuMeter(str(fake_nvml), "/dev/no-such-device")
    without_device.use_of(None)
    hidden = GpuMeter(str(fake_nvml), "/dev/null")
    hidden.use_of("-1")
    for meter in (without_device, hidden):
        meter.ask()
        assert meter.pid == 0


def test_a_library_that_cannot_be_loaded_leaves_the_gpus_unknown(tmp_path: Path) -> None:
    meter = GpuMeter(str(tmp_path / "missing.so"), "/dev/null")
    meter.use_of("0")
    meter.ask()
    pid = meter.pid
    os.waitpid(pid, 0)
    meter.ask()
    assert meter.pid == 0
    assert meter.use_of("0") == (None, None)


@pytest.mark.parametrize(
    ("now", "highest", "clock"),
    [("1400000\n", "2800000\n", 0.5), ("<unknown>\n", "2800000\n", None), ("7\n", "0\n", None)],
)
def test_a_clock_that_the_driver_does_not_know_is_left_out(
    tmp_path: Path, now: str, highest: str, clock: float | None
) -> None:
    (tmp_path / "scaling_cur_freq").write_text(now)
    (tmp_path / "cpuinfo_max_freq").write_text(highest)
    assert _clock(str(tmp_path)) == clock
