"""Reports of a task to tfcluster: its state, progress, checkpoints, trials and errors.

Every function can be called with or without a launcher and from any thread, and never blocks the
training (an error or a saved checkpoint may wait up to two seconds for room in the socket).

A child of the task reports nothing until it trains: until it joins the cluster, begins Keras's
`fit`, computes a gradient or calls `progress`. Then it claims to be the process that reports.

Some of them also inject the faults of `tfcluster up --chaos` (chaos.py).
"""

from __future__ import annotations

import atexit
import functools
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

from tfcluster_workers import chaos, event_channel, last_step, profiling, stack_dumps
from tfcluster_workers.step_ends import StepEnds
from tfcluster_workers.step_parts import StepParts

INTERVAL_S = 0.5
"""Shortest time between two progress events; the first and the last are always sent."""

RATE_S, RATE_STEPS = 5.0, 5
"""The least time and steps that a speed is measured over: shorter ones show noise."""

ALIVE_INTERVAL_S = 1.0
"""Shortest time between two `alive` events."""

_sent: set[str] = set()
"""The events that are sent once and have been sent."""
thread = threading.local()
"""`trains`: the thread takes part in the training."""
_alive_at = float("-inf")
"""Time of the last `alive` event."""
_in_doubt: set[str] = set()
"""The subjects of the doubts that have been reported."""
_last_seen: tuple[str, int | None] | None = None
"""Path and step of the last save that the hooks reported, until a job reports it too."""


def claim() -> None:
    """Have this process report for its task, if it is a child of it and the agent agrees."""
    log = event_channel.current().claim()
    if log is not None:
        stack_dumps.begin_in_child(log)
        last_step.share()
        chaos.arm_child()


def _claim_unless_in_pool() -> None:
    """Do as `claim`, but not in a worker of a pool: it may train models of its own.

    Such a worker counts only once it has joined the cluster.
    """
    if not event_channel.is_pool_worker():
        claim()


def waiting_for_peers() -> None:
    """Report that this task waits for its peers: the start deadline counts from here."""
    claim()
    _send_once("waiting_for_peers")
    chaos.at_join()


def phase(name: str) -> None:
    """Report what this task does before its first step; an empty `name` ends that."""
    _send("task_phase", name=name)


def ready() -> None:
    """Report that this task has joined its cluster or has done its first step."""
    _send_once("task_ready")


def serving() -> None:
    """Report that this task only serves from now on: tfcluster ends it when no task needs it."""
    ready()
    if _send_once("serving"):
        profiling.serve()


def saves_on_sigterm(*, is_over: bool = False) -> None:
    """Report that this task saves its state on SIGTERM, so it needs the whole grace time.

    `is_over`: it did, and no longer does.
    """
    _send("saves_on_sigterm", **({"is_over": True} if is_over else {}))


def saved(path: str, *, step: int | None = None) -> None:
    """Report that the checkpoint with this prefix or path is complete on disk."""
    global _last_seen
    was_seen, _last_seen = _last_seen == (path, step), None
    if not was_seen:
        _send_saved(path, step)
    chaos.at_saved()


def saw_saved(path: str, step: int | None, load: str | None = None) -> None:
    """Report a checkpoint that the hooks saw; `saved` does not report the same one again.

    `load`: Python that loads it, with `{path}` for the path.
    """
    global _last_seen
    _last_seen = path, step
    _send_saved(path, step, load)


def seen_step(path: str) -> int | None:
    """Return the step of the last save that the hooks saw; None if it wrote another checkpoint."""
    return _last_seen[1] if _last_seen is not None and _last_seen[0] == path else None


def _send_saved(path: str, step: int | None, load: str | None = None) -> None:
    _send("saved", path=path, step=step, at_ns=time.time_ns(), load=load)


def saved_elsewhere(step: int | None) -> None:
    """Report a complete checkpoint outside the task's checkpoint directory.

    No restart finds it there, but an evaluator may evaluate it.
    """
    _send("saved_elsewhere", step=step)


def saved_model(path: str) -> None:
    """Report the model that this task leaves outside its checkpoint directory at its end."""
    _send("saved_model", path=path)


def training_begins() -> None:
    """Report that a training such as Keras's `fit` begins: to compile its step may take minutes."""
    _claim_unless_in_pool()
    note_work()
    parts.restart()
    alive()


def alive() -> None:
    """Report work that is not a training step, such as a batch of an evaluation.

    Cheap enough to call for each batch: at most one event per ALIVE_INTERVAL_S is sent.
    """
    global _alive_at
    now = time.monotonic()
    if now - _alive_at >= ALIVE_INTERVAL_S:
        _alive_at = now
        event_channel.current().offer({"type": "alive"})


def evaluated(step: int | None, **details: object) -> None:
    """Report that an evaluator has evaluated the checkpoint of `step` (None: unknown).

    `details`: what decides which checkpoint is the best; see `evaluator.report`.
    """
    claim()
    ready()
    _send("evaluated", step=step, **details)
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
    claim()
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


def meets_peers() -> None:
    """Report that this task knows others: by a strategy, a resolver, a server or a collective."""
    _send_once("meets_peers")


def reduces() -> None:
    """Report that this task has summed a value over all workers."""
    _send_once("reduces")


def trains(way: str) -> None:
    """Report that this task has computed a gradient.

    `way`: ``mirrored``, ``jax`` or ``horovod`` where the script uses something that knows no other
    task, ``outside_scope`` where the model was made outside of its strategy's scope,
    ``outside_distribution`` where Keras on JAX has no distribution, else empty.
    """
    _claim_unless_in_pool()
    _send_once("trains", way=way)


def restored(names: Sequence[str]) -> None:
    """Report all that this task has restored before its first step, by name: ``ckpt-6``."""
    _send_once("restored", names=list(names))


def first_batches(fingerprints: Sequence[str]) -> None:
    """Report the fingerprints of the first batches that this task trains on."""
    _send_once("first_batches", fingerprints=list(fingerprints))


def sharded(shards: int, index: int) -> None:
    """Report that the script has taken one of `shards` of a dataset that TensorFlow shards again.

    A few are reported: a dataset for training, one for validation.
    """
    _send_once("sharded", shards=shards, index=index)


def weights(value: float) -> None:
    """Report that weights are NaN or infinite, whichever `value` is, or are numbers again (0)."""
    _send("weights", metrics={"the weights": value}, step=meter.last_step)


def devices(names: Sequence[str]) -> None:
    """Report the devices that TensorFlow has registered, with the models of GPUs."""
    _send_once("task_devices", devices=list(names))


def unused_gpus(count: int) -> None:
    """Report that this task trains on the CPU of a machine with `count` GPUs."""
    _send_once("unused_gpus", count=count)


def all_reduced(communication: str, workers: Sequence[str], seconds: float) -> None:
    """Report the time of one all-reduce between `workers` (all_reduce.py)."""
    _send("all_reduce", communication=communication, workers=list(workers), seconds=seconds)


def note(message: str) -> None:
    """Show the user one line; the same line is sent once."""
    _send_once("note", message=message)


def error(
    *,
    exception: str,
    message: str,
    file: str | None,
    line: int | None,
    traceback: str,
    child_code: int | None = None,
    cause: str = "",
) -> None:
    """Report an uncaught exception; `file` and `line` are the last frame of the user's code.

    `child_code`: the exit code of a child process that failed, negative for a signal. `cause`: see
    `errors.JobError`.
    """
    _sent.add("task_error")
    _send(
        "task_error",
        exception=exception,
        message=message,
        file=file,
        line=line,
        traceback=traceback,
        child_code=child_code,
        cause=cause or None,
    )


def doubt(about: str, **exception: Any) -> None:
    """Report what would make an end with exit code 0 doubtful.

    `about`: ``fit``, ``thread``, ``exit`` or ``data``; `exception`: `failures.facts_of` that.
    """
    _in_doubt.add(about)
    _send("doubt", about=about, **exception)


def doubt_over(about: str) -> None:
    """Report that an earlier `doubt` does not count any more; nothing if there was none."""
    if about in _in_doubt:
        _in_doubt.discard(about)
        _send("doubt_over", about=about)


def gradients(variables: Iterable[Any]) -> None:
    """Report which built `variables` the optimizer updates: their gradients have the same bytes.

    `tfcluster scale` compares a step's time with them. The hooks do this for Keras's `fit`.
    """
    if ends.is_on:
        ends.note_gradients(variables)


def has_reported_error() -> bool:
    """Return whether this task has reported why it fails."""
    return "task_error" in _sent


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
    claim()
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
    parts.note(step)


@functools.cache
def _prepare_end() -> None:
    """Have the last step known, however this task ends; its metrics too, if Python ends it."""
    last_step.share()
    atexit.register(finished)


def note_work() -> None:
    """Note that the calling thread takes part in the training. Cheap enough for every step."""
    _prepare_end()
    thread.trains = True


def step_done(reading: Reading) -> None:
    """Report a Reading as `progress` does; call it in the thread that trains."""
    note_work()
    ends.note(reading.step)
    meter.offer(reading)
    profiling.at_step(reading.step)
    chaos.at_step(reading.step)


def reached(step: int, *, metrics: Mapping[str, float]) -> None:
    """Report that this task is at `step`: sent at once and without a speed."""
    last_step.note(step)
    _send("progress", step=step, metrics=dict(metrics))
    chaos.at_step(step)


def finished() -> None:
    """Report the end of the training loop: send the last progress if it is held back."""
    ends.flush()
    parts.flush()
    meter.flush()


chaos.before_injection(finished)


def _send_once(kind: str, **fields: object) -> bool:
    """Send an event unless it was sent before; return whether it was sent now."""
    key = kind + repr(fields)
    if key in _sent or not event_channel.current().send({"type": kind, **fields}):
        return False
    _sent.add(key)
    return True


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
    It measures the speed over the last `RATE_S` and `RATE_STEPS`, and the mean speed since the
    first event. Both include evaluations, saves and pauses.
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
        self._recent: deque[tuple[float, int]] = deque()
        """Time and step of the last sent events: as few as the speed is measured over."""
        self._started_at = 0.0
        self._done = 0
        self._held: Reading | None = None
        self._held_at = 0.0

    def offer(self, reading: Reading) -> None:
        """Send `reading`, or hold it back until the next event is due."""
        self.last_step = reading.step
        last_step.note(reading.step)
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
        self._measure(reading.step)
        event: dict[str, Any] = {"type": "progress", "step": reading.step}
        for name in ("epoch", "epochs", "steps_per_epoch", "total_steps"):
            if (value := getattr(reading, name)) is not None:
                event[name] = value
        event["metrics"] = _read_metrics(reading)
        if reading.steps_per_execution > 1:
            event["steps_per_execution"] = reading.steps_per_execution
        rates = {"": self._rate(), "mean_": self._mean_rate()}
        for prefix, rate in rates.items():
            if rate is not None:
                event[f"{prefix}steps_per_second"] = round(rate, 4)
                if reading.batch_size:
                    event[f"{prefix}examples_per_second"] = round(rate * reading.batch_size, 2)
        # A signal handler may have sent it or offered a newer one while the metrics were read.
        if self._held is reading and self._send(event):
            self._held = None

    def _measure(self, step: int) -> None:
        now, recent = self._held_at, self._recent
        if self._sent_at is None:
            self._started_at = now  # the first step traces and compiles: not counted
        elif step < recent[-1][1]:
            recent.clear()  # another training has started
        elif step > recent[-1][1]:
            self._done += step - recent[-1][1]
        recent.append((now, step))
        while len(recent) > 2 and _is_enough(recent[1], recent[-1]):
            recent.popleft()
        self._sent_at = now

    def _rate(self) -> float | None:
        """Return the steps per second of the last seconds; None before there were enough."""
        first, last = self._recent[0], self._recent[-1]
        return (last[1] - first[1]) / (last[0] - first[0]) if _is_enough(first, last) else None

    def _mean_rate(self) -> float | None:
        passed_s = self._held_at - self._started_at
        return self._done / passed_s if self._done and passed_s > 0 else None


def _is_enough(first: tuple[float, int], last: tuple[float, int]) -> bool:
    """Return whether a speed may be measured between two events."""
    return last[0] - first[0] >= RATE_S and last[1] - first[1] >= RATE_STEPS


def _read_metrics(reading: Reading) -> dict[str, float]:
    try:
        return dict(reading.metrics())
    except Exception:  # a value that is lost with the step that failed
        return {}


meter = ProgressMeter(lambda event: event_channel.current().offer(event))


ends = StepEnds(lambda **its: event_channel.current().offer({"type": "step_ends", **its}))

parts = StepParts(lambda **its: event_channel.current().offer({"type": "step_parts", **its}))
"""The time of each part of a step."""
