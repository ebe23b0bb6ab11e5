"""The tasks' own folders, wherever they lie: read from, and filled before a start."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from tfcluster.backends.far_files import FarFiles
from tfcluster.checkpoints import outputs
from tfcluster.checkpoints.copying import Stopped
from tfcluster.checkpoints.outputs import Outputs
from tfcluster.checkpoints.restore import PutBack, fill, put_back, step_of
from tfcluster.checkpoints.source import Source
from tfcluster.checkpoints.store import Gathered
from tfcluster.plan.plan import Plan, TaskId
from tfcluster.run import far
from tfcluster.run.exchange import Exchange
from tfcluster.run.paths import RunPaths
from tfcluster.run.sites import Site


class Folders:
    """Knows each task's folder once its node was reached."""

    def __init__(self, plan: Plan, paths: RunPaths, exchange: Exchange) -> None:
        self._plan, self._paths, self._exchange = plan, paths, exchange
        self._is_over = False
        self._loop = asyncio.get_running_loop()

    @property
    def are_far(self) -> bool:
        """Whether the chief's lie on another machine."""
        return self._site(self._plan.chief).is_remote

    @property
    def any_are_far(self) -> bool:
        """Whether a task's lie on another machine."""
        return any(self._site(task.id).is_remote for task in self._plan.tasks)

    def hurry(self) -> None:
        """No task trains any more: files come home as fast as they can."""
        self._is_over = True

    def checkpoints(self, task: TaskId) -> Path | Source:
        """Where `task` saves."""
        site = self._site(task)
        folder = site.paths.task_checkpoints(task)
        return self._source(task, PurePosixPath(folder)) if site.is_remote else folder

    def bring_outputs(self, globs: Sequence[str], into: Path, *, stopped: Stopped) -> Outputs:
        """What the globs name in the chief's far workdir; blocks. Raises OSError and as
        `Source.copy`."""
        chief = self._plan.chief
        site, node = self._site(chief), self._plan.node(self._plan.task(chief).node)
        source = self._source(chief, PurePosixPath(site.folder(node.workdir)))
        entries = {e.path: e for e in source.scan() if not e.path.endswith("/")}
        found = outputs.matching(entries, globs)
        for path in found.files:
            source.copy(entries[path], into / path, stopped=stopped)
        return found

    def bring_tensorboard(self, *, stopped: Stopped) -> None:
        """The TensorBoard files of far tasks; blocks. Raises as `Source.copy`, but OSError."""
        for task in self._plan.tasks:
            site = self._site(task.id)
            if not site.is_remote:
                continue
            source = self._source(task.id, PurePosixPath(site.paths.tensorboard(task.id)))
            with contextlib.suppress(OSError):  # a lost node's stay with it
                for entry in source.scan():
                    if not entry.path.endswith("/"):
                        target = self._paths.tensorboard(task.id) / entry.path
                        source.copy(entry, target, stopped=stopped)

    def _source(self, task: TaskId, folder: PurePosixPath) -> Source:
        node, loop = self._plan.task(task).node, self._loop

        def files() -> FarFiles:
            try:
                return self._exchange.files(node)
            except KeyError:
                raise OSError(f"{node} is lost") from None

        return far.FarSource(folder, files, loop, lambda: None if self._is_over else far.RATE)

    async def put_back(self, state: Sequence[Gathered], tasks: Iterable[TaskId]) -> PutBack:
        """Make the tasks' folders hold `state`: all here or none, then those elsewhere.

        Raises SourceChangedError, OSError.
        """
        here, there = list[Path](), list[tuple[TaskId, Site]]()
        for task in tasks:
            site = self._site(task)
            if site.is_remote:
                there.append((task, site))
            else:
                here.append(site.paths.task_checkpoints(task))
        if there:
            await self._send(state, there)
        if here:
            return await asyncio.to_thread(put_back, state, here)
        return PutBack(step_of(state), tuple(state), ())

    async def _send(self, state: Sequence[Gathered], tasks: Sequence[tuple[TaskId, Site]]) -> None:
        with tempfile.TemporaryDirectory(prefix=".outgoing-", dir=self._paths.root) as folder:
            await asyncio.to_thread(fill, Path(folder), state)
            files = await asyncio.to_thread(far.tree, Path(folder))
            sending = (
                self._exchange.files(site.node).send_tree(
                    str(site.paths.task_checkpoints(task)), files, keep=False
                )
                for task, site in tasks
            )
            results = await asyncio.gather(*sending, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _site(self, task: TaskId) -> Site:
        return self._exchange.site(self._plan.task(task).node)
