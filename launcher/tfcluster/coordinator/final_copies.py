"""Final copies of a run, after all tasks have ended, and the threads that copy files.

What cannot be copied does not fail the run: it gets a note with the command that fetches it.
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
from tfcluster.checkpoints.copying import CancelledError, Source, SourceChangedError, Stopped
from tfcluster.checkpoints.outputs import Outputs, describe_damage, gather_outputs
from tfcluster.checkpoints.store import Store, deliver
from tfcluster.nodes.task_folders import TaskFolders
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.rundir.paths import RunPaths

T = TypeVar("T")
SILENCE_S = 120.0
"""Longer than `RemoteFiles` waits for a host's files, which is part of such work."""
_STEP_S = 5.0


@dataclass(slots=True)
class FinalCopies:
    """The final copies of one run. Methods block, and are for a thread beside the loop."""

    plan: Plan
    paths: RunPaths
    store: Store
    folders: TaskFolders
    chief: TaskId
    stopped: Stopped
    """True if the user has cancelled the copies."""
    show: Callable[[str], None]
    """Called with what is being copied."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the user."""
    is_incomplete: bool = False
    """True if something could not be copied."""

    def run(self, missed: str, *, gathers: bool, has_notes: bool, stay: bool) -> tuple[str, ...]:
        """Copy all but checkpoints; return the paths of the outputs.

        `missed`: why the last checkpoints were not gathered, or ""; `has_notes`: some of them were
        reported so before; `stay`: none are gathered, so they stay where the chief saved them.
        """
        directory = self.folders.checkpoints(self.chief)
        folder = _path_of(directory)
        if missed:
            note = f"the last checkpoints of {self.chief} were not gathered: {missed}"
            self._note_missing(note, folder)
        elif stay and not isinstance(directory, Path) and self._may_have_any(directory):
            self._note_location(folder)
        if has_notes:
            self.is_incomplete = True
            if self.folders.is_remote(self._node):
                self._note_location(folder)
        outputs = self._copy_outputs()
        if gathers:
            self._copy_tensorboard()
        self._deliver(outputs)
        if self.stopped():
            note = "gathering was stopped by Ctrl-C; files not yet copied are in the tasks' folders"
            self._note_missing(note, folder)
        return outputs

    def _may_have_any(self, directory: Source) -> bool:
        with contextlib.suppress(CancelledError, OSError):
            return bool(find(directory.scan(stopped=self.stopped), None))
        return True

    def _note_location(self, folder: PurePath) -> None:
        self.is_incomplete = True
        fetch = self.folders.fetch_command(self._node, folder)
        self.notes.append(f"the checkpoints of {self.chief} are on {self._node}: {fetch}")

    def _copy_outputs(self) -> tuple[str, ...]:
        """Copy the files that ``checkpoints.outputs`` matches; return their paths."""
        globs, into, stopped = self.plan.checkpoints.outputs, self.paths.outputs, self.stopped
        if not globs:
            return ()
        outputs, workdir = Outputs((), ()), self.folders.workdir(self.chief)
        failure = "checkpoints.outputs were not all copied"
        with self._noting_failure(failure, "outputs", _path_of(workdir)):
            outputs = gather_outputs(workdir, globs, into, stopped=stopped)
            self.notes += describe_damage(into, outputs.files, stopped=stopped)
        self.notes += outputs.notes
        return outputs.files

    def _copy_tensorboard(self) -> None:
        """Copy the TensorBoard files of other machines."""
        with self._noting_failure("TensorBoard files were not all copied", "TensorBoard files"):
            failed = self.folders.fetch_tensorboard(stopped=self.stopped)
            for node, (folder, why) in failed.items():
                note = f"TensorBoard files of {node} were not all copied: {why}"
                self._note_missing(note, folder, node=node)

    def _deliver(self, copied: tuple[str, ...]) -> None:
        """Copy the results to the folder ``checkpoints.to``; `copied`: the gathered outputs."""
        if (to := self.plan.checkpoints.to) is not None:
            failure = f"not everything was copied to checkpoints.to ({to})"
            with self._noting_failure(failure, "results"):
                folder = self.paths.outputs if copied else None
                deliver(self.store.newest, folder, Path(to), stopped=self.stopped)

    @contextlib.contextmanager
    def _noting_failure(
        self, failure: str, files: str, folder: PurePath | None = None
    ) -> Iterator[None]:
        """Show `files` is being copied; if the block fails, note `failure` and the reason."""
        self.show(files)
        try:
            yield
        except (CancelledError, SourceChangedError, OSError) as error:
            self._note_missing(f"{failure}: {describe_error(error)}", folder)

    def _note_missing(self, note: str, folder: PurePath | None, *, node: str = "") -> None:
        """Note `note`, with the command that fetches `folder` from `node` (the chief's if "")."""
        self.is_incomplete = True
        name = node or self._node
        if folder is not None and self.folders.is_remote(name):
            note += f"; the files are still on {name}: {self.folders.fetch_command(name, folder)}"
        self.notes.append(note)

    @property
    def _node(self) -> str:
        return self.plan.task(self.chief).node


def _path_of(place: Path | Source) -> PurePath:
    return place if isinstance(place, Path) else place.folder


class StalledError(OSError):
    """The work has made no progress for too long; its thread may never end."""


class FileThreads:
    """The threads of one run that copy files.

    Not asyncio's own threads: asyncio waits for their end, and these may never end.
    """

    def __init__(self, progress: Callable[[], int], *, silence_s: float = SILENCE_S) -> None:
        """Make the threads; `progress` returns a number that grows while work goes on."""
        self._progress, self._silence_s = progress, silence_s
        self._threads = ThreadPoolExecutor(thread_name_prefix="files")
        self.is_stalled = False
        """True if the last work was given up."""

    def close(self) -> None:
        """Let the threads end; those whose work never ends are not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[], T], what: str) -> T:
        """Return what `work` returns; raises what it raises, and StalledError, which names `what`.

        Time is counted in short steps, because this process may have been stopped (Ctrl-Z).
        """
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        silent_s, before = 0.0, self._progress()
        step_s = min(_STEP_S, self._silence_s / 4)
        while silent_s < self._silence_s:
            done, _ = await asyncio.wait([future], timeout=step_s)
            if done:
                self.is_stalled = False
                return future.result()
            now = self._progress()
            silent_s, before = (silent_s + step_s if now == before else 0.0), now
        self.is_stalled = True
        future.add_done_callback(lambda late: late.cancelled() or late.exception())
        raise StalledError(
            f"{what} has made no progress for {self._silence_s:.0f} s: a file system of this"
            " machine does not respond"
        )
