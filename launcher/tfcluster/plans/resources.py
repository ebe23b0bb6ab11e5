"""The division of a node's cores, threads and GPUs between its tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from tfcluster.errors import join_first
from tfcluster.plans.plan import Gpu, Gpus, Resources, TaskId
from tfcluster.spec import COMPANIONS

T = TypeVar("T")

EVEN_SHARE: Final = "resources: an even share of the cores"
"""The source of thread variables, for the user."""
GIVEN_GPUS: Final = "TFCLUSTER_GPUS"
"""The GPUs that the spec asks for, for a task that fails if its TensorFlow has none: the value of
its CUDA_VISIBLE_DEVICES, or where only its node knows them ``all`` or ``some``
(`tfcluster_workers`). With the even share that tasks get by default a missing GPU is a warning.
"""
_NO_TASKS: Final[Mapping[TaskId, Gpus]] = {}


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores of a machine that tasks may use."""

    nodes: tuple[tuple[int, ...], ...] = ((0,),)
    """Core numbers by NUMA node; threads of one physical core (SMT) are neighbours."""
    limit: float | None = None
    """The CPU limit of the control group, in cores; None: no limit."""


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a node that one task may use."""

    cores: tuple[int, ...] | None = None
    """The cores to which the task is pinned; None: not pinned."""
    threads: int | None = None
    """Threads for each TensorFlow and NumPy pool; None: the library's default."""
    gpus: tuple[Gpu, ...] | None = None
    """The GPUs that it sees; (): none, None: all that are visible on the node."""
    gpu_is_shared: bool = False


def share_machine(
    tasks: Sequence[TaskId],
    requested: Resources,
    *,
    cores: Cores | None,
    gpus: Sequence[Gpu] | None,
    task_gpus: Mapping[TaskId, Gpus] = _NO_TASKS,
    background: Collection[TaskId] = (),
) -> dict[TaskId, Share]:
    """Return the share of each of `tasks`, which are all tasks of one machine.

    `cores` and `gpus` are None if they are unknown. `task_gpus` are requests of single tasks, which
    override `requested.gpus`. `background` tasks take no cores from the others. A single task is
    neither pinned nor limited in threads unless `requested` says so.
    """
    devices = divide_gpus(tasks, gpus, requested.gpus, task_gpus)
    shared = shared_gpus(devices.values())
    dealt = _cores_of_tasks(tasks, requested, cores, background) if cores is not None else {}
    size = min(map(len, dealt.values()), default=1)
    shares_by_task = {}
    for task in tasks:
        pinned = threads = None
        if cores is not None and len(tasks) > 1:
            pinned = _pin(dealt[task], requested.pin, cores) if task in dealt else None
            threads = size if cores.limit is None else min(size, int(cores.limit / len(tasks)))
            threads = max(1, threads)
        threads = requested.threads or requested.cpus or threads
        is_shared = bool(shared & set(devices[task] or ()))
        shares_by_task[task] = Share(pinned, threads, devices[task], is_shared)
    return shares_by_task


def background_tasks(tasks: Sequence[TaskId], *, is_search: bool) -> frozenset[TaskId]:
    """Return the tasks that no step waits for: an evaluator, a dispatcher, a search's chief."""
    jobs = {*COMPANIONS, "chief"} if is_search else {*COMPANIONS}
    return frozenset(task for task in tasks if task.job in jobs)


def deal_cores(
    nodes: Sequence[Sequence[int]], parts: int, *, each: int | None = None
) -> list[tuple[int, ...]]:
    """Return the cores of `parts` tasks: `each` cores, or equal shares.

    Shares are equal because the slowest task sets the pace.
    If there are enough cores, shares are disjoint, spread evenly over the machine, and within one
    NUMA node if that costs a task at most a third of its cores.
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
    return divide_evenly(cores, parts, each=size)


def divide_evenly(
    things: Sequence[T], parts: int, *, each: int | None = None
) -> list[tuple[T, ...]]:
    """Return `each` cores or GPUs for every part, or an even share; reuse them if they run out.

    Shares are disjoint if there are enough cores or GPUs.
    """
    size = min(each or max(1, len(things) // parts), len(things))
    return [
        tuple(things[(part * size + k) % len(things)] for k in range(size)) for part in range(parts)
    ]


def thread_env(threads: int, *, serving_peers: int = 0) -> dict[str, str]:
    """Return the variables that limit TensorFlow, oneDNN, OpenBLAS and MKL to `threads`.

    TensorFlow's inter-op pool keeps at least 2 threads, and one more than the workers of a
    parameter-server job: with fewer the coordinator can deadlock (tf.distribute docs,
    "Parameter server training", cluster setup).
    """
    inter_op = max(threads, 2, serving_peers + 1)
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": str(inter_op),
        **{name: str(threads) for name in names},
    }


def divide_gpus(
    tasks: Sequence[TaskId],
    available: Sequence[Gpu] | None,
    requested: Gpus,
    task_gpus: Mapping[TaskId, Gpus] = _NO_TASKS,
) -> dict[TaskId, tuple[Gpu, ...] | None]:
    """Return the GPUs of each task of one node; `available` is None if only the node knows.

    `task_gpus` are requests of single tasks; the others divide the rest. GPUs are divided evenly
    over the tasks that train: replicas with unequal GPU counts cannot form a collective
    (tensorflow#47203). Servers get none, an evaluator the remaining ones.
    """
    all_gpus = None if available is None else tuple(available)
    requests = requested_gpus(tasks, requested, task_gpus)
    lists = {task: tuple(gpus) for task, gpus in requests.items() if isinstance(gpus, list | tuple)}
    numbers = {task: number for task, number in requests.items() if isinstance(number, int)}
    taken = lists | _take_numbers(numbers, all_gpus, _flatten(lists.values()))
    by_task: dict[TaskId, tuple[Gpu, ...] | None] = dict.fromkeys(tasks)
    by_task |= taken
    by_task |= {task: all_gpus for task, gpus in requests.items() if gpus == "all"}
    if all_gpus:
        free = tuple(gpu for gpu in all_gpus if gpu not in _flatten(taken.values()))
        by_task |= _even_gpus([task for task in tasks if requests[task] is None], free, all_gpus)
    return by_task


def requested_gpus(
    tasks: Sequence[TaskId], requested: Gpus, task_gpus: Mapping[TaskId, Gpus]
) -> dict[TaskId, Gpus]:
    """Return each task's request: `task_gpus`, else `requested`.

    A ps ignores a number; the tf.data service has no use for GPUs, and TensorFlow would take them.
    """
    for_ps = 0 if isinstance(requested, int) else requested
    requests: dict[TaskId, Gpus] = {t: for_ps if t.job == "ps" else requested for t in tasks}
    requests |= {task: 0 for task in tasks if task.serves_data}
    return requests | dict(task_gpus)


def gpu_env(gpus: tuple[Gpu, ...] | None, *, shared: bool) -> dict[str, str]:
    """Return the GPU variables of a task.

    No GPU is ``-1``: CUDA reads an empty variable as set, some libraries as unset.
    """
    if not gpus:
        return {} if gpus is None else {"CUDA_VISIBLE_DEVICES": "-1"}
    env = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
    return env | ({"TF_FORCE_GPU_ALLOW_GROWTH": "true"} if shared else {})


def shared_gpus(of_tasks: Iterable[tuple[Gpu, ...] | None]) -> frozenset[Gpu]:
    """Return the GPUs that more than one task of the node sees."""
    gpus = _flatten(of_tasks)
    return frozenset(gpu for gpu in gpus if gpus.count(gpu) > 1)


def explain_sharing(even: Mapping[TaskId, Share]) -> str:
    """Return a sentence about tasks that have to share GPUs; "" if there are none.

    `even`: the shares of tasks for which the spec names no GPUs.
    """
    sharing = [task for task, share in even.items() if share.gpu_is_shared]
    if not sharing:
        return ""
    number = len(shared_gpus(even[task].gpus for task in sharing))
    gpus = f"{number} GPU{'s' * (number > 1)}"
    return f"{join_first(sharing)} share {gpus}, because there are fewer GPUs than tasks"


def _flatten(of_tasks: Iterable[tuple[Gpu, ...] | None]) -> list[Gpu]:
    return [gpu for gpus in of_tasks for gpu in gpus or ()]


def _even_gpus(
    tasks: Sequence[TaskId], free: Sequence[Gpu], all_gpus: Sequence[Gpu]
) -> dict[TaskId, tuple[Gpu, ...]]:
    trains = [task for task in tasks if task.trains]
    by_task: dict[TaskId, tuple[Gpu, ...]] = dict.fromkeys(tasks, ())
    if trains:
        by_task.update(zip(trains, divide_evenly(free or all_gpus, len(trains)), strict=True))
    used = _flatten(by_task.values())
    for task in tasks:
        if task.job == "evaluator":
            by_task[task] = tuple(gpu for gpu in free if gpu not in used)
    return by_task


def _take_numbers(
    numbers: Mapping[TaskId, int], available: Sequence[Gpu] | None, listed: Collection[Gpu]
) -> dict[TaskId, tuple[Gpu, ...]]:
    """Return the GPUs of tasks that request a number of them.

    Listed GPUs are not used; the others are reused if there are too few.
    """
    pool = available or range(sum(numbers.values()) + len(listed))
    free = [gpu for gpu in pool if gpu not in listed] or list(pool)
    by_task, start = {}, 0
    for task, number in numbers.items():
        size = min(number, len(free))
        by_task[task] = tuple(free[(start + k) % len(free)] for k in range(size))
        start += size
    return by_task


def _cores_of_tasks(
    tasks: Sequence[TaskId], requested: Resources, cores: Cores, background: Collection[TaskId]
) -> dict[TaskId, tuple[int, ...]]:
    """Return the cores of tasks; `background` ones get none, unless the spec requests cores."""
    each = requested.cpus
    leading = [task for task in tasks if each is not None or task not in background] or tasks
    return dict(zip(leading, deal_cores(cores.nodes, len(leading), each=each), strict=True))


def _pin(share: tuple[int, ...], pin: bool | None, cores: Cores) -> tuple[int, ...] | None:
    if pin is not None:
        return share if pin else None
    near = [node for node in cores.nodes if set(node) & set(share)]
    if len(near) == len(cores.nodes):
        return None
    return tuple(sorted(core for node in near for core in node))
