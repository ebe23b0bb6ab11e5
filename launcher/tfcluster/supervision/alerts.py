"""Alerts: what a user must know of a result although the tasks go on, or have ended with 0."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations
from math import isfinite, isnan
from typing import Final

from tfcluster.agent import catalogue as msg
from tfcluster.errors import join_first
from tfcluster.rundir import events as ev
from tfcluster.supervision.failure import CIRCUMSTANCES, FIX
from tfcluster.supervision.gang import Gang
from tfcluster.supervision.member import Member

_LOSS: Final = re.compile(r"(?:^|[_/ .-])loss(?:$|[_/ .-])|^(?:loss|cost)", re.IGNORECASE)
"""Names of losses: ``loss``, ``val_loss``, ``decoder/loss``, ``loss_1``; not ``closs``."""


class AlertKind(StrEnum):
    """The kinds of alerts; a run has at most one of each, the newest."""

    DIVERGED = "diverged"
    """A loss is not a number, or the weights are not."""
    TRAINS_ALONE = "trains_alone"
    """Each of several workers trains a model of its own."""
    SAME_DATA = "same_data"
    """Workers that train one model together read the same batches."""
    SHARDED_TWICE = "sharded_twice"
    """TensorFlow shards a dataset that the script has sharded."""
    STATES_DIFFER = "states_differ"
    """Workers that train one model together have restored different checkpoints."""
    NO_STEP = "no_step"
    """No task has taken a step, as their datasets have no element."""


_SHARD: Final = (
    "`strategy.experimental_distribute_dataset(dataset)`, or in a function of an input context"
    " `dataset.shard(context.num_input_pipelines, context.input_pipeline_id)`"
)
_RESTORE: Final = CIRCUMSTANCES["states_differ"].hint
_SHARD_ONCE: Final = (
    "remove `.shard`, or set `options.experimental_distribute.auto_shard_policy ="
    " tf.data.experimental.AutoShardPolicy.OFF`"
)
_INTENDED: Final = "; if that is intended: --set job.kind=plain"
_IN_SCOPE: Final = (
    "write `strategy = tf.distribute.MultiWorkerMirroredStrategy()` and make the model in"
    " `with strategy.scope():`"
)
WAYS: Final[Mapping[str, tuple[str, str]]] = {
    "": ("the script makes no MultiWorkerMirroredStrategy", _IN_SCOPE),
    "mirrored": (
        "MirroredStrategy spans one machine",
        "write `tf.distribute.MultiWorkerMirroredStrategy()` instead",
    ),
    "jax": (
        "the script does not call jax.distributed.initialize()",
        "call it, or keras.distribution.initialize(), before anything else of JAX, and set"
        " strategy.name to jax",
    ),
    "horovod": (
        "Horovod knows one process only, as it was not started by horovodrun",
        f"without Horovod: {_IN_SCOPE}",
    ),
    "outside_scope": (
        "the model was made outside of strategy.scope()",
        "make model and optimizer in `with strategy.scope():`",
    ),
    "outside_distribution": (
        "Keras has no distribution over the processes",
        "call `keras.distribution.set_distribution(keras.distribution.DataParallel())` before the"
        " model is made",
    ),
}
"""The ways to train alone, as tasks report them → the reason and the fix."""
_NOT_REDUCED: Final = (
    "no gradient is summed over the workers",
    "run the step in `strategy.run(step, args=(batch,))`, and make model and optimizer in"
    " `with strategy.scope():`",
)


def find_lone_training(workers: Sequence[Member], *, is_over: bool) -> str | None:
    """Return the sentence that all `workers` train alone, or None as long as that is not certain.

    They do if all have computed gradients, and none has summed anything over the workers or knows
    the others in another way (Horovod, JAX, servers). Before the end of the run (`is_over`) a loop
    may still come to it: after some batches, or, with JAX, once it calls its gradient functions.
    """
    ways = {worker.way for worker in workers}
    if len(workers) < 2 or None in ways or any(worker.reduces for worker in workers):
        return None
    if not is_over and "jax" in ways:
        return None
    if ways in ({"outside_scope"}, {"outside_distribution"}):
        reason, fix = WAYS[workers[0].way or ""]
    elif not any(worker.meets_peers for worker in workers):
        reason, fix = WAYS.get(workers[0].way or "", WAYS[""])
    elif is_over and "jax" not in ways and all(worker.trains_in_step for worker in workers):
        reason, fix = _NOT_REDUCED
    else:
        return None
    return f"{reason}: each of the {len(workers)} workers trains alone{FIX.format(fix)}{_INTENDED}"


def find_same_data(workers: Sequence[Member]) -> str | None:
    """Return the sentence that two of `workers` read the same first batches, or None."""
    readers: dict[tuple[str, ...], list[str]] = {}
    for worker in workers:
        if worker.first_batches and worker.trains_in_step:
            readers.setdefault(worker.first_batches, []).append(worker.name)
    same = next((names for names in readers.values() if len(names) > 1), None)
    if same is None:
        return None
    return f"{join_first(same)} train on the same batches, so they all do the same work"


def find_double_sharding(workers: Sequence[Member]) -> str | None:
    """Return the sentence that `workers` shard data which TensorFlow shards again, or None.

    Each takes a shard of its own then. Where all take the same ones, these split the data for
    another purpose: validation, for example.
    """
    taken = [set(worker.shards) for worker in workers if worker.shards]
    if all(first & second for first, second in combinations(taken, 2)):
        return None
    shards = max(number for number, _ in taken[0])
    lost = f"{shards - 1}/{shards}"
    return (
        f"the dataset is sharded twice: by the script's `shard({shards}, …)` and by TensorFlow,"
        f" so {lost} of the data is left out of each epoch{FIX.format(_SHARD_ONCE)}"
    )


_NO_STEP: Final = (
    "no step was taken: the dataset is empty"
    f"{FIX.format('check its files, filters and shards')}; a script should raise an error if"
    " nothing is left"
)


def find_no_step(workers: Sequence[Member]) -> str | None:
    """Return the sentence that none of `workers`, which have ended, had data to train on."""
    is_empty = [not worker.step and "data" in worker.doubts for worker in workers]
    return _NO_STEP if workers and all(is_empty) else None


def find_different_states(workers: Sequence[Member]) -> str | None:
    """Return the sentence that some of `workers` have restored other states than others, or None.

    Different names mean nothing if they have no number, or each the number of its worker: each may
    have files of its own.
    """
    known = [worker for worker in workers if worker.restored is not None]
    states: dict[tuple[str, ...], list[str]] = {}
    for worker in known:
        states.setdefault(worker.restored or (), []).append(worker.name)
    numbers = {worker.id.index: _numbers(worker.restored or ()) for worker in known}
    are_equal = len({*numbers.values()}) < 2 or all(
        {*found} <= {"", str(index)} for index, found in numbers.items()
    )
    if len(states) < 2 or (() not in states and are_equal):
        return None
    found = ", ".join(
        f"{join_first(names)} {'restored ' + join_first(state) if state else 'nothing'}"
        for state, names in sorted(states.items(), key=lambda item: not item[0])
    )
    return f"the workers start from different states: {found}"


def _numbers(state: tuple[str, ...]) -> tuple[str, ...]:
    """Return the numbers in the names of saves such as ``ckpt-6``; "" for other names."""
    return tuple(match[1] if (match := _SAVE_NUMBER.search(name)) else "" for name in state)


_SAVE_NUMBER: Final = re.compile(r"-(\d+(?:\.\d+)?)$")


WEIGHTS: Final = "the weights"
"""The name under which tasks report weights that are not numbers."""


@dataclass(slots=True)
class Losses:
    """The losses of one attempt that are not numbers, or the weights that are not."""

    since: dict[str, tuple[str, str, int | None, float]] = field(default_factory=dict)
    """Unit (a task, or a gang that trains together) → task, metric, step, value when it began."""
    _recovered: set[str] = field(default_factory=set)
    """Units whose loss was a number again: it may change with every step, which is said once."""

    def note(
        self, task: str, attempt: int, report: msg.Progress | msg.Weights, *, together: bool
    ) -> ev.Alert | None:
        """Return the alert that a report gives: a loss has become NaN or infinite, or is back.

        The weights count as a loss; they are said even where another loss has come back.

        `together`: the tasks of the gang train together, so one stands for all.
        """
        unit = "" if together else task
        if unit in self._recovered and WEIGHTS not in report.metrics:
            return None
        before, at = self.since.get(unit), report.step
        if before is None:
            bad = (item for item in report.metrics.items() if not isfinite(item[1]))
            first_bad = next((i for i in bad if i[0] == WEIGHTS or _LOSS.search(i[0])), None)
            if first_bad is None:
                return None
            metric, value = first_bad
            self.since[unit] = task, metric, at, value
            verb, since = ("are", "at") if metric == WEIGHTS else ("is", "since")
            steps = "" if at is None else f" {since} step {at:,}"
        else:
            first, metric, step, value = before
            if task != first or not isfinite(report.metrics.get(metric, value)):
                return None  # a task may report a loss of its own
            self._recovered.add(unit)
            del self.since[unit]
            verb = "were" if metric == WEIGHTS else "was"
            steps = "" if step is None or at is None else f" from step {step:,} to {at:,}"
        message = f"{metric} {verb} {_name_of(value)}{steps} ({task})"
        return ev.Alert(
            kind=str(AlertKind.DIVERGED),
            message=message,
            task=task,
            attempt=attempt,
            step=report.step,
        )


@dataclass(slots=True)
class Alerts:
    """The alerts of an attempt: each of its methods returns the new ones."""

    gang: Gang
    messages: dict[AlertKind, str] = field(default_factory=dict)
    """The alerts so far, but those about losses → their messages, without a constant fix."""
    losses: Losses = field(default_factory=Losses)

    def begin(self) -> None:
        """Forget the alerts of the attempt before: what still holds is found again."""
        self.messages, self.losses = {}, Losses()

    def of_report(self, report: msg.TaskReport) -> Iterator[ev.Alert]:
        """Compare what the tasks have reported about their training."""
        match report:
            case msg.Restored():
                message = find_different_states(self._workers)
                yield from self._new(AlertKind.STATES_DIFFER, message, fix=_RESTORE)
            case msg.FirstBatches():
                yield from self._new(AlertKind.SAME_DATA, find_same_data(self._workers), fix=_SHARD)
            case msg.Sharded():
                yield from self._new(AlertKind.SHARDED_TWICE, find_double_sharding(self._workers))

    def of_lone_training(self, *, is_over: bool = False) -> Iterator[ev.Alert]:
        """Say that the workers train alone, if that is certain."""
        message = find_lone_training(self._workers, is_over=is_over)
        yield from self._new(AlertKind.TRAINS_ALONE, message)

    @property
    def seem_alone(self) -> bool:
        """True if the workers train alone, unless they still come to it."""
        return find_lone_training(self._workers, is_over=False) is not None

    def of_no_step(self) -> Iterator[ev.Alert]:
        """Say that no task had data to train on, if all that have ended say so."""
        yield from self._new(AlertKind.NO_STEP, find_no_step(self.gang.finished()))

    @property
    def _workers(self) -> list[Member]:
        """The tasks that train one model together, if those of the plan are meant to."""
        is_meant = self.gang.plan.is_synchronous
        return self.gang.members(lambda member: member.trains_together) if is_meant else []

    def _new(self, kind: AlertKind, message: str | None, *, fix: str = "") -> Iterator[ev.Alert]:
        """Yield an alert of this `kind`, once in an attempt; none without a message."""
        if message is not None and kind not in self.messages:
            self.messages[kind] = message
            message += FIX.format(fix) if fix else ""
            yield ev.Alert(kind=str(kind), message=message, attempt=self.gang.number)


def _name_of(value: float) -> str:
    return "NaN" if isnan(value) else "infinite" if value > 0 else "-infinite"
