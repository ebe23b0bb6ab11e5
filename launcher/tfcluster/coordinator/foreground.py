"""A run in this process: `Session` makes the folder and runs the coordinator, handling signals."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tfcluster.coordinator.coordinator import Coordinator
from tfcluster.coordinator.gathering import RunGathering
from tfcluster.coordinator.resume import Resume, seed
from tfcluster.coordinator.startup import StartOptions
from tfcluster.errors import SetupError, TfclusterError
from tfcluster.nodes.hub import backend_of
from tfcluster.plan import secrets
from tfcluster.plan.plan import Plan
from tfcluster.plan.secrets import redact_error
from tfcluster.rundir import fold, run_writer
from tfcluster.rundir.events import Resumed
from tfcluster.rundir.paths import RunPaths, runtime_dir
from tfcluster.rundir.registry import new_run_id, this_process
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.states import Status
from tfcluster.supervision.decisions import Outcome, Stop
from tfcluster.typed_json import to_json

Announce = Callable[[Mapping[str, int]], None]
"""A function that is called with each task's port before the first start."""

SIGNALS = {
    signal.SIGINT: Stop("Ctrl-C", 130),
    signal.SIGTERM: Stop("SIGTERM", 143),
    signal.SIGHUP: Stop("the terminal was closed", 129),
}


class Session:
    """One run of a plan in this process. Its folder exists once the session is made."""

    def __init__(
        self,
        plan: Plan,
        spec: Mapping[str, Any],
        *,
        home_dir: Path,
        spec_folder: str | None = None,
        resume: Resume | None = None,
        in_background: bool = False,
    ) -> None:
        """Make the run folder.

        `home_dir`: the parent of run folders; `resume`: the state to start from. Raises
        SetupError for a backend that is not available, and RunFolderError.
        """
        now = time.time()
        for node in plan.nodes:
            backend_of(node)
        run_writer.make_runtime_dir()
        self.plan, self._resume = plan, resume
        self.paths: RunPaths = run_writer.make_new(partial(new_run_id, plan.name, now), home_dir)
        for path, data in ((self.paths.spec, spec), (self.paths.plan, to_json(plan))):
            run_writer.require_json(path, data)
        state = fold.first_state(plan, self.paths, this_process(), now)
        state.spec_folder, state.runtime_dir = spec_folder, str(runtime_dir())
        state.background = in_background
        self._secrets = secrets.find_values(plan)
        self.run_writer = RunWriter(state, self.paths, secrets=self._secrets)
        self.unrecorded = ""
        """The reason why the run folder is incomplete; empty if it is complete."""

    def run(self, *, announce: Announce, start_options: StartOptions) -> Outcome:
        """Run to the end and return the outcome; SIGINT, SIGTERM and SIGHUP stop, a second kills.

        To be called in `signals_held_back`, like the constructor.
        """
        try:
            if self._resume is not None:
                seed(self._resume, self.paths.checkpoints)
                announce = self._announcing(self._resume, announce)
            return self._without_secrets(asyncio.run(self._run(announce, start_options)))
        except SetupError as error:
            return self._fail(error)
        except Exception as fault:
            return self._note_internal_error(fault)
        finally:
            self.unrecorded = self.run_writer.close()

    async def _run(self, announce: Announce, start_options: StartOptions) -> Outcome:
        coordinator = Coordinator(
            self.plan,
            self.run_writer,
            RunGathering(self.plan, self.paths, enabled=start_options.gathers),
            backend_of=backend_of,
            announce=announce,
            start_options=start_options,
        )
        with _handling_signals(coordinator):
            return await coordinator.run()

    def _announcing(self, resume: Resume, announce: Announce) -> Announce:
        def record_and_announce(ports: Mapping[str, int]) -> None:
            resumed = Resumed(
                run=resume.source.run_id, step=resume.newest.step, checkpoint=resume.checkpoint
            )
            self.run_writer.record(resumed)
            announce(ports)

        return record_and_announce

    def _note_internal_error(self, fault: Exception) -> Outcome:
        first: BaseException = fault
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        error = TfclusterError(
            f"internal error: {type(first).__name__}: {first}",
            fix=f"please report it with {self.paths.fault}",
        )
        with contextlib.suppress(OSError):
            trace = "".join(traceback.format_exception(fault))
            self.paths.fault.write_text(secrets.redact(trace, self._secrets))
        return self._fail(error)

    def _fail(self, error: TfclusterError) -> Outcome:
        outcome = Outcome(Status.FAILED, error.exit_code, error)
        self.run_writer.record(outcome.event())
        return self._without_secrets(outcome)

    def _without_secrets(self, outcome: Outcome) -> Outcome:
        redact_error(outcome.error, self._secrets)
        return outcome


@contextlib.contextmanager
def _handling_signals(coordinator: Coordinator) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    handled = {**SIGNALS}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        del handled[signal.SIGHUP]  # in the background or under nohup: outlives its terminal
    for number, stop in handled.items():
        loop.add_signal_handler(number, partial(coordinator.stop, stop))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, handled)
        for number in handled:
            loop.remove_signal_handler(number)
            # Other threads do not block it, and the outcome is not recorded yet.
            signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def signals_held_back() -> Iterator[None]:
    """Block SIGINT, SIGTERM and SIGHUP, except while a run handles them.

    A signal between the making of the folder and the first turn of the loop would leave a run
    that never started and never ended.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
