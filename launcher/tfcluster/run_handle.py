"""`Run`: one run as the Python API shows it, whichever process coordinates it.

Everything is read from the run folder and asked of the control socket, so a run of this process,
of another one and of yesterday are the same.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfcluster.agent import foreign_json
from tfcluster.backends import job_watch
from tfcluster.coordinator.exit_delay import delaying_exit, stop_at_exit
from tfcluster.errors import NodeLostError, TfclusterError, UnknownRunError, UsageError
from tfcluster.rundir import control, registry, waiting
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import RunSnapshot, TaskSnapshot, describe_failure
from tfcluster.rundir.states import Status
from tfcluster.rundir.waiting import Waiting, block, block_async, each, each_async

if TYPE_CHECKING:
    from tfcluster.checkpoints.store import Damaged, Gathered
    from tfcluster.rundir.exec_stream import ExecEnd, UserTerminal
    from tfcluster.rundir.goodput import Goodput
    from tfcluster.rundir.series import History

_SHELL = ("sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi")
_TRACES_WITHIN_S = 60.0
"""The time for the copies of traces from a cluster, after the news that they are complete."""
_threads: dict[RunPaths, threading.Thread] = {}
"""Run of this process → the thread of its coordinator."""
os.register_at_fork(after_in_child=_threads.clear)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that a task wrote."""

    task: str
    """``worker:0``, or ``prepare``."""
    attempt: int
    text: str


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a run."""

    run: Run
    status: Status
    exit_code: int | None
    """The exit code that `tfcluster up` ends with; None for a lost run."""
    metrics: Mapping[str, float]
    """The metrics of the chief's last report."""
    checkpoint: Path | None
    """The argument of the loading call for the newest gathered checkpoint; None without one."""
    message: str
    """The reason of a failure; empty if the run succeeded."""
    fix: str

    @property
    def loss(self) -> float | None:
        """The last loss that the chief reported."""
        return self.metrics.get("loss")

    @property
    def value(self) -> Any:
        """The value that the function returned on the chief. Raises FunctionError."""
        from tfcluster import functions

        return functions.value(self.run.paths)

    def _repr_html_(self) -> str | None:
        """Return what a notebook shows: how the run ended."""
        return _html("result_html", self.run)

    def check(self) -> Result:
        """Return this result; raise JobFailed unless the run succeeded."""
        if self.status is not Status.SUCCEEDED:
            raise JobFailed(self)
        return self


class JobFailed(TfclusterError):
    """A run that ended without success."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.message, fix=result.fix)
        self.exit_code = NodeLostError.exit_code if result.exit_code is None else result.exit_code
        self.result, self.run = result, result.run
        self.diagnosis = result.run.diagnosis

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows of it: the diagnosis, not the way through tfcluster."""
        return f"JobFailed: {self}".splitlines()


@dataclass(frozen=True, slots=True)
class Debugger:
    """A debugger of this machine can attach to a task."""

    run: Run
    task: str
    attempt: int
    port: int
    """The port on 127.0.0.1."""
    launch_json: str
    """The configuration of VS Code."""

    def is_current(self) -> bool:
        """Return whether the task still runs, in the same attempt."""
        state = self.run.state()
        current = next(task for task in state.tasks if task.task == self.task)
        runs = current.state in ("starting", "running", "stopping")
        return runs and current.attempt == self.attempt and not state.status.is_final


@dataclass(frozen=True, slots=True)
class Run:
    """A run: of this process, of another one, or one that has ended."""

    paths: RunPaths

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    def _repr_html_(self) -> str | None:
        """Return what a notebook shows: the run as `tfcluster status` does."""
        return _html("run_html", self)

    @property
    def id(self) -> str:
        return self.paths.run_id

    @property
    def folder(self) -> Path:
        return self.paths.root

    @property
    def status(self) -> Status:
        """The present status, as `tfcluster ps` shows it."""
        return self.state().status

    @property
    def diagnosis(self) -> Mapping[str, Any] | None:
        """The last diagnosis: `root_cause` (task, reason, hint …), `collateral`, `attempt`."""
        return self.state().diagnosis

    @property
    def goodput(self) -> Goodput | None:
        """The share of the time in steps that count, and where the rest went, until now.

        None before the first step, and for a run that is no training.
        """
        goodput = self.state().goodput
        return None if goodput is None or goodput.share is None else goodput

    def gather_left(self, say: Callable[[str], None]) -> bool:
        """Gather what a run that is over has left where its tasks saved; `say` gets sentences.

        Return False if something could not be gathered.
        """
        if not self.state().may_have_ungathered:
            return True
        from tfcluster.coordinator.late_gathering import gather_left  # it imports asyncio

        return gather_left(self.paths, say)

    @property
    def checkpoints(self) -> tuple[Gathered, ...]:
        """The gathered checkpoints, oldest first."""
        from tfcluster.checkpoints.store import read_store

        return read_store(self.paths.checkpoints)[0]

    @property
    def damaged_checkpoints(self) -> tuple[Damaged, ...]:
        """The gathered checkpoints that a file is missing of, or that were set aside."""
        from tfcluster.checkpoints.store import read_store

        return read_store(self.paths.checkpoints)[1]

    @property
    def best_checkpoint(self) -> Gathered | None:
        """The checkpoint with the best score of an evaluator; None without a score."""
        from tfcluster.checkpoints.store import best_of

        return best_of(self.checkpoints)

    @property
    def newest_checkpoint(self) -> Gathered | None:
        """The newest result; a backup of an unfinished `fit` only if there is nothing else."""
        newest_first = reversed(self.checkpoints)
        return max(newest_first, key=lambda gathered: gathered.kind != "backup", default=None)

    def state(self) -> RunSnapshot:
        """Read the present state. Raises DamagedRunError, and UnknownRunError if it is deleted."""
        try:
            state, thread = job_watch.load(self.paths), _threads.get(self.paths)
        except registry.DamagedRunError as error:
            if self.paths.root.exists():
                raise
            fix = "`tfcluster ps -a` lists all runs"
            raise UnknownRunError(f"the run {self.id} was deleted", fix=fix) from error
        if thread is not None and not (state.status.is_final or thread.is_alive()):
            state = registry.load(self.paths)
            if not state.status.is_final:  # a full disk: this process lives, its run does not
                state.status = Status.LOST
        return state

    def progress(self) -> dict[str, TaskSnapshot]:
        """Return task → its state, step, epoch, metrics and speed."""
        return {task.task: task for task in self.state().tasks}

    def history(self, *, most: int = 600) -> History:
        """Return the curves of all tasks, of at most `most` points each, and the timeline.

        It is a dict of columns that `pandas.DataFrame` takes.
        """
        from tfcluster.rundir.series import read_history

        return read_history(self.paths, most=most)

    def wait(self, timeout: float | None = None) -> Result:
        """Wait until the run has ended; raises TimeoutError after `timeout` seconds.

        Ctrl-C stops a run of this process and waits for its end, a second one kills its tasks;
        then KeyboardInterrupt is raised. Any other run continues.
        """
        try:
            return block(self._end(), timeout, "continues")
        except KeyboardInterrupt:
            if self.paths in _threads:
                _stop_interrupted(self, why="Ctrl-C")
            raise

    async def wait_async(self) -> Result:
        """Wait as `wait` does; `asyncio.timeout` limits it, and cancelling leaves the run alone."""
        return await block_async(self._end())

    def stop(self, *, now: bool = False, timeout: float | None = None) -> Result:
        """Stop the run and wait until it has ended; `now` kills its tasks without a grace period.

        What a lost run has left is ended too. Raises TimeoutError, and NodeLostError if the
        coordinator does not answer or a task may still run.
        """
        result = block(self._stop(now), timeout, "is stopping")
        self._clean_up()
        return result

    async def stop_async(self, *, now: bool = False) -> Result:
        """Stop the run as `stop` does."""
        import asyncio  # slow, and most callers do not need it

        result = await block_async(self._stop(now))
        await asyncio.to_thread(self._clean_up)
        return result

    def scale_to(self, workers: int) -> str:
        """Have a training run go on with this number of workers; return a sentence about it.

        Returns once the run has accepted: all tasks save, stop, and start again from the newest
        checkpoint. Raises UsageError if that is not possible, else what `ask_to_stop` raises.
        """
        if (state := self.state()).job is not None and not state.status.is_final:
            reason = f"{self.id}: its coordinator runs in a job of {state.job['backend']}"
            resume = f"`tfcluster up SPEC --resume {self.id}`"
            raise UsageError(reason, fix=f"stop it, change the number in its spec, then {resume}")
        command = f"tfcluster scale-to {self.id} {workers}"
        send = partial(control.scale_to, workers=workers)
        return waiting.change_run(self.paths, self.state, send, command)

    def stacks(self, *tasks: str) -> dict[str, Any]:
        """Return where the tasks are: of the named ones, or of all that run.

        `what` is one line: who is waited for and where. `tasks` has for each its `task`,
        `attempt`, `where`, and the stacks of its `threads`, the main one first: frames with
        `file`, `line`, `function` and `code`. The training goes on. Raises UsageError for a task
        that does not run and a run that has ended, and NodeLostError if the coordinator does not
        answer.
        """
        return dict(self._request(control.stacks_request(self._labels(tasks)), "stacks"))

    def profile(
        self,
        *tasks: str,
        steps: int = 10,
        begins: Callable[[Mapping[str, Any]], None] = lambda event: None,
    ) -> dict[str, Any]:
        """Have tasks trace the same `steps` with TensorFlow's profiler; return what came of it.

        Of the named tasks, or of all that train. `begins` gets the event `profile_started`.
        For the result see `newest_profile`. Raises UsageError for a task that does not run, a run
        that has ended or has taken no step, and NodeLostError if the coordinator does not answer.
        """
        request = control.profile_request(self._labels(tasks), steps)
        return block(self._profile(str(self._request(request, "profile")), begins))

    def newest_profile(self) -> dict[str, Any] | None:
        """Return the newest profile of the run, live or over; None if there is none.

        `profile` is its id, `folder` has the traces. `tasks` has for each its `task`, and either
        the `problem`, or `trace`, the steps `first` and `last`, `seconds`, `parts` (the seconds in
        `compute`, `collective`, `input`, `idle`), and `ops`: the longest first, each with `name`,
        `type`, `part`, `count`, and its `seconds`.
        """
        finished = None
        for event in self.events():
            if event.get("type") == "profile_finished":
                finished = event
        return block(self._read_profile(finished)) if finished is not None else None

    def exec(
        self,
        task: str,
        *command: str,
        stdin: int | None = None,
        stdout: int = 1,
        stderr: int = 2,
        terminal: UserTerminal | None = None,
    ) -> ExecEnd:
        """Run a command, or a shell, beside a task, in its environment; return its end.

        Its streams are joined to these descriptors; with a `terminal` it gets one, and writes all
        to stdout. Raises UsageError if it cannot be started, and NodeLostError if its node or the
        coordinator is lost.
        """
        from tfcluster.rundir.exec_stream import ExecStream

        (label,) = self._labels([task])
        size = None
        if terminal is not None:
            rows, columns = terminal.size()
            size = {"kind": terminal.kind, "rows": rows, "columns": columns}
        request = control.exec_request(label, command or _SHELL, size)
        raw = terminal or contextlib.nullcontext()
        with self._ask_and_keep(request, "exec") as (connection, number), raw:
            return ExecStream(
                connection, number, stdin=stdin, stdout=stdout, stderr=stderr, terminal=terminal
            ).run()

    @contextlib.contextmanager
    def debug(self, task: str, *, port: int = 0) -> Iterator[Debugger]:
        """Have debugpy listen in a task, and join a port of this machine to it during the block.

        `port`: 0 chooses a free one. Raises UsageError for a task that does not run, SetupError if
        it lacks hooks or what debugpy needs, or if its main thread stays in native code, and what
        `exec` raises.
        """
        from tfcluster import debugger

        (label,) = self._labels([task])
        found = self.progress()[label]
        if found.pid is None:
            raise UsageError(f"{label} does not run", fix="`tfcluster status` shows the tasks")

        def execute(argv: Sequence[str], *, stdin: int | None, stdout: int, stderr: int) -> ExecEnd:
            return self.exec(label, *argv, stdin=stdin, stdout=stdout, stderr=stderr)

        listening = debugger.attach(execute, label, found.pid)
        with debugger.tunnel(execute, listening.port, port=port) as number:
            workdir = registry.load_plan(self.paths).workdir
            name = f"{label} of {self.id}"
            text = debugger.launch_json(name, number, workdir=workdir, folder=listening.folder)
            yield Debugger(self, label, found.attempt, number, text)

    @contextlib.contextmanager
    def _ask_and_keep(
        self, request: Mapping[str, Any], command: str
    ) -> Iterator[tuple[socket.socket, Any]]:
        """Yield the connection on which the coordinator has answered, and its answer."""
        if (state := self.state()).job is not None and not state.status.is_final:
            with job_watch.connect_coordinator(self.paths) as connection:
                yield connection, control.ask_over(connection, request)
            return

        def send(path: Path) -> tuple[socket.socket, Any]:
            with contextlib.ExitStack() as opened:
                connection = opened.enter_context(control.connect(path))
                answer = control.ask_over(connection, request)
                opened.pop_all()
                return connection, answer

        words = f"tfcluster {command} {self.id}"
        connection, answer = waiting.change_run(self.paths, self.state, send, words)
        with connection:
            yield connection, answer

    def _labels(self, tasks: Iterable[str]) -> list[str]:
        return [label for task in tasks if (label := self._label(task))]

    def _request(self, request: Mapping[str, Any], command: str) -> Any:
        """Return the coordinator's answer, wherever it runs; `command` is the user's."""
        if (state := self.state()).job is not None and not state.status.is_final:
            with job_watch.connect_coordinator(self.paths) as connection:
                return control.ask_over(connection, request)
        send = partial(control.request, request=request)
        return waiting.change_run(self.paths, self.state, send, f"tfcluster {command} {self.id}")

    def _profile(
        self, id_: str, begins: Callable[[Mapping[str, Any]], None]
    ) -> Waiting[dict[str, Any]]:
        for event in self._events(follow=True):
            if event is None:
                yield
            elif event.get("id") == id_ and event.get("type") == "profile_started":
                begins(event)
            elif event.get("id") == id_ and event.get("type") == "profile_finished":
                return (yield from self._read_profile(event))
        raise UsageError(f"{self.id} has ended before its profile was complete")

    def _read_profile(self, finished: Mapping[str, Any]) -> Waiting[dict[str, Any]]:
        """Read the traces of a profile; those of a run in a cluster may still be on the way."""
        from tfcluster.rundir.step_traces import describe_trace

        folder, until = self.paths.profile(finished["id"]), time.monotonic() + _TRACES_WITHIN_S
        tasks = []
        for task, facts in finished["tasks"].items():
            while (described := describe_trace(folder, facts)) is None:
                if time.monotonic() > until:
                    described = {"problem": "its trace is not in the run folder"}
                    break
                yield
            tasks.append({"task": task, **described})
        return {"profile": finished["id"], "folder": str(folder), "tasks": tasks}

    def events(self, *, follow: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the events so far, with `follow` until the run ends; see `events.jsonl`."""
        return each(self._events(follow))

    def events_async(self, *, follow: bool = False) -> AsyncIterator[dict[str, Any]]:
        """Yield events as `events` does."""
        return each_async(self._events(follow))

    def logs(self, *, task: str | None = None, follow: bool = False) -> Iterator[LogLine]:
        """Yield the lines of all tasks, or of `task`, with `follow` until the run ends.

        The lines of each task are in order. A progress bar is one line, in its last state. Raises
        UsageError for a task that the run lacks.
        """
        return each(self._logs(self._label(task), follow))

    def logs_async(
        self, *, task: str | None = None, follow: bool = False
    ) -> AsyncIterator[LogLine]:
        """Yield lines as `logs` does."""
        return each_async(self._logs(self._label(task), follow))

    def delete(self, *, say: Callable[[str], None] = lambda sentence: None) -> None:
        """Delete the folder of a run that has ended.

        After a lost run, tasks are ended on every host; `say` gets what was ended. Raises
        UsageError for a live run, and NodeLostError, which keeps the folder, if a task may still
        run.
        """
        from tfcluster.backends import past_runs

        self.require_ended()
        try:
            self._clean_up(say)
        except registry.DamagedRunError:
            from tfcluster.coordinator import cleanup  # imports psutil, which is slow

            cleanup.end_processes(self.id)
        registry.delete(self.paths)
        for sentence in past_runs.forget_removed(self.id):
            say(sentence)

    def require_ended(self) -> None:
        """Raise UsageError for a live run."""
        try:
            state = self.state()
            if registry.is_being_closed(self.paths, state):
                fix = f"wait for its coordinator (pid {state.pid} on {state.host}), or end that"
                raise UsageError(f"supervision.on_end of {self.id} still runs", fix=fix)
            is_live = not state.status.is_final
        except registry.DamagedRunError:
            is_live = registry.is_answered(self.paths)
        if is_live:
            raise UsageError(f"{self.id} is live", fix=f"stop it first: tfcluster down {self.id}")

    def _clean_up(self, say: Callable[[str], None] = lambda sentence: None) -> None:
        """End what a lost run has left."""
        if registry.is_open(self.state()):
            from tfcluster.coordinator import cleanup  # imports psutil, which is slow

            cleanup.end_everywhere(self.paths, say)

    def ask_to_stop(self, *, why: str, now: bool = False) -> bool:
        """Ask the coordinator to stop the run; return False if the run has already ended.

        Raises NodeLostError if the coordinator does not answer.
        """
        return block(self._ask_to_stop(why, now))

    def _ask_to_stop(self, why: str, now: bool) -> Waiting[bool]:
        state = self.state()
        if state.job is not None and not state.status.is_final:
            job_watch.stop(self.paths, now=now)
            return True
        send, command = partial(control.stop, why=why, now=now), f"tfcluster down {self.id}"
        has_asked = yield from waiting.ask_coordinator(self.paths, self.state, send, command)
        if has_asked and state.allocation is not None:  # a new start of the job must not continue
            self.paths.cancelled.touch()
        return bool(has_asked)

    def _stop(self, now: bool) -> Waiting[Result]:
        yield from self._ask_to_stop("Run.stop()", now)
        return (yield from self._end())

    def _end(self) -> Waiting[Result]:
        state_file = job_watch.WatchedState(self.paths)
        with delaying_exit():
            while not (self._is_over(state_file) and (state := self.state()).status.is_final):
                yield
            while (thread := _threads.get(self.paths)) is not None and thread.is_alive():
                yield  # it closes its control socket
        with contextlib.suppress(OSError):  # a full disk: the next `wait` reports it again
            self.paths.waited.touch()
        newest, (message, fix) = self.newest_checkpoint, describe_failure(state)
        leader = state.leader
        return Result(
            run=self,
            status=state.status,
            exit_code=state.exit_code,
            metrics=dict(leader.metrics) if leader is not None else {},
            checkpoint=newest.path if newest is not None else None,
            message=message,
            fix=fix,
        )

    def _events(self, follow: bool) -> Iterator[dict[str, Any] | None]:
        from tfcluster.rundir.task_logs import LogSource

        source = LogSource(self.paths.events)
        for is_last in self._rounds(follow):
            for line in source.lines():
                with contextlib.suppress(ValueError):
                    yield foreign_json.parse_json_object(line)
            if not is_last:
                yield None

    def _label(self, task: str | None) -> str | None:
        from tfcluster.rundir.task_logs import find_label

        return None if task is None else find_label(self.state(), task)

    def _logs(self, task: str | None, follow: bool) -> Iterator[LogLine | None]:
        from tfcluster.rundir.task_logs import RunLogs

        logs = RunLogs(self.paths.logs, lambda label, attempt: task in (None, label))
        for is_last in self._rounds(follow):
            logs.discover()
            if is_last:
                logs.mark_all_ended()
            for log, line in logs.lines():
                yield LogLine(log.label, log.attempt, line.decode(errors="replace"))
            if not is_last:
                yield None

    def _is_over(self, state_file: registry.StateFile) -> bool:
        """Return whether the run has ended; much cheaper than `state` while nothing changes."""
        thread = _threads.get(self.paths)
        return state_file.is_over() or (thread is not None and not thread.is_alive())

    def _rounds(self, follow: bool) -> Iterator[bool]:
        """Yield False while more may come, then True for the last round."""
        state_file = job_watch.WatchedState(self.paths)
        with delaying_exit():
            while follow and not self._is_over(state_file):
                yield False
        yield True


class Runs(list[Run]):
    """Runs, oldest first; a notebook shows them as a table."""

    def _repr_html_(self) -> str | None:
        return _html("runs_html", *self)


def _html(function: str, *runs: Run) -> str | None:
    """Return what a function of `ui.html`, which is above this module, makes of the runs.

    Runs that were deleted are left out; None if that leaves none.
    """
    states = list[tuple[RunSnapshot, RunPaths]]()
    for run in runs:
        with contextlib.suppress(TfclusterError):
            states.append((run.state(), run.paths))
    if not states:
        return None
    page: str = getattr(import_module("tfcluster.ui.html"), function)(*states)
    return page


def end_with_process(paths: RunPaths) -> None:
    """Note that this thread coordinates the run, which has to end before the process does."""
    stop_at_exit(_stop_all)
    _threads[paths] = threading.current_thread()


def _stop_interrupted(*runs: Run, why: str) -> None:
    """Stop runs of this process and wait for their end; Ctrl-C meanwhile kills their tasks."""
    for now in (False, True):
        with contextlib.suppress(KeyboardInterrupt):
            for run in runs:
                with contextlib.suppress(TfclusterError):
                    run.ask_to_stop(why=why, now=now)
            while any(_threads[run.paths].is_alive() for run in runs):
                time.sleep(0.02)  # Ctrl-C in `join` marks the thread as ended (bpo-45274)
            return


def _stop_all() -> None:
    """Stop the runs of this process, which is about to end, and name them."""
    runs = [Run(paths) for paths, thread in list(_threads.items()) if thread.is_alive()]
    if runs and sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # it is closed
            names = ", ".join(run.id for run in runs)
            fix = "`wait()` waits for a run, and one with detach=True continues"
            sys.stderr.write(f"tfcluster: this process ends, which stops {names}; {fix}\n")
    _stop_interrupted(*runs, why="exit")
