"""What a task tells tfcluster: where it is, how fast, what went wrong.

Every function may be called with or without a launcher, from any thread, and never blocks the
training (an error or a saved checkpoint may wait up to two seconds for room).

They are also the places where `tfcluster up --chaos` strikes (chaos.py).
"""

from __future__ import annotations

import atexit
import functools
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from tfcluster_workers import chaos, event_channel

INTERVAL_S = 0.5
"""Shortest time between two progress events; the first and the last are always sent."""

ALIVE_INTERVAL_S = 1.0
"""Shortest time between two signs of life outside training."""

_said: set[str] = set()
_alive_at = float("-inf")


def waiting_for_peers() -> None:
    """This task now waits for the others: the start deadline runs from here."""
    _send_once("waiting_for_peers")
    chaos.at_join()


def ready() -> None:
    """This task has joined its cluster, or has done its first step."""
    _send_once("ready")


def serving() -> None:
    """This task only serves from now on: tfcluster ends it once nobody needs it."""
    ready()
    _send_once("serving")


def saves_on_sigterm() -> None:
    """This task saves its state on SIGTERM, so it wants the whole grace time."""
    _send_once("saves_on_sigterm")


_seen: tuple[str, int | None] | None = None
"""What the hooks have reported last, until a job reports it, too."""


def saved(path: str, *, step: int | None = None) -> None:
    """A checkpoint with this prefix or path is complete on disk."""
    global _seen
    was_seen, _seen = _seen == (path, step), None
    if not was_seen:
        _send_saved(path, step)
    chaos.at_saved()


def saw_saved(path: str, step: int | None) -> None:
    """The hooks saw a checkpoint saved; where the job says so as well, it is reported once."""
    global _seen
    _seen = path, step
    _send_saved(path, step)


def seen_step(path: str) -> int | None:
    """The step of the last save that the hooks saw, where it wrote this checkpoint."""
    return _seen[1] if _seen is not None and _seen[0] == path else None


def _send_saved(path: str, step: int | None) -> None:
    event = {"type": "saved", "path": path, "step": step, "at_ns": time.time_ns()}
    event_channel.current().send(event)


def saved_elsewhere(step: int | None) -> None:
    """A checkpoint is complete that is not in the task's checkpoint directory: no restart finds it
    there, but an evaluator may look at it."""
    event_channel.current().send({"type": "saved_elsewhere", "step": step})


def alive() -> None:
    """Work goes on that is no training step: a batch of an evaluation. Cheap enough for each."""
    global _alive_at
    now = time.monotonic()
    if now - _alive_at >= ALIVE_INTERVAL_S:
        _alive_at = now
        event_channel.current().offer({"type": "alive"})


def evaluated(step: int | None) -> None:
    """An evaluator is done with the checkpoint of this step, where it can tell."""
    ready()
    event_channel.current().send({"type": "evaluated", "step": step})
    if step is not None:
        chaos.at_step(step)


def failed_search(reason: str) -> None:
    """The job has failed, whatever its exit code will be: no trial of a search succeeded."""
    event_channel.current().send({"type": "verdict", "ok": False, "reason": reason})


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
    """What the oracle knows of a trial; `tuner` is the KERASTUNER_TUNER_ID that runs it.

    `best_step` counts from 0, as KerasTuner does: the epoch of the score.
    """
    event_channel.current().send(
        {
            "type": "trial",
            "id": name,
            "status": status,
            "tuner": tuner,
            "score": score,
            "best_step": best_step,
            "objective": objective,
            "direction": direction,
            "values": {str(key): _plain(value) for key, value in list(values.items())[:100]},
            "message": message and message[-2000:],
        }
    )


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, type(None))) else str(value)[:200]


def trial_ended(name: str, *, message: str | None = None) -> None:
    """This tuner is done with a trial; `message` says why it failed, if it did."""
    event = {"type": "trial_ended", "id": name, "message": message and message[-2000:]}
    event_channel.current().send(event)


def search_ended() -> None:
    """The search is over, here; what this task does now needs no tuner."""
    _send_once("search_ended")


def setting_read(name: str) -> None:
    """The job used the setting `name` (`communication`, `precision` …) of the spec."""
    _send_once("setting_read", name=name)


def note(message: str) -> None:
    """One line for the user, said once."""
    _send_once("note", message=message)


def error(
    *, exception: str, message: str, file: str | None, line: int | None, traceback: str
) -> None:
    """An uncaught exception; `file` and `line` are the last frame of the user's own code."""
    _said.add("error")
    event_channel.current().send(
        {
            "type": "error",
            "exception": exception,
            "message": message,
            "file": file,
            "line": line,
            "traceback": traceback,
        }
    )


def has_reported_error() -> bool:
    """Whether this task has said why it fails."""
    return "error" in _said


def progress(
    step: int,
    *,
    epoch: int | None = None,
    metrics: Mapping[str, float] | None = None,
    batch_size: int | None = None,
    steps_per_execution: int = 1,
) -> None:
    """For a loop of your own: `step` steps are done. Cheap enough for every step.

    `epoch` counts from 1; `batch_size` is the global batch, for examples per second. Where one
    call does several steps, `steps_per_execution` makes the launcher wait longer for the next.
    """
    _flush_at_exit()
    values = dict(metrics or {})
    step_done(
        Reading(
            step,
            epoch=epoch,
            metrics=lambda: values,
            batch_size=batch_size,
            steps_per_execution=steps_per_execution,
        )
    )


@functools.cache
def _flush_at_exit() -> None:
    """A loop of one's own need not say when it is `finished`."""
    atexit.register(finished)


def step_done(reading: Reading) -> None:
    """`progress` for one who has a `Reading`; to be called in the thread that trains."""
    meter.offer(reading)
    chaos.at_step(reading.step)


def reached(step: int, *, metrics: Mapping[str, float]) -> None:
    """This task is at `step`: sent at once and without a speed, as for an evaluation."""
    event_channel.current().send({"type": "progress", "step": step, "metrics": dict(metrics)})
    chaos.at_step(step)


def finished() -> None:
    """The training loop has ended: send the last progress if it is still held back."""
    meter.flush()


chaos.before_injection(finished)


def _send_once(kind: str, **fields: str) -> None:
    key = kind + repr(fields)
    if key in _said or not event_channel.current().is_open:
        return
    _said.add(key)
    event_channel.current().send({"type": kind, **fields})


@dataclass(frozen=True)
class Reading:
    """A step as the training loop sees it; `metrics` is asked only when it is sent."""

    step: int
    epoch: int | None = None
    metrics: Callable[[], Mapping[str, float]] = field(default=dict)
    batch_size: int | None = None
    steps_per_execution: int = 1
    """Steps that pass between two readings: the launcher must allow for a longer silence."""


class ProgressMeter:
    """Thins progress to two events a second, and measures the speed: between the last two of them,
    and the mean since the first, with all evaluations, saves and pauses between."""

    def __init__(
        self,
        send: Callable[[Mapping[str, Any]], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._clock = clock
        # Reading metrics may run a signal handler, and that may report as well.
        self._lock = threading.RLock()
        self.last_step: int | None = None
        """The newest step that was offered, sent or not; reading it never waits."""
        self._sent_at: float | None = None
        self._sent_step = 0
        self._speed: float | None = None
        self._begun_at = 0.0
        self._done = 0
        self._held: Reading | None = None
        self._held_at = 0.0

    def offer(self, reading: Reading) -> None:
        """Send `reading`, or hold it back until the next one is due."""
        self.last_step = reading.step
        with self._lock:
            now = self._clock()
            self._held, self._held_at = reading, now
            if self._sent_at is not None and now - self._sent_at < INTERVAL_S:
                return
            self._send_held()

    def flush(self) -> None:
        """Send what is held back."""
        with self._lock:
            if self._held is not None:
                self._send_held()

    def _send_held(self) -> None:
        reading = self._held
        if reading is None:
            return
        self._measure(reading)
        event: dict[str, Any] = {"type": "progress", "step": reading.step}
        if reading.epoch is not None:
            event["epoch"] = reading.epoch
        event["metrics"] = dict(reading.metrics())
        if reading.steps_per_execution > 1:
            event["steps_per_execution"] = reading.steps_per_execution
        if self._speed is not None:
            event["steps_per_second"] = round(self._speed, 4)
            mean = self._done / (self._held_at - self._begun_at)
            event["mean_steps_per_second"] = round(mean, 4)
            if reading.batch_size:
                event["examples_per_second"] = round(self._speed * reading.batch_size, 2)
        # A signal handler may have sent it, or brought a newer one, while the metrics were read.
        if self._held is reading and self._send(event):
            self._held = None

    def _measure(self, reading: Reading) -> None:
        if self._sent_at is None:
            self._begun_at = self._held_at  # a first step traces and compiles: it is no measure
        elif reading.step < self._sent_step:
            self._speed = None  # another training begins
        elif self._held_at > self._sent_at and reading.step > self._sent_step:
            elapsed = self._held_at - self._sent_at
            self._speed = (reading.step - self._sent_step) / elapsed
            self._done += reading.step - self._sent_step
        self._sent_at, self._sent_step = self._held_at, reading.step


meter = ProgressMeter(lambda event: event_channel.current().offer(event))
