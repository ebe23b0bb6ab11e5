"""The memory and processor time of a launcher itself while four workers sleep."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
from benchmarks.harness import Arm, Claim, Failed, Metric, Quantity, Taken
from benchmarks.launchers import LAUNCHERS, Launcher, stubs
from benchmarks.sandbox import Sandbox, sandbox
from benchmarks.stamps import stamps

TASKS = 4
_LAUNCHERS = ("tfcluster", "shell", "torchrun", "honcho")
Look = Callable[[Sequence[psutil.Process]], Taken]


def _own(box: Sandbox, tasks: set[int]) -> list[psutil.Process]:
    """Return the launcher's processes: all that are not tasks."""
    return [process for process in box.processes() if process.pid not in tasks]


def _idle(settle_s: float, look: Look, launcher: Launcher, *, on_terminal: bool = False) -> Taken:
    with sandbox() as box, _drained_terminal() as terminal:
        command = launcher.command(box.folder, stubs(TASKS, "sleep"))
        process = _start_on(terminal, box, command) if on_terminal else box.start(command)
        box.until(lambda: len(stamps(box.folder)) == TASKS, "all tasks")
        time.sleep(settle_s)
        try:
            taken = look(_own(box, {one.pid for one in stamps(box.folder)}))
        except psutil.NoSuchProcess as error:
            raise Failed(f"the launcher was still at work: {error}") from error
        process.terminate()
        process.wait(60)
        return taken


def _start_on(terminal: int, box: Sandbox, command: Sequence[str]) -> subprocess.Popen[bytes]:
    env = box.env | {"TERM": "xterm-256color"}
    del env["NO_COLOR"]
    return subprocess.Popen(
        command, cwd=box.folder, env=env, stdin=terminal, stdout=terminal, stderr=terminal
    )


@contextmanager
def _drained_terminal() -> Iterator[int]:
    user, program = os.openpty()

    def drain() -> None:
        with suppress(OSError):
            while os.read(user, 65536):
                pass

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    yield program
    os.close(program)
    reader.join(5)
    os.close(user)


def _bare_python() -> Taken:
    with sandbox() as box:
        box.start([sys.executable, "-c", "open('up', 'w'); import time; time.sleep(300)"])
        box.until((box.folder / "up").exists, "a bare Python")
        return _memory(box.processes())


def _memory(processes: Sequence[psutil.Process]) -> Taken:
    """Measure memory: resident counts a shared page in each process, PSS divides it among them."""
    return {
        "resident": sum(process.memory_info().rss for process in processes) / 1e6,
        "PSS": sum(process.memory_full_info().pss for process in processes) / 1e6,
    }


def _cpu(watch_s: float, processes: Sequence[psutil.Process]) -> Taken:
    before, began = sum(map(cpu_s, processes)), time.monotonic()
    time.sleep(watch_s)
    used, lasted = sum(map(cpu_s, processes)) - before, time.monotonic() - began
    return {"processor": 100 * used / lasted}


def cpu_s(process: psutil.Process) -> float:
    """Return the processor time in seconds, from the kernel's scheduler, which counts nanoseconds.

    A clock tick would be too coarse: 10 ms are 0.2 % of 5 s.
    """
    try:
        threads = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
        return sum(int(one.read_text().split()[0]) for one in threads) / 1e9
    except (OSError, ValueError):
        user, system, *_ = process.cpu_times()
        return user + system


def memory(*, quick: bool) -> Metric:
    """Return the memory metric.

    It counts coordinator, agent and guard, and everything that a peer starts.
    """
    take = partial(_idle, 0.2 if quick else 1.0, _memory)
    arms = {name: LAUNCHERS[name].arm(take) for name in _LAUNCHERS}
    if not quick:
        arms["a bare Python"] = Arm(_bare_python, "python -c 'time.sleep(300)'")
    return Metric(
        title=f"Memory of the launcher while {TASKS} tasks sleep",
        quantities={"resident": Quantity("MB"), "PSS": Quantity("MB")},
        arms=arms,
        claims=[
            Claim("tfcluster : torchrun", "resident", "tfcluster", "torchrun", 0.4, stretch=0.25),
            Claim("tfcluster : honcho", "resident", "tfcluster", "honcho"),
            Claim("PSS, tfcluster : torchrun", "PSS", "tfcluster", "torchrun"),
        ],
    )


def idle_cpu(*, quick: bool) -> Metric:
    """Return the metric of idle processor time over 5 s, once everything has settled."""
    settle_s, watch_s = (0.5, 1.0) if quick else (3.0, 5.0)
    take = partial(_idle, settle_s, partial(_cpu, watch_s))
    arms = {name: LAUNCHERS[name].arm(take) for name in _LAUNCHERS}
    arms["tfcluster, live view"] = LAUNCHERS["tfcluster"].arm(partial(take, on_terminal=True))
    return Metric(
        title=f"Processor time of the launcher while {TASKS} tasks sleep",
        quantities={"processor": Quantity("% of a core")},
        arms=arms,
        claims=[
            Claim("tfcluster, no terminal", "processor", "tfcluster", at_most=0.3, stretch=0.1),
            Claim("tfcluster, live view", "processor", "tfcluster, live view"),
            Claim("tfcluster : torchrun", "processor", "tfcluster", "torchrun"),
        ],
    )
