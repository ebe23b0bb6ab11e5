"""Which of several failed tasks is the cause: the first whose failure is not a consequence.

When one worker dies, TensorFlow ends the others within seconds with errors of their own
(tensorflow/core: "Collective ops is aborted by", coordination-service heartbeats). Those are
*collateral*; what killed the first task is the *root cause*.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_COLLATERAL = re.compile(
    r"Collective ops is aborted by"
    r"|heartbeat timeout|stopped sending heartbeats"
    r"|set to ERROR in coordination service"
    r"|Coordination agent is set to ERROR"
    r"|cluster check alive failed"
    r"|Restart your program to reset"
    r"|Socket closed|Connection reset by peer|GOAWAY received"
)
_HINTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"Collective ops must be configured at program startup"),
        "make the MultiWorkerMirroredStrategy before any other TensorFlow operation",
    ),
    (
        re.compile(r"Could not start gRPC server"),
        "another process took the port; leave the ports to tfcluster (port 0)",
    ),
    (
        re.compile(r"Invalid reduction dimension 0|convert a value \(PerReplica"),
        "Keras 3 fails on several workers (keras#20585), and `import keras` is Keras 3: "
        "write `import tf_keras as keras`, or use tf.keras",
    ),
    (
        re.compile(
            r"'tensorflow' has no attribute 'estimator'|No module named '?tensorflow_estimator"
        ),
        "TensorFlow 2.15 was the last with Estimator: name a Python that has it with --python",
    ),
    (
        re.compile(r"FILE based sharding|aren't enough elements in this dataset"),
        "fewer files than workers: use the DATA auto-shard policy",
    ),
    (
        re.compile(r"No module named"),
        "install it for the Python the start panel names, or choose another with --python",
    ),
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A task that ended badly by itself, in the order in which the ends arrived."""

    task: str
    exit_code: int | None
    signal: int | None
    error: str = ""
    """``ValueError: …`` and where, as the task reported it; empty without a report."""
    last_lines: str = ""

    @property
    def is_collateral(self) -> bool:
        """Whether its own words say that it only follows another task's end."""
        if self.signal is not None and self.signal != signal.SIGABRT:
            return False
        return bool(_COLLATERAL.search(self.error or self.last_lines))

    @property
    def reason(self) -> str:
        if self.error:
            return _brief(self.error)
        if self.signal is not None:
            return f"killed by {_signal_name(self.signal)}"
        return f"exit code {self.exit_code}"

    @property
    def hint(self) -> str | None:
        text = f"{self.error}\n{self.last_lines}"
        return next((hint for pattern, hint in _HINTS if pattern.search(text)), None)


def _brief(text: str, *, lines: int = 8) -> str:
    """A tensor's values may be part of a message; its first and last lines say what is wrong."""
    found = text.splitlines()
    if len(found) <= lines:
        return text
    return "\n".join([*found[:2], f"… {len(found) - 4} lines …", *found[-2:]])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def root_cause(failures: Sequence[Failure]) -> Failure | None:
    """The first failure that is not collateral, else the first of all; None without failures."""
    own = (failure for failure in failures if not failure.is_collateral)
    return next(own, failures[0] if failures else None)


def to_json(failures: Sequence[Failure]) -> dict[str, Any] | None:
    """`root_cause` and `collateral` as the `diagnosis` event and ``status --json`` show them."""
    cause = root_cause(failures)
    if cause is None:
        return None
    facts = {
        "task": cause.task,
        "reason": cause.reason,
        "exit_code": cause.exit_code,
        "signal": cause.signal,
        "hint": cause.hint,
    }
    return {
        "root_cause": {name: value for name, value in facts.items() if value is not None},
        "collateral": tuple(f.task for f in failures if f is not cause and f.is_collateral),
    }
