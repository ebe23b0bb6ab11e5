"""Who gets which cores, threads and GPUs of a node, so that tasks do not trample each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tfcluster.plan.plan import TaskId

Gpus = int | Sequence[int] | Literal["all"] | None
"""As the spec says it: a number per task, indexes, all of them, or nothing (divide evenly)."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one task may use of its node."""

    cores: tuple[int, ...] | None = None
    """Cores the task is pinned to; None: the system decides."""
    threads: int | None = None
    """Threads for each of TensorFlow's and NumPy's pools; None: their own default."""
    gpus: tuple[int, ...] | None = None
    """Indexes of the GPUs it sees; () none at all, None: what the node shows."""
    gpu_is_shared: bool = False


def divide(things: Sequence[int], parts: int, *, each: int | None = None) -> list[tuple[int, ...]]:
    """`each` cores or GPUs for every part, else an even share; where they run out, from the start.

    Shares are disjoint as long as there are enough of them.
    """
    size = min(each or max(1, len(things) // parts), len(things))
    return [
        tuple(things[(part * size + k) % len(things)] for k in range(size)) for part in range(parts)
    ]


def thread_budget(
    cores: int, parts: int, *, cpus: int | None = None, threads: int | None = None
) -> int | None:
    """Threads per task; None for a task that has the node to itself and no limit."""
    if threads is not None:
        return threads
    if cpus is not None:
        return cpus
    return None if parts <= 1 else max(1, cores // parts)


def thread_env(threads: int, *, serving_peers: int = 0) -> dict[str, str]:
    """The variables that hold TensorFlow, oneDNN, OpenBLAS and MKL to `threads`.

    TensorFlow's inter-op pool keeps at least 2 threads, and one more than the workers of a
    parameter-server job: with fewer the coordinator can block itself (tf.distribute docs,
    "Parameter server training", cluster setup).
    """
    between = max(threads, 2, serving_peers + 1)
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": str(between),
        **{name: str(threads) for name in names},
    }


def divide_gpus(
    tasks: Sequence[TaskId], available: Sequence[int] | None, wish: Gpus
) -> dict[TaskId, tuple[int, ...] | None]:
    """The GPUs of each task of one node; `available` None where only the node itself knows.

    Divided evenly over those that train: replicas with unequal GPU counts cannot form a
    collective (tensorflow#47203). Parameter servers get none, an evaluator what is left over.
    """
    if wish == "all":
        everything = None if available is None else tuple(available)
        return dict.fromkeys(tasks, everything)
    if isinstance(wish, int):
        return _number_each(tasks, available, wish)
    if wish is not None:
        return dict.fromkeys(tasks, tuple(wish))
    if not available:
        return dict.fromkeys(tasks, None)
    return _evenly(tasks, available)


def gpu_env(gpus: tuple[int, ...] | None, *, shared: bool) -> dict[str, str]:
    """No GPU is ``-1``: CUDA reads an empty variable as set, some libraries as unset."""
    if gpus is None:
        return {}
    env = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)) or "-1"}
    return env | ({"TF_FORCE_GPU_ALLOW_GROWTH": "true"} if shared and gpus else {})


def shared_gpus(given: Sequence[tuple[int, ...] | None]) -> frozenset[int]:
    """GPUs that more than one task of the node sees."""
    flat = [gpu for gpus in given for gpu in gpus or ()]
    return frozenset(gpu for gpu in flat if flat.count(gpu) > 1)


def _evenly(
    tasks: Sequence[TaskId], available: Sequence[int]
) -> dict[TaskId, tuple[int, ...] | None]:
    trains = [task for task in tasks if task.job in ("chief", "worker")]
    given: dict[TaskId, tuple[int, ...] | None] = dict.fromkeys(tasks, ())
    if trains:
        given.update(zip(trains, divide(available, len(trains)), strict=True))
    used = {gpu for gpus in given.values() for gpu in gpus or ()}
    for task in tasks:
        if task.job == "evaluator":
            given[task] = tuple(gpu for gpu in available if gpu not in used)
    return given


def _number_each(
    tasks: Sequence[TaskId], available: Sequence[int] | None, number: int
) -> dict[TaskId, tuple[int, ...] | None]:
    """`number` GPUs for each, one set after the other, beginning again where they run out."""
    if number == 0:
        return dict.fromkeys(tasks, ())
    takers = [task for task in tasks if task.job != "ps"]
    pool = tuple(available) if available else tuple(range(number * len(takers)))
    shares = divide(pool, len(takers), each=number)
    return {**dict.fromkeys(tasks, ()), **dict(zip(takers, shares, strict=True))}
