"""Processes that end with their benchmark: a folder, an environment, and a mark to find them by.

A launcher's tasks leave its process group and session, and what is measured is also how launchers
fail. So each process here carries a variable that no other has, and when the block ends, also by
Ctrl-C, whoever still carries it is killed.
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
"""No run here takes so long, on however busy a machine."""
_LEFT_OUT = ("TF_CONFIG", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "CI", MARK)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Where one run happens."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid4().hex)

    @property
    def home(self) -> Path:
        """Of tfcluster: its runs are in there."""
        return self.folder / ".home"

    @property
    def sockets(self) -> Path:
        """Of tfcluster: what others of this user keep warm is neither taken up nor ended."""
        return self.folder / ".run"

    @property
    def env(self) -> dict[str, str]:
        """The tasks run this Python, found without asking it; nothing is coloured."""
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
        """Its output goes to the files `stdout` (unless another descriptor is given) and
        `stderr`."""
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
        """When it began and ended, by the monotonic clock that the stubs read too."""
        began = time.monotonic()
        process = self.start(command)
        self.end(process, code=code)
        return began, time.monotonic()

    def end(self, process: subprocess.Popen[bytes], *, code: int = 0) -> None:
        """Wait for it. Raises `Failed` where it does not end, or with another code."""
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
        """Look again and again. Raises `Failed` after a time that nothing takes, and when
        the process that was to bring it about has ended."""
        deadline = time.monotonic() + HANG_S
        while not done():
            has_ended = process is not None and process.poll() is not None
            if time.monotonic() > deadline or (has_ended and not done()):
                raise Failed(f"waited in vain for {what}:\n{self.said()}")
            time.sleep(every_s)

    def said(self) -> str:
        """The end of both outputs."""
        texts = [(self.folder / name).read_text(errors="replace") for name in ("stdout", "stderr")]
        return "\n".join(text[-2000:] for text in texts)

    def processes(self) -> list[psutil.Process]:
        """All that descend from what was started here and live, wherever they have gone."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == self.mark:
                    found.append(process)
        return found


@contextmanager
def sandbox() -> Iterator[Sandbox]:
    """An empty folder, and no process left when the block ends."""
    with tempfile.TemporaryDirectory(prefix="tfc", ignore_cleanup_errors=True) as name:
        box = Sandbox(Path(name))
        box.sockets.mkdir(mode=0o700)
        try:
            yield box
        finally:
            _kill(box)


def lives(pid: int) -> bool:
    """One that has ended and that nobody has asked about does not."""
    with suppress(psutil.Error):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def _kill(box: Sandbox) -> None:
    """Again and again: one that was about to fork is found the next time."""
    deadline = time.monotonic() + 10
    while (left := box.processes()) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(left, timeout=1)
