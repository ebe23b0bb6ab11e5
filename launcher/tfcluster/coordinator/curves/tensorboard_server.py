"""TensorBoard on the curves of runs: a process on loopback that ends with the one that started it.

``tfcluster tensorboard`` serves until Ctrl-C, ``up --tensorboard`` as long as the run lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tfcluster.errors import InterpreterError, SetupError
from tfcluster.plans.plan import Plan
from tfcluster.rundir.events import Event, TensorboardStarted, Warned

_LAST_LINES: Final = 5
_URL: Final = re.compile(rb" at (http://\S+)")
_WITHOUT_CURRENT_FOLDER: Final = """
import sys
sys.path[:] = [folder for folder in sys.path if folder]
"""
"""The current folder may have a folder `tensorboard` of the user's."""
_PROBE: Final = f"""{_WITHOUT_CURRENT_FOLDER}
from importlib.util import find_spec
sys.exit(find_spec("tensorboard.main") is None)
"""
_PLUGIN_PROBE: Final = f"""{_WITHOUT_CURRENT_FOLDER}
from importlib.util import find_spec
sys.exit(not (find_spec("xprof") or find_spec("tensorboard_plugin_profile")))
"""
"""The plugin is called xprof since 2025."""
_PROBE_S: Final = 30.0
_END_S: Final = 5.0
_KILLED_S: Final = 1.0
_PROGRAM: Final = f"""{_WITHOUT_CURRENT_FOLDER}
import os, threading

def end_with_starter():
    while os.read(0, 1):
        pass
    os._exit(0)

threading.Thread(target=end_with_starter, daemon=True).start()
os.nice(10)
from tensorboard.main import run_main
run_main()
"""
"""Standard input is a pipe from the starter, which the kernel closes however the starter ends."""


def choose_python(plans: Iterable[Plan]) -> str:
    """Return the path of a Python on this machine that has TensorBoard.

    It is the Python of the tasks, else the one of tfcluster. Raises InterpreterError, with the
    command that installs TensorBoard.
    """
    nodes = [node for plan in plans for node in plan.nodes if node.is_here]
    chosen = [node.interpreter.path for node in nodes if node.interpreter is not None]
    pythons = list(dict.fromkeys([*chosen, sys.executable]))
    for python in pythons:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            command = [python, "-c", _PROBE]
            if not subprocess.run(command, capture_output=True, timeout=_PROBE_S).returncode:
                return python
    raise InterpreterError(
        f"TensorBoard is not installed in {' or '.join(pythons)}",
        fix=f"{pythons[0]} -m pip install tensorboard",
    )


def explain_profiles(python: str) -> str:
    """Return how TensorBoard in this Python is made to show profiles; empty if it does."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = [python, "-c", _PLUGIN_PROBE]
        if not subprocess.run(command, capture_output=True, timeout=_PROBE_S).returncode:
            return ""
    return f"to see profiles in TensorBoard, install its plugin: `{python} -m pip install xprof`"


@contextlib.contextmanager
def common_folder(curves: Sequence[Path]) -> Iterator[Path]:
    """Yield the folder to serve: `curves` itself if it is one, else a folder with a link to each.

    `curves` are paths ``RUN/tensorboard``; the links are called after the runs.
    """
    if len(curves) == 1:
        yield curves[0]
        return
    with tempfile.TemporaryDirectory(prefix="tfcluster-tensorboard-") as folder:
        for path in curves:
            (Path(folder) / path.parent.name).symlink_to(path, target_is_directory=True)
        yield Path(folder)


@contextlib.asynccontextmanager
async def serving(python: str, folder: Path, port: int | None = None) -> AsyncIterator[Server]:
    """Start TensorBoard on `folder`; end it with the block.

    `port`: None for 6006 or the next free one, 0 for any.
    """
    options = ["--logdir", str(folder), "--host", "127.0.0.1", "--load_fast=false"]
    options += ["--reload_interval", "5"]  # seconds
    options += [] if port is None else ["--port", str(port)]
    process = await asyncio.create_subprocess_exec(
        *(python, "-c", _PROGRAM, *options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},  # the GPUs are for the tasks
        start_new_session=True,
    )
    server = Server(process)
    try:
        yield server
    finally:
        await server.close()


class Server:
    """A TensorBoard process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lines: deque[bytes] = deque(maxlen=_LAST_LINES)

    async def url(self) -> str:
        """Return the page's address once TensorBoard serves it.

        Raises SetupError with TensorBoard's last lines if it ends before.
        """
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            if match := _URL.search(line):
                return match[1].decode()
            self._lines.append(line)
        last = b"".join(self._lines).decode(errors="replace").strip()
        raise SetupError(f"TensorBoard does not start: {last}")

    async def wait(self) -> None:
        """Return when TensorBoard has ended."""
        assert self._process.stderr is not None
        while await self._process.stderr.read(1 << 16):
            pass
        await self._process.wait()

    async def close(self) -> None:
        """End TensorBoard: kill its session if it, or a process that it has left, does not end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        for limit_s in (_END_S, _KILLED_S):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    return await self.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def beside_run(
    python: str, curves: Path, put_event: Callable[[Event], None]
) -> AsyncIterator[None]:
    """Serve the curves of a run during the block, and record where; a failure is a warning."""
    async with serving(python, curves) as server:
        announcing = asyncio.create_task(_announce(server, put_event))
        try:
            yield
        finally:
            announcing.cancel()
            await asyncio.wait([announcing])


async def _announce(server: Server, put_event: Callable[[Event], None]) -> None:
    try:
        put_event(TensorboardStarted(url=await server.url()))
    except SetupError as error:
        put_event(Warned(message=str(error)))
    await server.wait()
