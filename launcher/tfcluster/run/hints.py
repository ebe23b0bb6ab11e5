"""The messages users meet again and again, each with its cure and the page that explains it.

The rows follow what is reported most: numbers are issues of tensorflow/tensorflow unless another
project is named. Every row has a section in ``docs/failures.md``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """A failure with a cure."""

    anchor: str
    hint: str
    pattern: str = ""
    """Of its message; empty for what is known by its circumstance alone."""
    kind: str | None = None
    """``permanent`` or ``port_taken``, where the message decides what kind of failure it is."""
    is_own: bool = False
    """It is a cause even where TensorFlow wraps it as the consequence of another task's end."""
    is_logged: bool = False
    """It is said in the log, long before the end."""

    @property
    def docs(self) -> str:
        return f"docs/failures.md#{self.anchor}"

    def matches(self, said: str) -> bool:
        return bool(self.pattern and re.search(self.pattern, said))


MESSAGES: tuple[Known, ...] = (
    Known(
        "configured-at-startup",
        "make the MultiWorkerMirroredStrategy before any other TensorFlow operation",
        r"Collective ops must be configured at program startup",
        kind="permanent",
    ),
    Known(
        "port-taken",
        "another process took the port; leave the ports to tfcluster (port 0)",
        r"Could not start gRPC server",
        kind="port_taken",
    ),
    Known(
        "keras-3",
        "Keras 3 fails on several workers (keras#20585), and `import keras` is Keras 3: "
        "write `import tf_keras as keras`, or use tf.keras",
        r"Invalid reduction dimension 0|convert a value \(PerReplica",
        kind="permanent",
    ),
    Known(
        "estimator-removed",
        "TensorFlow 2.15 was the last with Estimator: name a Python that has it with --python",
        r"'tensorflow' has no attribute 'estimator'|No module named '?tensorflow_estimator",
        kind="permanent",
    ),
    Known(
        "file-shard",
        "fewer files than workers: use the DATA auto-shard policy",
        r"FILE based sharding|aren't enough elements in this dataset",
        kind="permanent",
    ),
    Known(
        "import-error",
        "install it for the Python the start panel names, or choose another with --python",
        r"No module named",
        kind="permanent",
    ),
)

CIRCUMSTANCES: Mapping[str, Known] = {}
"""Kind of a failure, or name of a signal → what is usually behind it."""


def find(said: str, *, log: str = "") -> Known | None:
    """The first row that knows `said`, the words a task ended with, or a telling line of `log`."""
    for known in MESSAGES:
        if known.matches(said) or (known.is_logged and known.matches(log)):
            return known
    return None


def of_circumstance(name: str) -> Known | None:
    return CIRCUMSTANCES.get(name)
