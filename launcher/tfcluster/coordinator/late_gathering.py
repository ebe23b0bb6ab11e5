"""Gathering after the end of a run: what its tasks saved and its coordinator did not gather.

A coordinator that was killed, or whose last copies failed, leaves complete checkpoints in the
chief's folder: in the run folder, or on a host. They are asked for before anything says that there
are none.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tfcluster.agent.error_text import describe_error
from tfcluster.backends import job_watch, past_runs
from tfcluster.backends.base import class_of
from tfcluster.checkpoints.copying import CancelledError, Source
from tfcluster.checkpoints.gatherer import Gatherer
from tfcluster.checkpoints.store import Store
from tfcluster.coordinator import cleanup
from tfcluster.coordinator.gathering import list_held
from tfcluster.errors import NodeLostError, TfclusterError
from tfcluster.nodes.hub import Hub
from tfcluster.plans.plan import NodePlan, Plan, TaskId
from tfcluster.plans.remote_paths import CACHE, NodePaths, node_folder
from tfcluster.rundir import registry
from tfcluster.rundir.figures import state_json
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import require_json
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status
from tfcluster.supervision.restart_policy import chief_among
from tfcluster.wire.remote_source import RemoteSource

_COPY_S, _POLL_S = 60.0, 0.5


def gather_left(paths: RunPaths, say: Callable[[str], None]) -> bool:
    """Gather what the chief of a run that is over has saved; leftover tasks of a lost run end.

    `say` gets what was gathered, and what could not be; return False if something could not. Does
    nothing while the run goes on, or if all was gathered at its end.
    """
    state = job_watch.load(paths)
    if not state.may_have_ungathered:
        return True
    try:
        plan = registry.load_plan(paths)
        if plan.checkpoints.dir is not None:
            return True
        with _alone(paths):
            store = Store(paths.checkpoints, keep=plan.checkpoints.keep)
            before = set(store.held)
            is_complete = _LateGathering(paths, plan, store, say).run(state)
            for gathered in store.held:
                if gathered not in before:
                    say(f"gathered {gathered.folder.name}, which {paths.run_id} had left")
            _record(paths, store, missed=None if is_complete else state.missed)
    except (TfclusterError, OSError, CancelledError) as error:
        say(f"the last checkpoints of {paths.run_id} cannot be gathered: {_text_of(error)}")
        return False
    return is_complete


def _text_of(error: Exception) -> str:
    return error.message if isinstance(error, TfclusterError) else describe_error(error)


@dataclass(frozen=True, slots=True)
class _LateGathering:
    """The gathering from one run. Methods raise TfclusterError, OSError, CancelledError."""

    paths: RunPaths
    plan: Plan
    store: Store
    say: Callable[[str], None]

    def run(self, state: RunSnapshot) -> bool:
        """Gather from where the chief saved; return whether that has left nothing."""
        paths, plan = self.paths, self.plan
        members = state.restarts[-1].get("members") if state.restarts else None
        tasks = [TaskId.parse(name) for name in members or ()] or [task.id for task in plan.tasks]
        chief = chief_among(plan, tasks)
        node = plan.node(plan.task(chief).node)
        if state.status is Status.LOST:
            try:
                cleanup.end_everywhere(paths, lambda sentence: None)
            except TfclusterError as error:  # tasks may still run: other places can be asked
                self.say(_text_of(error))
            state = registry.load(paths)
            if class_of(node).copies_from_lost:
                _await_copy(paths.run_id)
        on_node = RunPaths(Path(NodePaths(CACHE, paths.run_id).folder(node_folder(node.name))))
        usual_folder = str(on_node.task_checkpoints(chief))
        # This machine and the node may share the home.
        for folder in (paths.task_checkpoints(chief), Path(os.path.expanduser(usual_folder))):
            if folder.is_dir():
                return self._gather_from(folder)
        if node.capabilities.loses_files:
            with tempfile.TemporaryDirectory(prefix=".left-", dir=paths.root) as copy:
                fetch = class_of(node).fetch_left
                source = PurePosixPath(state.missed_in or usual_folder)
                endpoint = past_runs.endpoint_of(paths.run_id)
                copying = fetch(node, paths.run_id, source, Path(copy), endpoint=endpoint)
                cleanup.run_in_loop(copying)
                return self._gather_from(Path(copy))
        elif node.capabilities.has_addresses and node.name in state.agents:
            if state.leases.get(node.name, 0.0) > time.time():
                raise NodeLostError(f"tasks may still run on {node.name}")
            return cleanup.run_in_loop(self._gather_from_host(node, chief))
        return not state.missed

    def _gather_from(self, source: Path | Source) -> bool:
        """Gather from a folder, and say what that lacks; return whether the newest has arrived."""
        gatherer = Gatherer(source, self.store, saves=self.paths.saves)
        gatherer.gather_last()
        for note in gatherer.take_notes():
            self.say(note)
        return not gatherer.misses_newest()

    async def _gather_from_host(self, node: NodePlan, chief: TaskId) -> bool:
        """Gather from the chief's host, whose old agent has ended. Its files stay there."""
        hub = Hub(self.paths, self.plan.supervision.lease_s, self.say, plan=self.plan)
        await hub.open([node])
        try:
            async with asyncio.TaskGroup() as background:
                try:
                    hub.listen(background)
                    await hub.connect(node)
                    folder = PurePosixPath(hub.site(node.name).paths.task_checkpoints(chief))
                    loop = asyncio.get_running_loop()
                    source = RemoteSource(folder, lambda: hub.files(node.name), loop, lambda: None)
                    return await asyncio.to_thread(self._gather_from, source)
                finally:
                    await hub.close(keeps_folders=True)
        except* (TfclusterError, OSError) as errors:
            raise errors.exceptions[0] from errors


def _await_copy(run_id: str) -> None:
    """Wait until what removes the nodes of a lost run has copied the chief's files, and is done."""
    until = time.monotonic() + _COPY_S
    while past_runs.find_leftovers_of(run_id).leftovers and time.monotonic() < until:
        time.sleep(_POLL_S)


@contextmanager
def _alone(paths: RunPaths) -> Iterator[None]:
    """Wait until no other command gathers from this run: only one process may write its store."""
    with (paths.root / ".gathering").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _record(paths: RunPaths, store: Store, *, missed: str | None) -> None:
    """Record what the store holds now, for `status` and the pages, and why it lacks the newest."""
    state = registry.load_recorded(paths)
    state.missed = missed
    state.checkpoints = list_held(store, paths)
    require_json(paths.state, state_json(state))
