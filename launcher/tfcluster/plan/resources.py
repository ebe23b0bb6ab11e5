"""Who gets which cores, threads and GPUs of a node, so that tasks do not trample each other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tfcluster.plan.plan import Gpus, Resources, TaskId

EVEN: Final = "resources: an even share of the cores"
"""Who has set a variable, for people."""
_NOBODY: Final[Mapping[TaskId, Gpus]] = {}


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores of a machine that tasks may use."""

    nodes: tuple[tuple[int, ...], ...] = ((0,),)
    """Numbers by NUMA node; those that share one physical core (SMT) are neighbours."""
    limit: float | None = None
    """How many cores' time a control group allows; None: all."""


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


def shares(
    tasks: Sequence[TaskId],
    wishes: Resources,
    *,
    cores: Cores | None,
    gpus: Sequence[int] | None,
    own_gpus: Mapping[TaskId, Gpus] = _NOBODY,
    aside: Collection[TaskId] = (),
) -> dict[TaskId, Share]:
    """What each of `tasks`, which have one machine to themselves, gets of it.

    `cores` and `gpus` are None where they are not known; `own_gpus` are wishes of single tasks,
    above that for all. `aside`: tasks that take no cores from those that set the pace. A task
    alone has the machine, and what TensorFlow makes of it.
    """
    devices = divide_gpus(tasks, gpus, wishes.gpus, own_gpus)
    shared = shared_gpus(devices.values())
    dealt = _dealt(tasks, wishes, cores, aside) if cores is not None else {}
    size = min(map(len, dealt.values()), default=1)
    found = {}
    for task in tasks:
        pinned = threads = None
        if cores is not None and len(tasks) > 1:
            pinned = _pinned(dealt[task], wishes.pin, cores) if task in dealt else None
            threads = size if cores.limit is None else min(size, int(cores.limit / len(tasks)))
            threads = max(1, threads)
        threads = wishes.threads or wishes.cpus or threads
        found[task] = Share(pinned, threads, devices[task], bool(shared & set(devices[task] or ())))
    return found


def stand_aside(tasks: Sequence[TaskId], *, is_search: bool) -> frozenset[TaskId]:
    """Tasks whose work nobody waits for at each step: an evaluator, the chief of a search."""
    jobs = {"evaluator", "chief"} if is_search else {"evaluator"}
    return frozenset(task for task in tasks if task.job in jobs)


def deal(
    nodes: Sequence[Sequence[int]], parts: int, *, each: int | None = None
) -> list[tuple[int, ...]]:
    """Cores of `parts` tasks: `each` so many, else equal shares, as the slowest sets the pace.

    As long as there are enough, shares are disjoint, lie in one NUMA node where that costs a
    task at most a third of its cores, and are spread evenly over the machine.
    """
    cores = [core for node in nodes for core in node]
    size = each or max(1, len(cores) // parts)
    smallest = each or -(-2 * size // 3)
    for smaller in range(size, smallest - 1, -1):
        runs = [
            tuple(node[start : start + smaller])
            for node in nodes
            for start in range(0, len(node) - smaller + 1, smaller)
        ]
        if len(runs) >= parts:
            return [runs[part * len(runs) // parts] for part in range(parts)]
    return divide(cores, parts, each=size)


def divide(things: Sequence[int], parts: int, *, each: int | None = None) -> list[tuple[int, ...]]:
    """`each` cores or GPUs for every part, else an even share; where they run out, from the start.

    Shares are disjoint as long as there are enough of them.
    """
    size = min(each or max(1, len(things) // parts), len(things))
    return [
        tuple(things[(part * size + k) % len(things)] for k in range(size)) for part in range(parts)
    ]


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
    tasks: Sequence[TaskId],
    available: Sequence[int] | None,
    wish: Gpus,
    own: Mapping[TaskId, Gpus] = _NOBODY,
) -> dict[TaskId, tuple[int, ...] | None]:
    """The GPUs of each task of one node; `available` None where only the node itself knows.

    `own` are wishes of single tasks; the others get of what these leave. Divided evenly over
    those that train: replicas with unequal GPU counts cannot form a collective
    (tensorflow#47203). Parameter servers get none, an evaluator what is left over.
    """
    everything = None if available is None else tuple(available)
    wishes = gpu_wishes(tasks, wish, own)
    listed = {task: tuple(its) for task, its in wishes.items() if isinstance(its, list | tuple)}
    numbers = {task: its for task, its in wishes.items() if isinstance(its, int)}
    own_ones = listed | _number_each(numbers, everything, _flat(listed.values()))
    given: dict[TaskId, tuple[int, ...] | None] = dict.fromkeys(tasks)
    given |= own_ones
    given |= {task: everything for task, its in wishes.items() if its == "all"}
    if everything:
        left = tuple(gpu for gpu in everything if gpu not in _flat(own_ones.values()))
        given |= _evenly([task for task in tasks if wishes[task] is None], left, everything)
    return given


def gpu_wishes(
    tasks: Sequence[TaskId], wish: Gpus, own: Mapping[TaskId, Gpus] = _NOBODY
) -> dict[TaskId, Gpus]:
    """What each task asks for: its `own` wish, else that for all; of a number ps get none."""
    of_ps = 0 if isinstance(wish, int) else wish
    wishes: dict[TaskId, Gpus] = {task: of_ps if task.job == "ps" else wish for task in tasks}
    return wishes | dict(own)


def gpu_env(gpus: tuple[int, ...] | None, *, shared: bool) -> dict[str, str]:
    """No GPU is ``-1``: CUDA reads an empty variable as set, some libraries as unset."""
    if gpus is None:
        return {}
    env = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)) or "-1"}
    return env | ({"TF_FORCE_GPU_ALLOW_GROWTH": "true"} if shared and gpus else {})


def shared_gpus(given: Iterable[tuple[int, ...] | None]) -> frozenset[int]:
    """GPUs that more than one task of the node sees."""
    flat = _flat(given)
    return frozenset(gpu for gpu in flat if flat.count(gpu) > 1)


def _flat(given: Iterable[tuple[int, ...] | None]) -> list[int]:
    return [gpu for gpus in given for gpu in gpus or ()]


def _evenly(
    tasks: Sequence[TaskId], left: Sequence[int], everything: Sequence[int]
) -> dict[TaskId, tuple[int, ...]]:
    trains = [task for task in tasks if task.job in ("chief", "worker")]
    given: dict[TaskId, tuple[int, ...]] = dict.fromkeys(tasks, ())
    if trains:
        given.update(zip(trains, divide(left or everything, len(trains)), strict=True))
    used = _flat(given.values())
    for task in tasks:
        if task.job == "evaluator":
            given[task] = tuple(gpu for gpu in left if gpu not in used)
    return given


def _number_each(
    numbers: Mapping[TaskId, int], available: Sequence[int] | None, named: Collection[int]
) -> dict[TaskId, tuple[int, ...]]:
    """So many for each, one set after the other and none of those `named`, beginning again where
    they run out."""
    pool = available or range(sum(numbers.values()) + len(named))
    left = [gpu for gpu in pool if gpu not in named] or list(pool)
    given, start = {}, 0
    for task, number in numbers.items():
        size = min(number, len(left))
        given[task] = tuple(left[(start + k) % len(left)] for k in range(size))
        start += size
    return given


def _dealt(
    tasks: Sequence[TaskId], wishes: Resources, cores: Cores, aside: Collection[TaskId]
) -> dict[TaskId, tuple[int, ...]]:
    """Those `aside` run beside the others, on any core, unless the spec counts for each."""
    leading = [task for task in tasks if wishes.cpus is not None or task not in aside] or tasks
    return dict(zip(leading, deal(cores.nodes, len(leading), each=wishes.cpus), strict=True))


def _pinned(share: tuple[int, ...], pin: bool | None, cores: Cores) -> tuple[int, ...] | None:
    if pin is not None:
        return share if pin else None
    near = [node for node in cores.nodes if set(node) & set(share)]
    if len(near) == len(cores.nodes):
        return None
    return tuple(sorted(core for node in near for core in node))
