"""Final copies of a run, after all tasks have ended, and the threads that copy files.

`FinalCopies` copies outputs and TensorBoard files. What cannot be copied does not fail the run: it
gets a note with the command that fetches it. `Threads` gives up work that makes no progress.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TypeVar

from tfcluster.agent.error_text import describe_error
from tfcluster.checkpoints.completeness import find
from tfcluster.checkpoints.copying import CancelledError, SourceChangedError, Stopped
from tfcluster.checkpoints.outputs import Outputs, gather_outputs
from tfcluster.checkpoints.store import Store, deliver
from tfcluster.nodes.task_folders import Folders
from tfcluster.plan.plan import Plan, TaskId
from tfcluster.rundir.paths import RunPaths


@dataclass(slots=True)
class FinalCopies:
    """Of one run; `notes` and `lacks` are what has come of it."""

    plan: Plan
    paths: RunPaths
    store: Store
    folders: Folders
    chief: TaskId
    stopped: Stopped
    """Whether the user does not want to wait for them."""
    doing: Callable[[str], None]
    """Is told what is being copied."""
    notes: list[str] = field(default_factory=list)
    lacks: bool = False
    """Whether something could not be copied."""

    def miss_checkpoints(self, why: str) -> None:
        """The last look at the chief's directory failed."""
        self._miss(f"the last checkpoints of {self.chief} were not gathered: {why}", self._saved_in)

    def note_lack(self) -> None:
        """Of some of what the chief saved it was said already that it was not gathered."""
        self.lacks = True
        if self.folders.is_far(self._node):
            fetch = self._fetch(self._node, self._saved_in)
            self.notes.append(f"what {self.chief} has saved stays on {self._node}: {fetch}")

    def tell_cut(self) -> None:
        """The user did not want to wait."""
        what = "gathering was cut short by Ctrl-C; what is left lies in the tasks' folders"
        self._miss(what, self._saved_in)

    def leave_checkpoints(self) -> None:
        """Where nothing is gathered, what another machine has is all there is."""
        directory = self.folders.checkpoints(self.chief)
        if isinstance(directory, Path):
            return
        with contextlib.suppress(CancelledError, OSError):  # as if there were something
            if not find(directory.scan(stopped=self.stopped), None):
                return
        self.lacks = True
        fetch = self._fetch(self._node, directory.folder)
        self.notes.append(f"checkpoints stay on {self._node}: to fetch them, {fetch}")

    def copy_outputs(self) -> tuple[str, ...]:
        """What the spec's globs name; the files copied."""
        globs, into, stopped = self.plan.checkpoints.outputs, self.paths.outputs, self.stopped
        if not globs:
            return ()
        found = Outputs((), ())
        with self._told("checkpoints.outputs were not all copied", "outputs", self._workdir):
            if self.folders.are_far:
                found = self.folders.bring_outputs(globs, into, stopped=stopped)
            else:
                found = gather_outputs(Path(self.plan.workdir), globs, into, stopped=stopped)
        self.notes += found.notes
        return found.files

    def copy_curves(self) -> None:
        """TensorBoard files of other machines."""
        with self._told("TensorBoard files were not all copied", "TensorBoard files"):
            failed = self.folders.bring_tensorboard(stopped=self.stopped)
            for node, (folder, why) in failed.items():
                what = f"TensorBoard files of {node} were not all copied: {why}"
                self._miss(what, folder, node=node)

    def deliver(self, copied: tuple[str, ...]) -> None:
        """To the folder that the spec names."""
        if (to := self.plan.checkpoints.to) is not None:
            with self._told(f"not everything was copied to checkpoints.to ({to})", "results"):
                folder = self.paths.outputs if copied else None
                deliver(self.store.newest, folder, Path(to), stopped=self.stopped)

    @contextlib.contextmanager
    def _told(self, what: str, doing: str, there: PurePath | None = None) -> Iterator[None]:
        """`what` is said, with the reason, where the block fails."""
        self.doing(doing)
        try:
            yield
        except (CancelledError, SourceChangedError, OSError) as error:
            self._miss(f"{what}: {describe_error(error)}", there)

    def _miss(self, what: str, there: PurePath | None, *, node: str = "") -> None:
        """`there`: the folder of `node`, or of the chief's, in which it lies."""
        self.lacks = True
        name = node or self._node
        if there is not None and self.folders.is_far(name):
            what += f"; what {name} has stays there: {self._fetch(name, there)}"
        self.notes.append(what)

    @property
    def _node(self) -> str:
        return self.plan.task(self.chief).node

    @property
    def _saved_in(self) -> PurePath:
        directory = self.folders.checkpoints(self.chief)
        return directory if isinstance(directory, Path) else directory.folder

    @property
    def _workdir(self) -> PurePath:
        return self.folders.workdir(self.chief)

    def _fetch(self, node: str, folder: PurePath) -> str:
        if self.plan.node(node).container is not None:
            return f"docker cp {self.paths.run_id}-{node}:{folder} ."
        return f"scp -r {node}:{folder} ."


T = TypeVar("T")

SILENCE_S = 120.0
"""Longer than the wait for a host's files (`wire.file_transfer.SILENCE_S`), a part of such work."""
_STEP_S = 5.0


class StalledError(OSError):
    """The work has not moved for too long; its thread may go on for ever."""


class Threads:
    """Those of one run. Its own: asyncio waits for the end of the ones that it lends."""

    def __init__(self, moved: Callable[[], int], *, silence_s: float = SILENCE_S) -> None:
        """`moved` grows while work moves."""
        self._moved, self._silence_s = moved, silence_s
        self._threads = ThreadPoolExecutor(thread_name_prefix="files")

    async def do(self, work: Callable[[], T], what: str) -> T:
        """Return what `work` returns; raises what it raises, and StalledError, which names `what`.

        Counted are short steps: we may have been stopped ourselves (Ctrl-Z).
        """
        under_way = asyncio.get_running_loop().run_in_executor(self._threads, work)
        silent_s, before = 0.0, self._moved()
        step_s = min(_STEP_S, self._silence_s / 4)
        while silent_s < self._silence_s:
            done, _ = await asyncio.wait([under_way], timeout=step_s)
            if done:
                return under_way.result()
            now = self._moved()
            silent_s, before = (silent_s + step_s if now == before else 0.0), now
        under_way.add_done_callback(lambda late: late.cancelled() or late.exception())
        raise StalledError(
            f"{what} has not moved for {self._silence_s:.0f} s: a file system of this machine"
            " stands still"
        )
