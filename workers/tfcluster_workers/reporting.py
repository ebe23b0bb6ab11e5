"""Reports of a task to tfcluster: its state, progress, checkpoints, trials and errors.

Every function can be called with or without a launcher and from any thread, and never blocks the
training (an error or a saved checkpoint may wait up to two seconds for room in the socket).

Some of them also inject the faults of `tfcluster up --chaos` (chaos.py).
"""

from __future__ import annotations

import atexit
import functools
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from tfcluster_workers import chaos, event_channel
from tfcluster_workers.step_times import StepTimes

INTERVAL_S = 0.5
"""Shortest time between two progress events; the first and the last are always sent."""

ALIVE_INTERVAL_S = 1.0
"""Shortest time between two `alive` events."""

_sent: set[str] = set()
"""The events that are sent once and have been sent."""
_alive_at = float("-inf")
"""Time of the last `alive` event."""
_last_seen: tuple[str, int | None] | None = None
"""Path and step of the last save that the hooks reported, until a job reports it too."""


def waiting_for_peers() -> None:
    """Report that this task waits for its peers: the start deadline counts from here."""
    _send_once("waiting_for_peers")
    chaos.at_join()


def phase(name: str) -> None:
    """Report what this task does before its first step; an empty `name` ends that."""
    _send("phase", name=name)


def ready() -> None:
    """Report that this task has joined its cluster or has done its first step."""
    _send_once("ready")


def serving() -> None:
    """Report that this task only serves from now on: tfcluster ends it when no task needs it."""
    ready()
    _send_once("serving")


def saves_on_sigterm() -> None:
    """Report that this task saves its state on SIGTERM, so it needs the whole grace time."""
    _send_once("saves_on_sigterm")


def saved(path: str, *, step: int | None = None) -> None:
    """Report that the checkpoint with this prefix or path is complete on disk."""
    global _last_seen
    was_seen, _last_seen = _last_seen == (path, step), None
    if not was_seen:
        _send_saved(path, step)
    chaos.at_saved()


def saw_saved(path: str, step: int | None) -> None:
    """Report a checkpoint that the hooks saw; `saved` does not report the same one again."""
    global _last_seen
    _last_seen = path, step
    _send_saved(path, step)


def seen_step(path: str) -> int | None:
    """Return the step of the last save that the hooks saw; None if it wrote another checkpoint."""
    return _last_seen[1] if _last_seen is not None and _last_seen[0] == path else None


def _send_saved(path: str, step: int | None) -> None:
    _send("saved", path=path, step=step, at_ns=time.time_ns())


def saved_elsewhere(step: int | None) -> None:
    """Report a complete checkpoint outside the task's checkpoint directory.

    No restart finds it there, but an evaluator may evaluate it.
    """
    _send("saved_elsewhere", step=step)


def wrote(files: list[dict[str, str]]) -> bool:
    """Report files that this task has opened for writing; return False if there was no room.

    `path` is for the user; two tasks that write the same file give the same `file`.
    """
    return event_channel.current().offer({"type": "wrote", "files": files})


def alive() -> None:
    """Report work that is not a training step, such as a batch of an evaluation.

    Cheap enough to call for each batch: at most one event per ALIVE_INTERVAL_S is sent.
    """
    global _alive_at
    now = time.monotonic()
    if now - _alive_at >= ALIVE_INTERVAL_S:
        _alive_at = now
        event_channel.current().offer({"type": "alive"})


def evaluated(step: int | None) -> None:
    """Report that an evaluator has evaluated the checkpoint of `step` (None: unknown)."""
    ready()
    _send("evaluated", step=step)
    if step is not None:
        chaos.at_step(step)


def failed_search(reason: str) -> None:
    """Report that the job has failed whatever its exit code is: no trial of a search succeeded."""
    _send("verdict", reason=reason)


def trial(
    name: str,
    *,
    status: str,
    objective: str,
    direction: str,
    values: Mapping[str, Any],
    best_step: int = 0,
    tuner: str | None = None,
    score: float | None = None,
    message: str | None = None,
) -> None:
    """Report the oracle's data of a trial; `tuner` is the KERASTUNER_TUNER_ID that runs it.

    `best_step` is the epoch of the score and counts from 0, as KerasTuner does.
    """
    _send(
        "trial",
        id=name,
        status=status,
        tuner=tuner,
        score=score,
        best_step=best_step,
        objective=objective,
        direction=direction,
        values={str(key): _plain(value) for key, value in list(values.items())[:100]},
        message=message and message[-2000:],
    )


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, type(None))) else str(value)[:200]


def trial_ended(name: str, *, message: str | None = None) -> None:
    """Report that this tuner has ended a trial; `message` is the reason if the trial failed."""
    _send("trial_ended", id=name, message=message and message[-2000:])


def search_ended() -> None:
    """Report that the search is over in this task; its further work needs no tuner."""
    _send_once("search_ended")


def setting_read(name: str) -> None:
    """Report that the job has read the setting `name` (`communication`, `precision` …)."""
    _send_once("setting_read", name=name)


def note(message: str) -> None:
    """Show the user one line; the same line is sent once."""
    _send_once("note", message=message)


def error(
    *, exception: str, message: str, file: str | None, line: int | None, traceback: str
) -> None:
    """Report an uncaught exception; `file` and `line` are the last frame of the user's code."""
    _sent.add("error")
    _send("error", exception=exception, message=message, file=file, line=line, traceback=traceback)


def gradients(variables: Iterable[Any]) -> None:
    """Report which built `variables` the optimizer updates: their gradients have the same bytes.

    `tfcluster scale` compares a step's time with them. The hooks do this for Keras's `fit`.
    """
    if times.is_on:
        times.note_gradients(variables)


def has_reported_error() -> bool:
    """Return whether this task has reported why it fails."""
    return "error" in _sent


def progress(
    step: int,
    *,
    total: int | None = None,
    epoch: int | None = None,
    epochs: int | None = None,
    metrics: Mapping[str, float] | None = None,
    batch_size: int | None = None,
    steps_per_execution: int = 1,
) -> None:
    """Report that `step` steps are done, in a custom training loop. Cheap enough for every step.

    `total` is the step at which the training is over, also for a resumed training; `epoch` counts
    from 1 to `epochs`; `batch_size` is the global batch size, used for examples per second. If one
    call runs several steps, `steps_per_execution` makes the launcher wait longer for the next
    report.
    """
    _flush_at_exit()
    values = dict(metrics or {})
    step_done(
        Reading(
            step,
            epoch=epoch,
            epochs=epochs,
            total_steps=total,
            metrics=lambda: values,
            batch_size=batch_size,
            steps_per_execution=steps_per_execution,
        )
    )


@functools.cache
def _flush_at_exit() -> None:
    """Register `finished` for the exit, so that a custom training loop need not call it."""
    atexit.register(finished)


def step_done(reading: Reading) -> None:
    """Report a Reading as `progress` does; call it in the thread that trains."""
    times.note(reading.step)
    meter.offer(reading)
    chaos.at_step(reading.step)


def reached(step: int, *, metrics: Mapping[str, float]) -> None:
    """Report that this task is at `step`: sent at once and without a speed."""
    _send("progress", step=step, metrics=dict(metrics))
    chaos.at_step(step)


def finished() -> None:
    """Report the end of the training loop: send the last progress if it is held back."""
    times.flush()
    meter.flush()


chaos.before_injection(finished)


def _send_once(kind: str, **fields: str) -> None:
    key = kind + repr(fields)
    if key in _sent or not event_channel.current().is_open:
        return
    _sent.add(key)
    _send(kind, **fields)


def _send(kind: str, **fields: Any) -> None:
    event_channel.current().send({"type": kind, **fields})


@dataclass(frozen=True)
class Reading:
    """The progress at one step; `metrics` is called only if the report is sent."""

    step: int
    epoch: int | None = None
    epochs: int | None = None
    steps_per_epoch: int | None = None
    total_steps: int | None = None
    """The value of `step` at which the training is over."""
    metrics: Callable[[], Mapping[str, float]] = field(default=dict)
    batch_size: int | None = None
    steps_per_execution: int = 1
    """Steps between two readings: the launcher allows for a longer silence."""
    ends_epoch: bool = False


class ProgressMeter:
    """The sender of progress: at most two events per second, each with the speed in steps.

    Ends of epochs have a limit of their own: only they carry the learning rate and `val_` metrics.
    It measures the speed between the last two events, and the mean speed since the first one, which
    includes all evaluations, saves and pauses.
    """

    def __init__(
        self,
        send: Callable[[Mapping[str, Any]], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._clock = clock
        # A signal handler may run while metrics are read, and it may report as well.
        self._lock = threading.RLock()
        self.last_step: int | None = None
        """The newest step offered, sent or not; reading it needs no lock."""
        self._sent_at: float | None = None
        self._epoch_sent_at = float("-inf")
        self._sent_step = 0
        self._speed: float | None = None
        self._started_at = 0.0
        self._done = 0
        self._held: Reading | None = None
        self._held_at = 0.0

    def offer(self, reading: Reading) -> None:
        """Send `reading`, or hold it back until the next event is due."""
        self.last_step = reading.step
        with self._lock:
            now = self._clock()
            self._held, self._held_at = reading, now
            sent_at = self._epoch_sent_at if reading.ends_epoch else self._sent_at
            if sent_at is not None and now - sent_at < INTERVAL_S:
                return
            if reading.ends_epoch:
                self._epoch_sent_at = now
            self._send_held()

    def flush(self) -> None:
        """Send the reading that is held back, if any."""
        with self._lock:
            if self._held is not None:
                self._send_held()

    def _send_held(self) -> None:
        reading = self._held
        if reading is None:
            return
        self._measure(reading)
        event: dict[str, Any] = {"type": "progress", "step": reading.step}
        for name in ("epoch", "epochs", "steps_per_epoch", "total_steps"):
            if (value := getattr(reading, name)) is not None:
                event[name] = value
        event["metrics"] = dict(reading.metrics())
        if reading.steps_per_execution > 1:
            event["steps_per_execution"] = reading.steps_per_execution
        if self._speed is not None:
            event["steps_per_second"] = round(self._speed, 4)
            mean = self._done / (self._held_at - self._started_at)
            event["mean_steps_per_second"] = round(mean, 4)
            if reading.batch_size:
                event["examples_per_second"] = round(self._speed * reading.batch_size, 2)
        # A signal handler may have sent it or offered a newer one while the metrics were read.
        if self._held is reading and self._send(event):
            self._held = None

    def _measure(self, reading: Reading) -> None:
        if self._sent_at is None:
            self._started_at = self._held_at  # the first step traces and compiles: not counted
        elif reading.step < self._sent_step:
            self._speed = None  # another training has started
        elif self._held_at > self._sent_at and reading.step > self._sent_step:
            elapsed = self._held_at - self._sent_at
            self._speed = (reading.step - self._sent_step) / elapsed
            self._done += reading.step - self._sent_step
        self._sent_at, self._sent_step = self._held_at, reading.step


meter = ProgressMeter(lambda event: event_channel.current().offer(event))


times = StepTimes(lambda **its: event_channel.current().offer({"type": "step_times", **its}))
