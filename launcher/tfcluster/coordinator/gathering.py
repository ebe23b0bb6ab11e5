"""Gathering of a run: the chief's checkpoints while it trains, and all else at its end.

What cannot be copied does not fail the run: it gets a note with the command that fetches it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha512
from pathlib import Path, PurePath
from posixpath import basename
from typing import Any, Final, TypeVar

from tfcluster.agent import budgets
from tfcluster.agent.catalogue import Evaluated, Saved
from tfcluster.agent.error_text import describe_error, reason_of
from tfcluster.checkpoints import outputs
from tfcluster.checkpoints.copying import CancelledError, Source, SourceChangedError, Stopped, scan
from tfcluster.checkpoints.gatherer import LEAST_GAP_S, Gatherer
from tfcluster.checkpoints.outputs import Outputs, describe_damage, gather_outputs
from tfcluster.checkpoints.recognition import Checkpoint, Newest, find, oldest_first
from tfcluster.checkpoints.store import Gathered, Store, best_of, deliver, newest_of
from tfcluster.errors import RunFolderError, SetupError
from tfcluster.nodes.task_folders import Follower, TaskFolders
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event
from tfcluster.rundir.paths import RunPaths
from tfcluster.wire.file_transfer import FilesStalledError

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
        self.notes.append(f"the checkpoints of {self.chief} are on {self._node}: `{fetch}`")

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
            note += f"; the files are still on {name}: `{self.folders.fetch_command(name, folder)}`"
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


NOTHING: Final = "nothing"
"""`RunGathering.mark_newest` where nothing was saved."""
_STOPPED = "gathering was stopped"
_GATHER_EVERY_S = 2.0
_TENSORBOARD_EVERY_S = 10.0
_PUT_BACK_TRIES = 3


class RunGathering:
    """The gathering of one run in a thread; before an attempt it puts the newest state back."""

    def __init__(
        self, plan: Plan, paths: RunPaths, *, enabled: bool = True, keeps_files: bool = True
    ) -> None:
        """Prepare the gathering.

        `enabled` is false with ``--no-gather``. Without `keeps_files` nothing is copied at the end,
        and nothing that the tasks have saved stays on other machines.
        """
        self._plan, self._paths = plan, paths
        self._workdir = Path(plan.workdir)
        self._store = Store(paths.checkpoints, keep=plan.checkpoints.keep)
        self._is_shared = plan.checkpoints.dir is not None
        """True if tasks save to ``checkpoints.dir``, which is not gathered."""
        self._shared_newest = Newest()
        self._reported_saves: dict[str, int] = {}
        """Path of a checkpoint that the chief reported → its step, the newest last."""
        self._runs_chief = any(task.id == plan.chief for task in plan.tasks)
        """True if this run starts the chief; otherwise another machine gathers its checkpoints."""
        self._gathers = enabled and plan.checkpoints.gather and not self._is_shared
        self._keeps_files = keeps_files
        self._chief: TaskId | None = None
        self._gatherer: Gatherer | None = None
        """The chief's gatherer; None until tasks were ordered to start."""
        self._is_filling = False
        """True if the chief's directory is being filled with the state to start from."""
        self._is_settled = False
        """True once the state that the next attempt starts from is settled. A task that was given
        up may still save after that: its checkpoints are not gathered."""
        self._folders: TaskFolders
        self._before: outputs.WorkdirBefore | None = None
        self._is_due, self._has_gathered = asyncio.Event(), asyncio.Event()
        self._followers: dict[TaskId, Follower] = {}
        self._chief_is_over = False
        self._is_cancelled = threading.Event()
        self._salvaging: asyncio.Task[str] | None = None
        self._problem = self._awaited = self._missed = ""
        """`_awaited`: what the run waits for to be copied; `_missed`: why the last gathering after
        a chief's end failed."""
        self._beats, self._threads = 0, FileThreads(self._moved)
        self._found, self._notes = deque[Event](), deque(map(str, self._store.damaged))
        self.is_incomplete = False
        """True if something could not be copied in the end."""
        self.missed = ""
        """The reason why the newest checkpoint was not gathered in the end; "" if it was."""

    def use(self, folders: TaskFolders) -> None:
        """Set the tasks' folders; to be called before anything else."""
        self._folders = folders

    @property
    def is_gathering(self) -> bool:
        """True if the chief's checkpoints are copied while it trains."""
        return self._gathers and self._runs_chief

    @property
    def newest(self) -> Newest:
        """The state an attempt would start from now; for a shared directory, the one that
        `gather_latest` found."""
        return self._shared_newest if self._is_shared else newest_of(self._store.state())

    def mark_newest(self) -> str:
        """Return what differs once a newer checkpoint is saved; empty if nobody can tell.

        It is the step, or the contents where no step is known. Storage that is not mounted here,
        or that has no file of a known form, says nothing.
        """
        if self._is_shared:
            return self._mark_shared(Path(self._plan.checkpoints.dir or ""))
        state = self._store.state()
        if (step := newest_of(state).step) is not None:
            return f"step {step}"
        digests = sorted(digest for gathered in state for digest in gathered.digests)
        return sha512("".join(digests).encode()).hexdigest()[:16] if digests else NOTHING

    def _mark_shared(self, folder: Path) -> str:
        try:
            step = _newest_in(str(folder), self._reported_saves).step
            is_empty = folder.is_dir() and not any(folder.iterdir())
        except OSError:
            return ""
        return f"step {step}" if step is not None else NOTHING if is_empty else ""

    async def put_state_back(self, tasks: Iterable[TaskId]) -> int | None:
        """Make the tasks' directories hold the newest complete state; nothing on a fresh start.

        Return the value of TFCLUSTER_RESTORED_STEP; None on a fresh start or if it is unknown.
        Raises RunFolderError.
        """
        if self._before is None:
            ignored = [self._paths.root.parents[1], Path(self._plan.checkpoints.dir or "/")]
            remember = partial(outputs.list_before, self._workdir, ignored=ignored)
            try:
                self._before = await self._threads.run(
                    remember, "the listing of the working directory"
                )
            except OSError as error:
                raise RunFolderError(
                    describe_error(error), fix=f"check that {self._workdir} exists"
                ) from error
        self._chief_is_over = False
        self._folders.limit_speed()
        to_fill = list(tasks)
        self._is_filling = self._chief in to_fill
        try:
            return await self._put_back(to_fill)
        finally:
            self._is_filling = False
            for task in self._followers.keys() & set(to_fill):
                self._followers[task].forget()
                self._has_gathered.set()

    async def _put_back(self, tasks: Sequence[TaskId]) -> int | None:
        tries = 0
        while True:
            try:
                return await self._folders.put_back(self._store.state(), tasks)
            except (SourceChangedError, OSError) as error:
                if await self._set_aside_damaged():
                    continue
                # While the others train, a newer checkpoint may replace the newest one: try again.
                tries += 1
                is_stalled = isinstance(error, FilesStalledError)
                if tries == _PUT_BACK_TRIES or is_stalled:
                    place = "and mounts of that machine" if is_stalled else "for free space"
                    raise RunFolderError(
                        f"the saved state cannot be restored: {describe_error(error)}",
                        fix=f"check the disks {place}, then `tfcluster up --resume RUN`",
                    ) from error

    async def _set_aside_damaged(self) -> bool:
        """Set aside gathered checkpoints that are damaged; return whether there were any.

        The chief's folder may still have them, intact.
        """
        gatherer = self._gatherer
        set_aside = (gatherer or self._store).set_aside_damaged
        try:
            damaged = await self._threads.run(set_aside, "the check of checkpoints")
            self._notes.extend(map(str, damaged))
        except StalledError:
            return False
        if damaged:
            self._note_problem(await self._gather(may_be_new=True))
        return bool(damaged)

    async def gather_latest(self, *, others_train: bool = False) -> list[Event]:
        """Gather what the chief saved last, which the next attempt starts from.

        To be called when the chief has ended, even with ``--no-gather``; returns the events to
        record. `others_train`: only the chief restarts, so the copying must not slow the others.
        """
        if self._is_shared:
            return await self._find_newest_shared()
        if not self._runs_chief:
            return []
        if not others_train:
            self._folders.use_full_speed()
        self._awaited = "checkpoints"
        self._missed = await self._gather()
        if self._missed and self._is_chief_lost:
            self._missed = await self._salvage()
        else:
            self._note_problem(self._missed)
        self._awaited = ""
        self._is_settled = not others_train
        return self.take_events()

    @property
    def has_missed(self) -> bool:
        """True if the last gathering after a chief's end failed."""
        return bool(self._missed)

    async def gather_missed(self) -> list[Event]:
        """Gather what `gather_latest` could not, now that lost nodes may have new agents.

        To be called before an attempt fills the chief's folder; returns the events to record.
        """
        before, missed = self.newest, self._missed
        capabilities = self._plan.node(self._chief_node).capabilities
        if not capabilities.starts_fresh:
            why = await self._gather(may_be_new=True)
            is_gone = capabilities.loses_files and self.newest == before  # it may be a new one
            missed = why or (missed if is_gone else "")
        self._missed = ""
        self._note_problem(missed)
        events = self.take_events()
        if self.newest != before:
            place = self.newest.name if self.newest.step is None else f"step {self.newest.step}"
            hint = f"{self._chief_node} is back and has kept {place}: the attempt starts from there"
            events.append(ev.Hint(message=hint))
        return events

    async def gather_left(self, chief: TaskId) -> list[Event]:
        """Gather what `chief` has saved under the coordinator before this one, of the same run.

        To be called before the first attempt of this coordinator; returns the events to record.
        """
        if not self.is_gathering:
            return []
        self.follow_chief(chief)
        return await self.gather_missed()

    @property
    def lost_node(self) -> str:
        """The chief's node if that has no agent and has saved what is not gathered; else empty."""
        if self._gatherer is None or not self._gathers or not self._gatherer.misses_newest():
            return ""
        return self._chief_node if self._is_chief_lost else ""

    @property
    def remote_folder(self) -> str | None:
        """The chief's checkpoint folder if that is on another machine."""
        place = self._folders.checkpoints(self._chief or self._plan.chief)
        return None if isinstance(place, Path) else str(place.folder)

    @property
    def _chief_node(self) -> str:
        return self._plan.task(self._chief or self._plan.chief).node

    @property
    def _is_chief_lost(self) -> bool:
        """True if the chief's folder is on a node that has no agent now."""
        return self._folders.is_remote(self._chief_node) and self._folders.is_lost(self._chief_node)

    async def _salvage(self) -> str:
        """Gather from a copy of the folder of a chief whose node is lost; return why it failed."""
        if self._is_cancelled.is_set():
            return _STOPPED
        if self._salvaging is None:
            self._salvaging = asyncio.create_task(self._gather_salvaged())
        try:
            return await self._salvaging
        except asyncio.CancelledError:
            if not self._is_cancelled.is_set():
                raise
            return _STOPPED
        finally:
            self._salvaging = None

    async def _gather_salvaged(self) -> str:
        assert self._chief is not None
        with tempfile.TemporaryDirectory(
            prefix=".salvaged-", dir=self._paths.root, ignore_cleanup_errors=True
        ) as folder:
            try:
                await self._folders.salvage_checkpoints(self._chief, Path(folder))
            except (SetupError, OSError) as error:
                return describe_error(error)
            return await self._gather(salvaged=Path(folder))

    def take_events(self) -> list[Event]:
        """Return what was gathered since the last call, and what the user should know of it."""
        events, notes = self._take_results()
        return [*events, *(ev.Warned(message=note) for note in notes)]

    async def _find_newest_shared(self) -> list[Event]:
        reported = dict(self._reported_saves)
        find_newest = partial(_newest_in, self._plan.checkpoints.dir, reported)
        try:
            self._shared_newest = await self._threads.run(find_newest, "the listing")
        except OSError as error:
            self._shared_newest = _newest_reported(reported)
            why = f"checkpoints.dir cannot be read: {describe_error(error)}"
            return [ev.Warned(message=why)]
        return []

    async def _gather(
        self,
        *,
        is_final: bool = True,
        may_be_new: bool = False,
        salvaged: Path | None = None,
    ) -> str:
        """Gather what is new in the chief's directory; return why that failed, or "".

        Nothing is new after an attempt that ended before its tasks were started, nor while the
        directory is being filled, unless it `may_be_new`. A disk that fails does not end the run.
        """
        gatherer = self._gatherer
        if gatherer is None or (self._is_filling and not may_be_new):
            return ""

        def gather() -> None:
            try:
                if is_final:
                    gathered_now = gatherer.gather_last(salvaged, may_be_new=may_be_new)
                else:
                    gathered_now = gatherer.gather()
                self._found.extend(_event(gathered, self._paths) for gathered in gathered_now)
            except CancelledError:
                pass  # `finish` notes it
            finally:
                self._notes.extend(gatherer.take_notes())

        try:
            await self._threads.run(gather, "the gathering of checkpoints")
        except OSError as error:
            return describe_error(error)
        return ""

    def _note_problem(self, problem: str) -> None:
        """Note why gathering failed, once per reason."""
        if problem and problem != self._problem:
            self._notes.append(f"checkpoints cannot be gathered: {problem}")
        self._problem = problem

    def _take_results(self) -> tuple[list[Event], list[str]]:
        """Return new events and notes, including those of a thread that was no longer awaited."""
        events = [self._found.popleft() for _ in range(len(self._found))]
        notes = [self._notes.popleft() for _ in range(len(self._notes))]
        return events, notes

    def follow_chief(self, chief: TaskId) -> None:
        """Gather the checkpoints of `chief` from now on."""
        self._is_settled = False
        if chief != self._chief and self._runs_chief:
            evaluators = (task.id for task in self._plan.tasks if task.id.job == "evaluator")
            self._followers = {task: self._folders.follower(task) for task in evaluators}
            self._chief, source = chief, self._folders.checkpoints(chief)
            self._gatherer = Gatherer(source, self._store, saves=self._paths.saves)

    async def follow(self, report: Callable[[Event], None]) -> None:
        """Gather until cancelled: every 2 s, and soon after a task reported a save.

        Evaluators get what was gathered; TensorBoard files of other machines are copied every 10 s.
        """
        if self.is_gathering:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_checkpoints(report))
                group.create_task(self._fill_evaluators())
                group.create_task(self._follow_tensorboard())

    async def _follow_checkpoints(self, report: Callable[[Event], None]) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GATHER_EVERY_S):
                    await self._is_due.wait()
                    await asyncio.sleep(LEAST_GAP_S)
            self._is_due.clear()
            if not self._is_settled:
                self._note_problem(await self._gather(is_final=self._chief_is_over))
            for event in self.take_events():
                report(event)
            self._has_gathered.set()

    async def _fill_evaluators(self) -> None:
        """Add gathered checkpoints to the evaluators' folders."""
        noted = set[str]()
        while True:
            await self._has_gathered.wait()
            self._has_gathered.clear()
            for follower in self._followers.values():
                try:
                    await follower.follow(self._store.held)
                except SourceChangedError:
                    pass  # the next gathering finds newer ones
                except OSError as error:
                    why = (
                        f"{follower.target.folder} does not get new checkpoints: {reason_of(error)}"
                    )
                    self._notes.extend({why} - noted)
                    noted.add(why)

    async def _follow_tensorboard(self) -> None:
        fetch = partial(self._folders.fetch_tensorboard, stopped=self._is_stopped)
        while True:
            await asyncio.sleep(_TENSORBOARD_EVERY_S)
            with contextlib.suppress(SourceChangedError, CancelledError, OSError):
                await self._threads.run(fetch, "the copying of TensorBoard files")

    def saved(self, report: Saved) -> None:
        """Note that the chief reported a save."""
        if report.step is not None:
            self._reported_saves.pop(report.path, None)  # the newest last
            self._reported_saves[report.path] = report.step
            if len(self._reported_saves) > budgets.REPORTED_CHECKPOINTS:
                del self._reported_saves[next(iter(self._reported_saves))]
        if self._gatherer is not None:
            self._gatherer.saved(report)
        self._is_due.set()

    def evaluated(self, report: Evaluated) -> None:
        """Note that an evaluator has evaluated a checkpoint."""
        if self._gatherer is not None:
            self._gatherer.evaluated(report)
            self._is_due.set()

    def note_chief_ended(self) -> None:
        """Note that the chief has ended: its last save is complete, and an evaluator waits."""
        self._chief_is_over = True
        self._is_due.set()

    def cancel(self) -> None:
        """Cancel the last copies, because the user does not want to wait for them."""
        self._is_cancelled.set()
        if self._gatherer is not None:
            self._gatherer.cancel()
        if self._salvaging is not None:
            self._salvaging.cancel()

    def close(self) -> None:
        """Let the threads end once the run is over."""
        self._threads.close()

    @property
    def needs_agents(self) -> bool:
        """True if the remaining files can only be copied while the agents live."""
        return self._gatherer is not None and self._folders.any_are_remote

    async def finish(self) -> list[Event]:
        """Copy the remaining files after the last task has ended; return the events to record.

        Where `needs_agents`, to be called before the agents end.
        """
        self._folders.use_full_speed()
        if not (self._runs_chief and self._keeps_files):
            return []
        self.is_incomplete, why = True, ""  # stays so if this raises, or a disk does not respond
        if self._gathers:
            self._awaited = "checkpoints"
            if not self.lost_node or await self._salvage():
                why = await self._gather()
            if self._gatherer is not None and self._gatherer.misses_newest():
                cancelled = _STOPPED if self._is_cancelled.is_set() else ""
                self.missed = cancelled or why or "not all of its files could be copied"
        events, notes = self._take_results()
        if self._threads.is_stalled:
            notes.append(why)
        else:
            copy = partial(self._copy_the_rest, why, has_notes=bool(notes))
            try:
                notes += await self._threads.run(copy, "the final copying")
            except StalledError as error:
                notes.append(describe_error(error))
        self._awaited = ""
        return events + [ev.Warned(message=note, closing=True) for note in notes]

    def _copy_the_rest(self, why: str, *, has_notes: bool) -> list[str]:
        """Copy all but checkpoints, in a thread; return sentences for the user."""
        last = FinalCopies(
            self._plan,
            self._paths,
            self._store,
            self._folders,
            self._chief or self._plan.chief,
            self._is_stopped,
            self._await,
        )
        stay = not (self._gathers or self._is_shared) and self._chief is not None
        copied = last.run(why, gathers=self._gathers, has_notes=has_notes, stay=stay)
        self.is_incomplete, notes = last.is_incomplete, last.notes
        has_nothing = self._plan.checkpoints.gather and self._store.newest is None
        if self._before is not None and has_nothing:
            new_files = outputs.describe_new_files(self._before, gathered=copied)
            notes += filter(None, [new_files])
        return notes

    def _is_stopped(self) -> bool:
        """Return whether copying is to stop; called with each chunk of a file."""
        self._beats += 1
        return self._is_cancelled.is_set()

    def _moved(self) -> int:
        return self._beats + (self._gatherer.beats if self._gatherer is not None else 0)

    def _await(self, files: str) -> None:
        self._awaited = files

    def gathering(self) -> dict[str, Any] | None:
        """Return what the run waits for, for views: what, node, bytes, of; or None."""
        if not (files := self._awaited):
            return None
        facts: dict[str, Any] = {"what": files}
        node = self._plan.task(self._chief or self._plan.chief).node
        if self._folders.is_remote(node):
            facts["node"] = node
        if files == "checkpoints" and self._gatherer is not None:
            facts["bytes"], facts["of"] = self._gatherer.progress()
        return facts

    def list_gathered(self) -> list[dict[str, Any]]:
        return list_held(self._store, self._paths)


def list_held(store: Store, paths: RunPaths) -> list[dict[str, Any]]:
    """Return the gathered checkpoints, oldest first, as ``state.json`` lists them."""
    best = best_of(store.held)
    return [
        _event(held, paths).facts()
        | {"bytes": held.bytes}
        | ({"evaluated": str(held.score)} if held.score is not None else {})
        | ({"is_best": True} if held is best else {})
        for held in store.held
    ]


def _event(gathered: Gathered, paths: RunPaths) -> ev.CheckpointGathered:
    return ev.CheckpointGathered(
        path=str(gathered.path.relative_to(paths.root)),
        step=gathered.step,
        save=gathered.save,
        kind=str(gathered.kind),
    )


def _newest_in(shared: str | None, reported: Mapping[str, int]) -> Newest:
    """Return the newest complete checkpoint in storage that all tasks share.

    `reported`: path → step as the chief reported them, oldest first. A reported step overrides
    the one in the name; reports are the only source if the storage is not mounted here. Raises
    OSError.
    """
    if shared is None or not os.path.isdir(shared):
        return _newest_reported(reported)

    def step(checkpoint: Checkpoint) -> int | None:
        return reported.get(str(Path(shared) / checkpoint.path), checkpoint.step)

    complete = find(scan(Path(shared)), None)
    ordered = oldest_first(complete, lambda c: c.age(step=step(c), saved_ns=c.saved_ns))
    return Newest(step(ordered[-1]), ordered[-1].name) if ordered else Newest()


def _newest_reported(reported: Mapping[str, int]) -> Newest:
    """Return the checkpoint that the chief reported last."""
    path, step = [*reported.items()][-1] if reported else ("", None)
    return Newest(step, basename(path) or None)
