"""What a run brings home: the chief's checkpoints while it trains, outputs at its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tfcluster.checkpoints import outputs
from tfcluster.checkpoints.completeness import find
from tfcluster.checkpoints.copying import CancelledError, SourceChangedError
from tfcluster.checkpoints.delivery import deliver
from tfcluster.checkpoints.gatherer import LEAST_GAP_S, Gatherer
from tfcluster.checkpoints.listing import scan
from tfcluster.checkpoints.restore import PutBack, step_of
from tfcluster.checkpoints.store import Gathered, Store
from tfcluster.errors import RunFolderError
from tfcluster.plan.plan import Plan, TaskId
from tfcluster.run import events as ev
from tfcluster.run.events import Event
from tfcluster.run.folders import Folders
from tfcluster.run.paths import RunPaths

_LOOK_EVERY_S = 2.0
_CURVES_EVERY_S = 10.0


class Harvest:
    """Looks into the chief's directory in a thread; `wanted` is false with ``--no-gather``."""

    def __init__(self, plan: Plan, paths: RunPaths, *, wanted: bool = True) -> None:
        self._plan, self._paths = plan, paths
        self._workdir = Path(plan.workdir)
        self._store = Store(paths.checkpoints, keep=plan.checkpoints.keep)
        self._comes_home = plan.checkpoints.dir is None
        self._shared_step: int | None = None
        self._told: dict[str, int] = {}
        self._chief_is_here = any(task.id == plan.chief for task in plan.tasks)
        """Else somebody else starts it, and gathers what it saves."""
        self._gathers = wanted and plan.checkpoints.gather and self._comes_home
        self._chief: TaskId | None = None
        self._gatherer: Gatherer | None = None
        self._folders: Folders
        self._before: outputs.WorkdirBefore | None = None
        self._hurry = asyncio.Event()
        self._chief_is_over = False
        self._is_cut = threading.Event()
        self._complaint = ""
        self._found, self._notes = deque[Event](), deque[str]()
        self.lacks_something = self._lacks = False
        """Whether something could not be brought home in the end."""

    def use(self, folders: Folders) -> None:
        """Where the tasks' folders are; before anything else."""
        self._folders = folders

    def _gatherer_of(self, chief: TaskId) -> Gatherer:
        evaluators = [t.id for t in self._plan.tasks if t.id.job == "evaluator"]
        return Gatherer(
            self._folders.checkpoints(chief),
            self._store,
            followers=map(self._folders.follower, evaluators),
        )

    @property
    def _watched(self) -> Gatherer:
        """That of the chief whose start was ordered."""
        assert self._gatherer is not None
        return self._gatherer

    @property
    def newest_step(self) -> int | None:
        """The step an attempt would start from now; None where it would start from nothing.

        In shared storage it is looked up by `bring_home`.
        """
        return step_of(self._store.state()) if self._comes_home else self._shared_step

    async def put_state_back(self, tasks: Iterable[TaskId]) -> PutBack:
        """Make their directories hold the newest complete state; empty on a fresh start.

        Raises RunFolderError.
        """
        if self._before is None:
            home = self._paths.root.parents[1]
            self._before = await asyncio.to_thread(outputs.remember, self._workdir, ours=home)
        self._chief_is_over = False
        self._folders.have_time()
        wanted, tries = list(tasks), 3
        while True:
            try:
                return await self._folders.put_back(self._store.state(), wanted)
            except (SourceChangedError, OSError) as error:
                # While the others train on, a newer one may have taken the place of the newest.
                if (tries := tries - 1) == 0:
                    raise RunFolderError(
                        f"what was saved cannot be put back: {error}",
                        cure="is the disk full? go on from it: `tfcluster up --resume RUN`",
                    ) from error

    async def bring_home(self, *, others_train: bool = False) -> list[Event]:
        """What the chief of an attempt that has ended saved last, also where nothing is gathered:
        the next attempt starts from it."""
        if not self._comes_home:
            shared, told = self._plan.checkpoints.dir, dict(self._told)
            self._shared_step = await asyncio.to_thread(_newest_step_in, shared, told)
            return []
        if not self._chief_is_here:
            return []
        if not others_train:
            self._folders.hurry()
        await asyncio.to_thread(self._look, self._watched.final_look)
        found, notes = self._take_news()
        return [*found, *(ev.Warned(message=note) for note in notes)]

    def _look(self, look: Callable[[], Sequence[Gathered]]) -> None:
        """Keep what `look` gathers, and what there is to say; a disk that fails ends no run."""
        try:
            self._found.extend(map(self._event, look()))
        except CancelledError:
            pass  # `_finish` says so
        except OSError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                self._notes.append(f"checkpoints cannot be gathered: {error}")
        self._notes.extend(self._watched.take_notes())

    def _take_news(self) -> tuple[list[Event], list[str]]:
        """Also of a look that nobody waited for any more: the run had ended meanwhile."""
        found, notes = list[Event](), list[str]()
        while self._found:
            found.append(self._found.popleft())
        while self._notes:
            notes.append(self._notes.popleft())
        return found, notes

    def heed(self, chief: TaskId) -> None:
        """From now on `chief` is the one whose checkpoints count."""
        if chief != self._chief and self._chief_is_here:
            self._chief, self._gatherer = chief, self._gatherer_of(chief)

    async def follow(self, report: Callable[[Event], None]) -> None:
        """Gather until cancelled, every two seconds and soon after a task said that it saved;
        TensorBoard files of other machines less often."""
        if self._gathers and self._chief_is_here:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_checkpoints(report))
                group.create_task(self._follow_curves())

    async def _follow_checkpoints(self, report: Callable[[Event], None]) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._hurry.wait()
                    await asyncio.sleep(LEAST_GAP_S)
            self._hurry.clear()
            look = self._watched.final_look if self._chief_is_over else self._watched.look
            await asyncio.to_thread(self._look, look)
            found, notes = self._take_news()
            for event in [*found, *(ev.Warned(message=note) for note in notes)]:
                report(event)

    async def _follow_curves(self) -> None:
        bring = partial(self._folders.bring_tensorboard, stopped=self._is_cut.is_set)
        while True:
            await asyncio.sleep(_CURVES_EVERY_S)
            with contextlib.suppress(SourceChangedError, CancelledError, OSError):
                await asyncio.to_thread(bring)

    def saved(self, path: str, step: int | None, at_ns: int | None = None) -> None:
        """The chief said that it saved."""
        if step is not None:
            self._told[path] = step
        if self._gatherer is not None:
            self._gatherer.saved(path, step, at_ns=at_ns)
        self._hurry.set()

    def chief_left(self) -> None:
        """The chief has ended: what it saved last is whole, and an evaluator waits for it."""
        self._chief_is_over = True
        self._hurry.set()

    def cancel(self) -> None:
        """Cut the last copies short: the user does not want to wait for them."""
        self._is_cut.set()
        if self._gatherer is not None:
            self._gatherer.cancel()

    @property
    def needs_agents(self) -> bool:
        """Whether what is left can only come home while the agents live."""
        return self._gatherer is not None and self._folders.any_are_far

    async def finish(self) -> list[Event]:
        """Bring home what is left, after the last task has ended, and before the agents go
        where `needs_agents`."""
        self._folders.hurry()
        if not self._chief_is_here:
            return []
        self.lacks_something = True  # also where this breaks
        events = await asyncio.to_thread(self._finish)
        self.lacks_something = self._lacks
        return events

    def _finish(self) -> list[Event]:
        self._look(self._watched.final_look if self._gathers else tuple)
        events, notes = self._take_news()
        self._lacks = bool(notes)
        notes += [*self._stays_there(), *self._gather_outputs()]
        if self._is_cut.is_set():
            self._lacks = True
            notes.append(
                "gathering was cut short by Ctrl-C; what is left lies in the tasks' folders"
            )
        return events + [ev.Warned(message=note, closing=True) for note in notes]

    def _stays_there(self) -> list[str]:
        """Where nothing is gathered, what another machine has is all there is."""
        if self._gathers or not self._comes_home or self._chief is None:
            return []
        directory = self._folders.checkpoints(self._chief)
        if isinstance(directory, Path):
            return []
        with contextlib.suppress(CancelledError, OSError):  # as if there were something
            if not find(directory.scan(stopped=self._is_cut.is_set), None):
                return []
        self._lacks = True
        node = self._plan.node(self._plan.task(self._chief).node)
        name, command = node.name, "scp -r"
        if node.container is not None:
            name, command = f"{self._paths.run_id}-{node.name}", "docker cp"
        where = f"{name}:{directory.folder}"
        return [f"checkpoints stay on {node.name}: to fetch them, {command} {where} ."]

    def _gather_outputs(self) -> list[str]:
        wanted, notes, copied = self._plan.checkpoints, list[str](), tuple[str, ...]()
        stopped = self._is_cut.is_set
        try:
            if wanted.outputs:
                found = self._bring_outputs()
                notes, copied = list(found.notes), found.files
            if self._gathers:
                self._folders.bring_tensorboard(stopped=stopped)
            if wanted.to is not None:
                folder = self._paths.outputs if copied else None
                deliver(self._store.newest, folder, Path(wanted.to), stopped=stopped)
        except (CancelledError, SourceChangedError, OSError) as error:
            self._lacks = True
            notes.append(f"not everything was copied: {error}")
        if self._before is not None and self._store.newest is None and wanted.gather:
            notes += filter(None, [outputs.news(self._before, gathered=copied)])
        return notes

    def _bring_outputs(self) -> outputs.Outputs:
        globs, into, stopped = self._plan.checkpoints.outputs, self._paths.outputs, self._is_cut
        if self._folders.are_far:
            return self._folders.bring_outputs(globs, into, stopped=stopped.is_set)
        return outputs.gather_outputs(self._workdir, globs, into, stopped=stopped.is_set)

    def held(self) -> list[dict[str, Any]]:
        """What is at home, oldest first, as ``state.json`` lists it."""
        return [self._event(one).to_json() | {"bytes": one.bytes} for one in self._store.held]

    def _event(self, gathered: Gathered) -> ev.CheckpointGathered:
        path = str(gathered.path.relative_to(self._paths.root))
        return ev.CheckpointGathered(path=path, step=gathered.step, kind=str(gathered.kind))


def _newest_step_in(shared: str | None, told: Mapping[str, int]) -> int | None:
    """The step of the newest whole checkpoint in storage that all tasks share.

    What the chief told of a path (`told`, oldest first) counts more than its name, and is all
    there is where the storage is no mount.
    """
    if shared is None or not os.path.isdir(shared):
        return [*told.values()][-1] if told else None
    found = find(scan(Path(shared)), None)
    newest = max(found, key=lambda checkpoint: checkpoint.saved_ns, default=None)
    if newest is None:
        return None
    return told.get(str(Path(shared) / newest.path), newest.step)
