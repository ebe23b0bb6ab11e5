"""Cores, threads and GPUs are divided between the tasks of a machine."""

from __future__ import annotations

from typing import Any

import pytest

from tfcluster.plans.plan import Gpus, Resources, TaskId
from tfcluster.plans.resources import (
    Cores,
    Share,
    background_tasks,
    deal_cores,
    divide_gpus,
    gpu_env,
    share_machine,
    shared_gpus,
    thread_env,
)

ONE = ((0, 1, 2, 3, 4, 5, 6, 7),)
TWO = ((0, 1, 2, 3, 4, 5, 6, 7), (8, 9, 10, 11, 12, 13, 14, 15))
SMT = ((0, 4, 1, 5, 2, 6, 3, 7),)
"""Four cores with two threads each."""


def tasks(*names: str) -> list[TaskId]:
    return [TaskId.parse(name) for name in names]


@pytest.mark.parametrize(
    ("nodes", "parts", "expected"),
    [
        (((0, 1),), 2, [(0,), (1,)]),
        (((0, 1, 2, 3, 4),), 2, [(0, 1), (2, 3)]),
        (((4, 6),), 1, [(4, 6)]),
        (((0, 1),), 4, [(0,), (1,), (0,), (1,)]),
        (((0, 1), (2, 3)), 2, [(0, 1), (2, 3)]),
        (((0, 1), (2, 3)), 1, [(0, 1, 2, 3)]),
        (((0, 1), (2, 3), (4, 5), (6, 7)), 2, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (((0, 1), (2, 3)), 5, [(0,), (1,), (2,), (3,), (0,)]),
    ],
)
def test_cores_are_divided_evenly(
    nodes: tuple[tuple[int, ...], ...], parts: int, expected: list[tuple[int, ...]]
) -> None:
    assert deal_cores(nodes, parts) == expected


def test_a_task_stays_in_one_numa_node_if_it_loses_few_cores() -> None:
    assert deal_cores(TWO, 3) == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)], (
        "four cores, not five"
    )
    three_each = ((0, 1, 2), (3, 4, 5))
    assert deal_cores(three_each, 3) == [(0, 1), (2, 3), (4, 5)], "half of its cores is too much"
    assert deal_cores(((0, 1, 2, 3, 4, 5, 6, 7), (8,)), 2) == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_tasks_are_spread_over_the_machine() -> None:
    assert deal_cores(TWO, 2, each=2) == [(0, 1), (8, 9)]
    assert deal_cores(TWO, 4, each=2) == [(0, 1), (4, 5), (8, 9), (12, 13)]
    assert deal_cores(SMT, 2, each=1) == [(0,), (2,)], "two cores, not the two threads of one"


def test_the_threads_of_one_core_stay_together() -> None:
    assert deal_cores(SMT, 2) == [(0, 4, 1, 5), (2, 6, 3, 7)]
    assert deal_cores(SMT, 4) == [(0, 4), (1, 5), (2, 6), (3, 7)]


@pytest.mark.parametrize("nodes", [ONE, TWO, SMT, ((0, 1), (2,), (3, 4, 5))])
@pytest.mark.parametrize("parts", range(1, 9))
def test_shares_are_disjoint_as_long_as_there_are_enough_cores(
    nodes: tuple[tuple[int, ...], ...], parts: int
) -> None:
    every = {core for node in nodes for core in node}
    found = deal_cores(nodes, parts)
    used = [core for share in found for core in share]
    assert len(found) == parts
    assert all(found)
    assert len({len(share) for share in found}) == 1, "all shares are equal"
    if parts <= len(every):
        assert len(used) == len(set(used))
    else:
        assert max(map(used.count, used)) - min(map(used.count, every)) <= 1, (
            "no core is reused far more often"
        )


def test_cores_are_reused_if_there_are_too_few() -> None:
    assert deal_cores(((0, 1, 2),), 2, each=2) == [(0, 1), (2, 0)]
    assert deal_cores(((0, 1),), 2, each=5) == [(0, 1), (0, 1)]


def shared(
    names: str, *, cores: Cores | None, is_search: bool = False, **requested: Any
) -> list[Share]:
    ids = tasks(*names.split())
    background = background_tasks(ids, is_search=is_search)
    found = share_machine(ids, Resources(**requested), cores=cores, gpus=(), background=background)
    return [found[task] for task in ids]


@pytest.mark.parametrize(
    ("names", "is_search", "expected"),
    [
        ("worker:0 worker:1", False, [4, 4]),
        ("worker:0 worker:1 evaluator:0", False, [4, 4, 4]),
        ("worker:0 evaluator:0", False, [8, 8]),
        ("chief:0 worker:0 ps:0", False, [2, 2, 2]),
        ("chief:0 worker:0 worker:1", True, [4, 4, 4]),
        ("chief:0 worker:0 worker:1", False, [2, 2, 2]),
        ("worker:0", False, [None]),
    ],
)
def test_background_tasks_take_no_cores_from_training_tasks(
    names: str, is_search: bool, expected: list[int | None]
) -> None:
    found = shared(names, cores=Cores(ONE), is_search=is_search)
    assert [share.threads for share in found] == expected


@pytest.mark.parametrize(
    ("cores", "requested", "threads"),
    [
        (Cores(ONE), {}, 4),
        (Cores(ONE, limit=3.5), {}, 1),
        (Cores(ONE, limit=100.0), {}, 4),
        (Cores(((0, 1),)), {"cpus": 3}, 3),
        (Cores(ONE), {"cpus": 3, "threads": 5}, 5),
        (Cores(((0,),)), {}, 1),
        (None, {}, None),
        (None, {"threads": 2}, 2),
    ],
)
def test_threads_follow_the_share_of_the_cores(
    cores: Cores | None, requested: dict[str, Any], threads: int | None
) -> None:
    found = shared("worker:0 worker:1", cores=cores, **requested)
    assert [share.threads for share in found] == [threads, threads]


def test_each_task_is_pinned_to_one_of_several_numa_nodes() -> None:
    four = "worker:0 worker:1 worker:2 worker:3"
    assert [s.cores for s in shared(four, cores=Cores(TWO))] == [*TWO[:1] * 2, *TWO[1:] * 2]
    assert [s.cores for s in shared("worker:0", cores=Cores(TWO))] == [None]
    assert [s.cores for s in shared(four, cores=Cores(ONE))] == [None] * 4
    assert [s.cores for s in shared(four, cores=Cores(TWO), pin=False)] == [None] * 4
    beside = shared("worker:0 worker:1 evaluator:0", cores=Cores(TWO), pin=True)
    assert [s.cores for s in beside] == [*TWO, None], "an evaluator may use any idle core"
    pinned = shared(four, cores=Cores(TWO), pin=True)
    assert [s.cores for s in pinned] == [TWO[0][:4], TWO[0][4:], TWO[1][:4], TWO[1][4:]]


def test_a_coordinator_keeps_a_thread_for_each_worker_it_waits_for() -> None:
    assert thread_env(1)["TF_NUM_INTEROP_THREADS"] == "2"
    assert thread_env(1, serving_peers=3)["TF_NUM_INTEROP_THREADS"] == "4"


@pytest.mark.parametrize(
    ("names", "available", "requested", "expected"),
    [
        ("worker:0 worker:1", (0, 1, 2, 3), None, [(0, 1), (2, 3)]),
        ("worker:0 worker:1", (0, 1, 2), None, [(0,), (1,)]),
        ("worker:0 worker:1", (0,), None, [(0,), (0,)]),
        ("worker:0 worker:1", (), None, [None, None]),
        ("worker:0 worker:1", None, None, [None, None]),
        ("worker:0 worker:1", (0, 1), "all", [(0, 1), (0, 1)]),
        ("worker:0 worker:1", None, "all", [None, None]),
        ("worker:0 worker:1", (0, 1), 0, [(), ()]),
        ("worker:0 worker:1", (0, 1, 2, 3), 1, [(0,), (1,)]),
        ("worker:0 worker:1", None, 2, [(0, 1), (2, 3)]),
        ("worker:0 worker:1", (0, 1), [1], [(1,), (1,)]),
        ("worker:0 evaluator:0", (0, 1), None, [(0, 1), ()]),
        ("worker:0 worker:1 evaluator:0", (0, 1, 2), None, [(0,), (1,), (2,)]),
        ("chief:0 worker:0 ps:0", (0, 1), None, [(0,), (1,), ()]),
        ("chief:0 worker:0 ps:0", (0, 1), 1, [(0,), (1,), ()]),
    ],
)
def test_gpus_are_divided_over_the_tasks_that_train(
    names: str,
    available: tuple[int, ...] | None,
    requested: Gpus,
    expected: list[tuple[int, ...] | None],
) -> None:
    ids = tasks(*names.split())
    found = divide_gpus(ids, available, requested)
    assert [found[task] for task in ids] == expected


@pytest.mark.parametrize(
    ("own", "requested", "expected"),
    [
        ({"worker:0": [2, 3]}, None, [(2, 3), (0,), (1,)]),
        ({"worker:0": 1, "worker:1": 1}, None, [(0,), (1,), (2, 3)]),
        ({"worker:0": 2, "worker:1": [0]}, 1, [(1, 2), (0,), (3,)]),
        ({"worker:0": [0, 1, 2, 3]}, 0, [(0, 1, 2, 3), (), ()]),
        ({"worker:0": "all"}, 1, [(0, 1, 2, 3), (0,), (1,)]),
    ],
)
def test_gpus_requested_by_one_task_are_not_given_to_another(
    own: dict[str, Gpus], requested: Gpus, expected: list[tuple[int, ...]]
) -> None:
    ids = tasks("worker:0", "worker:1", "worker:2")
    of_tasks = {TaskId.parse(name): gpus for name, gpus in own.items()}
    found = divide_gpus(ids, (0, 1, 2, 3), requested, of_tasks)
    assert [found[task] for task in ids] == expected


def test_tasks_that_share_a_gpu_allocate_memory_on_demand() -> None:
    assert shared_gpus([(0, 1), (1, 2), None]) == {1}
    assert gpu_env((1,), shared=True)["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"


def test_an_evaluator_gets_no_gpu_of_another_task() -> None:
    ids = tasks("worker:0", "evaluator:0")
    found = divide_gpus(ids, (0, 1), None, {ids[0]: (0, 1)})
    assert found[ids[1]] == ()
