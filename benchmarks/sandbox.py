"""A sandbox for a benchmark run: a folder, an environment, and no process that outlives it.

A launcher's tasks leave its process group and session, and some metrics make launchers fail. So
each process here has a unique variable in its environment. When the block ends, also by Ctrl-C,
every process that has this variable is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import psutil
from benchmarks.harness import Failed

TFCLUSTER = str(Path(sys.executable).with_name("tfcluster"))
MARK = "TFCLUSTER_BENCHMARK"
HANG_S = 300.0
"""The limit for any wait; no run takes so long, even on a busy machine."""
_LEFT_OUT = ("TF_CONFIG", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "CI", MARK)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The folder and the environment of one run."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid4().hex)

    @property
    def home(self) -> Path:
        """The home of tfcluster, which contains its runs."""
        return self.folder / ".home"

    @property
    def sockets(self) -> Path:
        """The folder of tfcluster's sockets; this user's other warm preloaders stay untouched."""
        return self.folder / ".run"

    @property
    def env(self) -> dict[str, str]:
        """The environment: tasks find this Python through it, and nothing is coloured."""
        kept = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
        return kept | {
            "TFCLUSTER_HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.sockets),
            "VIRTUAL_ENV": sys.prefix,
            "NO_COLOR": "1",
            MARK: self.mark,
        }

    def start(
        self,
        command: Sequence[str],
        *,
        stdout: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command with its output in the files `stdout` and `stderr`.

        If `stdout` is given, its output goes to this descriptor instead.
        """
        with (self.folder / "stdout").open("wb") as out, (self.folder / "stderr").open("wb") as err:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.env | dict(env or {}),
                stdin=subprocess.DEVNULL,
                stdout=out if stdout is None else stdout,
                stderr=err,
                start_new_session=True,
            )

    def run(self, command: Sequence[str], *, code: int = 0) -> tuple[float, float]:
        """Run a command; return when it began and ended, by the stubs' monotonic clock."""
        began = time.monotonic()
        process = self.start(command)
        self.end(process, code=code)
        return began, time.monotonic()

    def end(self, process: subprocess.Popen[bytes], *, code: int = 0) -> None:
        """Wait for its end. Raises `Failed` if it hangs or exits with another code."""
        try:
            got = process.wait(HANG_S)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{process.args!r} hangs:\n{self.said()}") from error
        if got != code:
            raise Failed(f"{process.args!r} ended with {got}:\n{self.said()}")

    def until(
        self,
        done: Callable[[], bool],
        what: str,
        *,
        process: subprocess.Popen[bytes] | None = None,
        every_s: float = 0.005,
    ) -> None:
        """Poll until `done`. Raises `Failed` after HANG_S, or when `process` has ended before."""
        deadline = time.monotonic() + HANG_S
        while not done():
            has_ended = process is not None and process.poll() is not None
            if time.monotonic() > deadline or (has_ended and not done()):
                raise Failed(f"gave up waiting for {what}:\n{self.said()}")
            time.sleep(every_s)

    def said(self) -> str:
        """Return the end of both outputs."""
        texts = [(self.folder / name).read_text(errors="replace") for name in ("stdout", "stderr")]
        return "\n".join(text[-2000:] for text in texts)

    def processes(self) -> list[psutil.Process]:
        """Return all live descendants of what was started here, in any session or group."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == self.mark:
                    found.append(process)
        return found


@contextmanager
def sandbox() -> Iterator[Sandbox]:
    """Yield a sandbox with an empty folder; at the end of the block, kill all its processes."""
    with tempfile.TemporaryDirectory(prefix="tfc", ignore_cleanup_errors=True) as name:
        box = Sandbox(Path(name))
        box.sockets.mkdir(mode=0o700)
        try:
            yield box
        finally:
            _kill(box)


def lives(pid: int) -> bool:
    """Return whether a process lives; a zombie does not."""
    with suppress(psutil.Error):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def _kill(box: Sandbox) -> None:
    """Kill all its processes repeatedly, since one may fork just before it is killed."""
    deadline = time.monotonic() + 10
    while (left := box.processes()) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(left, timeout=1)
