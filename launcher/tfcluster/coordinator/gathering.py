"""What a run brings home: the chief's checkpoints while it trains, outputs at its end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tfcluster.agent import budgets
from tfcluster.agent.error_text import describe_error
from tfcluster.checkpoints import outputs
from tfcluster.checkpoints.completeness import Newest
from tfcluster.checkpoints.copying import CancelledError, SourceChangedError
from tfcluster.checkpoints.gatherer import LEAST_GAP_S, Gatherer
from tfcluster.checkpoints.restore import PutBack, newest_in, newest_of, newest_reported
from tfcluster.checkpoints.store import Gathered, Store
from tfcluster.coordinator.final_copies import FinalCopies, StalledError, Threads
from tfcluster.errors import RunFolderError
from tfcluster.nodes.task_folders import Folders
from tfcluster.plan.plan import Plan, TaskId
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event, Gathering
from tfcluster.rundir.paths import RunPaths
from tfcluster.wire.file_sending import FilesStalledError

_LOOK_EVERY_S = 2.0
_CURVES_EVERY_S = 10.0
_IS_IT_FULL = "is the disk full?"


class RunGathering:
    """Looks into the chief's directory in a thread; `wanted` is false with ``--no-gather``."""

    def __init__(self, plan: Plan, paths: RunPaths, *, wanted: bool = True) -> None:
        self._plan, self._paths = plan, paths
        self._workdir = Path(plan.workdir)
        self._store = Store(paths.checkpoints, keep=plan.checkpoints.keep)
        self._comes_home = plan.checkpoints.dir is None
        self._shared = Newest()
        self._told: dict[str, int] = {}
        self._chief_is_here = any(task.id == plan.chief for task in plan.tasks)
        """Else somebody else starts it, and gathers what it saves."""
        self._gathers = wanted and plan.checkpoints.gather and self._comes_home
        self._chief: TaskId | None = None
        self._gatherer: Gatherer | None = None
        """Of the chief; None until tasks were ordered to start, so nothing can be gathered."""
        self._is_filling = False
        """Whether the chief's directory is being filled: what is there is no news."""
        self._is_settled = False
        """Whether the state is settled from which the next attempt starts: what appears in the
        chief's directory from then on, of a task that was given up, is not gathered."""
        self._folders: Folders
        self._before: outputs.WorkdirBefore | None = None
        self._hurry = asyncio.Event()
        self._chief_is_over = False
        self._is_cut = threading.Event()
        self._complaint = self._awaited = ""
        self._beats, self._threads = 0, Threads(self._moved)
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
    def newest(self) -> Newest:
        """What an attempt would start from now; in shared storage `bring_home` looks it up."""
        return newest_of(self._store.state()) if self._comes_home else self._shared

    async def put_state_back(self, tasks: Iterable[TaskId]) -> PutBack:
        """Make their directories hold the newest complete state; empty on a fresh start.

        Raises RunFolderError.
        """
        if self._before is None:
            look = partial(outputs.list_before, self._workdir, home=self._paths.root.parents[1])
            try:
                self._before = await self._threads.do(look, "the look at the working directory")
            except OSError as error:
                raise RunFolderError(
                    describe_error(error), fix=f"is {self._workdir} there?"
                ) from error
        self._chief_is_over = False
        self._folders.have_time()
        wanted = list(tasks)
        self._is_filling = self._chief in wanted
        try:
            return await self._put_back(wanted)
        finally:
            self._is_filling = False

    async def _put_back(self, tasks: Sequence[TaskId]) -> PutBack:
        tries = 3
        while True:
            try:
                return await self._folders.put_back(self._store.state(), tasks)
            except (SourceChangedError, OSError) as error:
                # While the others train on, a newer one may have taken the place of the newest.
                is_stalled = isinstance(error, FilesStalledError)
                if (tries := tries - 1) == 0 or is_stalled:
                    look = "look at the disk and the mounts there" if is_stalled else _IS_IT_FULL
                    raise RunFolderError(
                        f"what was saved cannot be put back: {describe_error(error)}",
                        fix=f"{look}; then go on from it: `tfcluster up --resume RUN`",
                    ) from error

    async def bring_home(self, *, others_train: bool = False) -> list[Event]:
        """What the chief of an attempt that has ended saved last, also where nothing is gathered:
        the next attempt starts from it."""
        if not self._comes_home:
            shared, told = self._plan.checkpoints.dir, dict(self._told)
            try:
                look = partial(newest_in, shared, told)
                self._shared = await self._threads.do(look, "the look at it")
            except OSError as error:
                self._shared = newest_reported(told)
                why = f"checkpoints.dir cannot be read: {describe_error(error)}"
                return [ev.Warned(message=why)]
            return []
        if not self._chief_is_here:
            return []
        if not others_train:
            self._folders.hurry()
        self._await("checkpoints")
        await self._look_patiently(is_final=True)
        self._await("")
        self._is_settled = not others_train
        found, notes = self._take_news()
        return [*found, *(ev.Warned(message=note) for note in notes)]

    def _look(self, *, is_final: bool) -> str:
        """Gather what is new in the chief's directory, and note what there is to say; why that
        was not possible, or "".

        An attempt can end before its tasks were started, and then nothing is new. A disk that
        fails ends no run.
        """
        gatherer, why = self._gatherer, ""
        if gatherer is None or self._is_filling:
            return why
        try:
            found = gatherer.gather_last() if is_final else gatherer.gather()
            self._found.extend(map(self._event, found))
        except CancelledError:
            pass  # `_finish` says so
        except OSError as error:
            why = describe_error(error)
        self._notes.extend(gatherer.take_notes())
        return why

    async def _look_patiently(self, *, is_final: bool) -> None:
        look = partial(self._look, is_final=is_final)
        try:
            self._complain(await self._threads.do(look, "the gathering of checkpoints"))
        except StalledError as error:
            self._complain(describe_error(error))

    def _complain(self, why: str) -> None:
        """Of a look that failed, once until another reason comes."""
        if why and why != self._complaint:
            self._notes.append(f"checkpoints cannot be gathered: {why}")
        self._complaint = why

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
        self._is_settled = False
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
            if not self._is_settled:
                await self._look_patiently(is_final=self._chief_is_over)
            found, notes = self._take_news()
            for event in [*found, *(ev.Warned(message=note) for note in notes)]:
                report(event)

    async def _follow_curves(self) -> None:
        bring = partial(self._folders.bring_tensorboard, stopped=self._is_stopped)
        while True:
            await asyncio.sleep(_CURVES_EVERY_S)
            with contextlib.suppress(SourceChangedError, CancelledError, OSError):
                await self._threads.do(bring, "the copying of TensorBoard files")

    def saved(self, path: str, step: int | None, at_ns: int | None = None) -> None:
        """The chief said that it saved."""
        if step is not None:
            self._told.pop(path, None)  # the newest last
            self._told[path] = step
            if len(self._told) > budgets.TOLD_CHECKPOINTS:
                del self._told[next(iter(self._told))]
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
        try:
            events = await self._threads.do(self._finish, "the last copying")
        except StalledError as error:
            self._await("")
            events, notes = self._take_news()
            return events + [
                ev.Warned(message=n, closing=True) for n in (*notes, describe_error(error))
            ]
        self.lacks_something = self._lacks
        return events

    def _finish(self) -> list[Event]:
        last = FinalCopies(
            self._plan,
            self._paths,
            self._store,
            self._folders,
            self._chief or self._plan.chief,
            self._is_stopped,
            self._await,
        )
        if self._gathers:
            self._await("checkpoints")
            if why := self._look(is_final=True):
                last.miss_checkpoints(why)
        elif self._comes_home and self._chief is not None:
            last.leave_checkpoints()
        events, notes = self._take_news()
        if notes:
            last.note_lack()
        copied = last.copy_outputs()
        if self._gathers:
            last.copy_curves()
        last.deliver(copied)
        if self._is_cut.is_set():
            last.tell_cut()
        self._await("")
        notes += [*last.notes, *self._unnamed_news(copied)]
        self._lacks = last.lacks
        return events + [ev.Warned(message=note, closing=True) for note in notes]

    def _unnamed_news(self, copied: Sequence[str]) -> list[str]:
        """Files that a script left where nobody asked for them, of a run without a checkpoint."""
        is_wanted = self._plan.checkpoints.gather and self._store.newest is None
        if self._before is None or not is_wanted:
            return []
        return list(filter(None, [outputs.describe_new_files(self._before, gathered=copied)]))

    def _is_stopped(self) -> bool:
        """Is asked with each piece of a file."""
        self._beats += 1
        return self._is_cut.is_set()

    def _moved(self) -> int:
        return self._beats + (self._gatherer.beats if self._gatherer is not None else 0)

    def _await(self, what: str) -> None:
        """The run waits for `what` to be copied; "": for nothing any more."""
        self._awaited = what

    def gathering(self) -> dict[str, Any] | None:
        """What the run waits for, for views: what, node, bytes, of; None where for nothing."""
        if not (what := self._awaited):
            return None
        facts: dict[str, Any] = {"what": what}
        node = self._plan.task(self._chief or self._plan.chief).node
        if self._folders.is_far(node):
            facts["node"] = node
        if what == "checkpoints" and self._gatherer is not None:
            facts["bytes"], facts["of"] = self._gatherer.progress()
        return facts

    def held(self) -> list[dict[str, Any]]:
        """What is at home, oldest first, as ``state.json`` lists it."""
        return [self._event(one).to_json() | {"bytes": one.bytes} for one in self._store.held]

    def _event(self, gathered: Gathered) -> ev.CheckpointGathered:
        path = str(gathered.path.relative_to(self._paths.root))
        return ev.CheckpointGathered(
            path=path, step=gathered.step, save=gathered.save, kind=str(gathered.kind)
        )


_SHOW_EVERY_S = 1.0
_TOLD_AFTER, _TOLD_EVERY = 5, 30
"""Looks: what is over soon is no news, and a log of a build machine wants few lines."""


async def show(
    look: Callable[[], Mapping[str, Any] | None],
    note: Callable[[Mapping[str, Any] | None], None],
    tell: Callable[[Event], None],
) -> None:
    """Until cancelled: `note` what `look` sees each second, and `tell` of a long wait."""
    looks, before = 0, None
    while True:
        await asyncio.sleep(_SHOW_EVERY_S)
        now = look()
        if now != before:
            note(now)
        looks, before = looks + 1 if now else 0, now
        if now and looks % _TOLD_EVERY == _TOLD_AFTER:
            tell(Gathering(**now))
