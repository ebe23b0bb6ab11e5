"""Output reaches its file byte for byte, as fast as `cat`; a full disk stops no task."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.launcher.agent.conftest import Rig, wait_until

from tfcluster.rundir.task_logs import LogTimes

WRITE_LINES = """
import sys
write, name = sys.stdout.write, sys.argv[1]
for number in range(int(sys.argv[2])):
    write(f"{name} {number:06d} ".ljust(84, "x") + "\\n")
"""


def memory_of(pid: int) -> tuple[int, int]:
    """Return a process's current and peak resident set in KiB."""
    with open(f"/proc/{pid}/status") as file:
        facts = dict(line.split(":", 1) for line in file if ":" in line)
    return int(facts["VmRSS"].split()[0]), int(facts["VmHWM"].split()[0])


@pytest.mark.parametrize(
    ("code", "output", "number"),
    [
        ("os.write(1, b'x' * 10_000_000)", b"x" * 10_000_000, None),
        (
            "for _ in range(64): os.write(1, bytes(range(256)) * 16)",
            bytes(range(256)) * 16 * 64,
            None,
        ),
        ("os.write(1, b'y' * 500_000); os.kill(os.getpid(), 9)", b"y" * 500_000, 9),
    ],
    ids=["without a newline", "binary", "before a kill"],
)
def test_all_output_is_kept(rig: Rig, code: str, output: bytes, number: int | None) -> None:
    rig.start_python(f"import os\n{code}")
    assert rig.exited()["signal"] == number
    assert rig.log().read_bytes() == output


@pytest.mark.slow
def test_four_tasks_with_much_output_lose_nothing_and_cost_no_memory(rig: Rig) -> None:
    count = 200_000
    before, _ = memory_of(rig.pid)
    names = [f"worker:{i}" for i in range(4)]
    for name in names:
        rig.start_python(WRITE_LINES, name, str(count), task=name)
    for name in names:
        assert rig.exited(name)["exit_code"] == 0
    for name in names:
        lines = rig.log(name).read_bytes().splitlines()
        assert len(lines) == count
        assert all(line.startswith(b"%s %06d " % (name.encode(), i)) and len(line) == 84
                   for i, line in enumerate(lines))  # fmt: skip
    _, peak = memory_of(rig.pid)
    assert peak - before < 2048


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a file system of 1 MiB; skip the test without the right to mount."""
    disk = folder / "disk"
    disk.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    mounted = subprocess.run(argv, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


FILL = """
import array, fcntl, os, sys, termios, time
for number in range(40): os.write(1, b"z" * 99_999 + b"\\n")
unread = array.array("i", [1])
while unread[0]:
    fcntl.ioctl(1, termios.FIONREAD, unread)
    time.sleep(0.1)
open(sys.argv[1], "w").close()
while os.path.exists(sys.argv[1]): time.sleep(0.02)
os.write(1, b"the end\\n")
"""


def test_a_full_disk_stops_no_task_and_every_lost_byte_is_reported(
    rig: Rig, small_disk: Path
) -> None:
    log, gate = small_disk / "worker-0.log", rig.folder / "gate"
    (small_disk / "ballast").write_bytes(bytes(300_000))
    rig.start_python(FILL, str(gate), log=str(log))
    wait_until(gate.exists)
    first = rig.peer.take("log_lost", task="worker:0", attempt=1)
    assert first["reason"] == "No space left on device"
    (small_disk / "ballast").unlink()
    gate.unlink()
    assert rig.exited()["exit_code"] == 0
    lost = first["bytes"] + sum(m["bytes"] for m in rig.peer.messages if m["type"] == "log_lost")
    content = log.read_bytes()
    mark = b"\n[tfcluster: %d bytes lost here: No space left on device]\n" % lost
    assert content.count(mark) == 1
    assert len(content) - len(mark) + lost == 4_000_000 + len(b"the end\n")
    assert content.endswith(b"the end\n")


def test_a_log_that_cannot_be_opened_stops_no_task(rig: Rig) -> None:
    blocked = rig.folder / "a-file"
    blocked.touch()
    rig.start("echo", "unheard", log=str(blocked / "worker-0.log"))
    assert rig.exited()["exit_code"] == 0
    lost = next(m for m in rig.peer.messages if m["type"] == "log_lost")
    assert (lost["bytes"], lost["reason"]) == (8, "File exists")


@pytest.mark.linux("/proc")
def test_a_stopped_coordinator_does_not_stop_a_task(rig: Rig) -> None:
    """A task keeps writing output and events while the coordinator does not read its socket."""
    code = (
        "import json, os, socket\n"
        "line = socket.socket(fileno=int(os.environ['TFCLUSTER_EVENTS_FD']))\n"
        "note = json.dumps({'type': 'progress', 'metrics': {'x' * 2000: 1}}).encode()\n"
        "for step in range(5000): line.send(note)\n"
        "os.write(1, b'through\\n')"
    )
    rig.start_python(code)
    wait_until(lambda: rig.log().read_bytes() == b"through\n")
    assert os.path.exists(f"/proc/{rig.pid}")
    assert memory_of(rig.pid)[1] < 40_000
    rig.exited()


def test_a_grandchild_that_still_writes_does_not_delay_the_end(rig: Rig) -> None:
    """A disk slower than the grandchild (here a pipe read slowly) makes the output endless."""
    rig.log().parent.mkdir()
    os.mkfifo(rig.log())
    reader = os.open(rig.log(), os.O_RDWR)
    is_over = threading.Event()

    def read_slowly() -> None:
        while not is_over.wait(0.01):
            os.read(reader, 65536)

    disk = threading.Thread(target=read_slowly)
    disk.start()
    try:
        rig.start("sh", "-c", "yes & sleep 0.1")
        assert rig.exited()["exit_code"] == 0
    finally:
        is_over.set()
        disk.join()
        os.close(reader)


def test_the_time_of_each_part_of_the_output_is_recorded(rig: Rig, tmp_path: Path) -> None:
    go, before = tmp_path / "go", time.time()
    rig.start_python(
        "import os, sys, time\nos.write(1, b'one\\n')\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.02)\nos.write(1, b'two\\n')",
        str(go),
    )
    wait_until(lambda: rig.log().exists() and rig.log().read_bytes() == b"one\n")
    time.sleep(0.2)
    between = time.time()
    go.touch()
    rig.exited()
    times = LogTimes(rig.log())
    first, second = times.at(3), times.at(7)
    assert first is not None
    assert second is not None
    assert before <= first < between <= second <= time.time()
