"""Measures all-reduces between the workers of a cluster, for `tfcluster doctor --deep`.

    python …/boot.py module tfcluster_workers.all_reduce '{"groups": [["worker:0", …]], …}'

The groups take turns, so that no two of them share a network, and the first worker of a group
reports the time. The collectives are those that MultiWorkerMirroredStrategy runs, with keys of
their own: a strategy itself knows one group only, that of all workers.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from tfcluster_workers import context, reporting

_FIRST_KEY = 1000
"""The key of the first group; those of strategies begin at 1."""
_CALLS = 1000
"""The number of collectives that a group may run."""
_QUICK_S = 2.0
_REPEATS = 3
"""A group that is quick repeats its all-reduce, and its best time counts."""


class Group:
    """The collectives of some workers on one kind of device; all of them make the same calls."""

    def __init__(self, key: int, members: Sequence[str], device: str, communication: str) -> None:
        self.members, self.device = members, device
        self._key, self._calls = _FIRST_KEY + key, 0
        self._hint = "nccl" if communication == "NCCL" else "ring"

    def reduce(self, value: Any, timeout_s: float, *, merge: str = "Add") -> Any:
        """Return the sum of the members' values, or what `merge` makes of them."""
        import tensorflow as tf

        self._calls += 1
        with tf.device(self.device):
            return tf.raw_ops.CollectiveReduceV2(
                input=value,
                group_size=len(self.members),
                group_key=self._key,
                instance_key=self._key * _CALLS + self._calls,
                ordering_token=[],
                merge_op=merge,
                final_op="Id",
                communication_hint=self._hint,
                timeout_seconds=timeout_s,
            )


def main(order: dict[str, Any]) -> None:
    """Measure ``communications`` × ``groups`` with ``bytes`` on each worker's ``device``.

    No all-reduce begins after ``budget_s``, and none takes longer than ``timeout_s``.
    """
    import tensorflow as tf

    tf.distribute.MultiWorkerMirroredStrategy()  # has every worker meet the others
    this = context.current()
    sizes = ((job, len(this.cluster.get(job, ()))) for job in ("chief", "worker"))
    everyone = [f"{job}:{index}" for job, size in sizes for index in range(size)]
    place = f"/job:{this.job}/replica:0/task:{this.index}/device:"
    barrier = Group(0, everyone, f"{place}CPU:0", "RING")
    began, timeout_s = time.monotonic(), order["timeout_s"]
    wanted = [(name, members) for name in order["communications"] for members in order["groups"]]
    for key, (communication, members) in enumerate(wanted, start=1):
        elapsed = tf.constant([time.monotonic() - began])
        if float(barrier.reduce(elapsed, timeout_s, merge="Max")[0]) > order["budget_s"]:
            break
        if this.task in members:
            group = Group(key, members, f"{place}{order['device']}:0", communication)
            seconds = _measure(group, order["bytes"], timeout_s)
            if this.task == members[0]:
                reporting.all_reduced(communication, members, seconds)
    barrier.reduce(tf.constant([0.0]), timeout_s)  # nobody leaves while others still work


def _measure(group: Group, size: int, timeout_s: float) -> float:
    """Return the seconds of the group's best all-reduce of `size` bytes.

    Raises ArithmeticError if its result is wrong.
    """
    import tensorflow as tf

    group.reduce(tf.ones([1]), timeout_s)  # connects them
    with tf.device(group.device):
        value = tf.ones([size // 4])
    best = _time(group, value, timeout_s)
    slowest = float(group.reduce(tf.constant([best]), timeout_s, merge="Max")[0])
    for _ in range(_REPEATS - 1 if slowest < _QUICK_S else 0):  # the same number on all members
        best = min(best, _time(group, value, timeout_s))
    return best


def _time(group: Group, value: Any, timeout_s: float) -> float:
    began = time.monotonic()
    result = float(group.reduce(value, timeout_s)[-1])  # read, because a GPU works on in between
    seconds = time.monotonic() - began
    if result != len(group.members):
        raise ArithmeticError(f"the all-reduce of {len(group.members)} ones gives {result}")
    return seconds


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
