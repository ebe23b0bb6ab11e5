"""Cores, threads and GPUs are divided so that tasks do not trample each other."""

from __future__ import annotations

import pytest

from tfcluster.plan.plan import TaskId
from tfcluster.plan.resources import (
    Gpus,
    divide,
    divide_gpus,
    gpu_env,
    shared_gpus,
    thread_budget,
    thread_env,
)


def tasks(*names: str) -> list[TaskId]:
    return [TaskId.parse(name) for name in names]


@pytest.mark.parametrize(
    ("cores", "parts", "expected"),
    [
        ((0, 1), 2, [(0,), (1,)]),
        ((0, 1, 2, 3, 4), 2, [(0, 1), (2, 3)]),
        ((4, 6), 1, [(4, 6)]),
        ((0, 1), 4, [(0,), (1,), (0,), (1,)]),
    ],
)
def test_cores_are_divided_evenly(
    cores: tuple[int, ...], parts: int, expected: list[tuple[int, ...]]
) -> None:
    assert divide(cores, parts) == expected


@pytest.mark.parametrize(
    ("cores", "parts", "cpus", "threads", "expected"),
    [
        (8, 2, None, None, 4),
        (2, 4, None, None, 1),
        (8, 1, None, None, None),
        (8, 1, 3, None, 3),
        (8, 2, 3, 5, 5),
    ],
)
def test_threads_follow_the_share_of_the_cores(
    cores: int, parts: int, cpus: int | None, threads: int | None, expected: int | None
) -> None:
    assert thread_budget(cores, parts, cpus=cpus, threads=threads) == expected


def test_a_number_of_cores_each_begins_again_where_they_run_out() -> None:
    assert divide((0, 1, 2), 2, each=2) == [(0, 1), (2, 0)]
    assert divide((0, 1), 2, each=5) == [(0, 1), (0, 1)]


def test_every_thread_pool_is_held_to_the_budget() -> None:
    assert thread_env(4) == {
        "TF_NUM_INTRAOP_THREADS": "4",
        "TF_NUM_INTEROP_THREADS": "4",
        "OMP_NUM_THREADS": "4",
        "OPENBLAS_NUM_THREADS": "4",
        "MKL_NUM_THREADS": "4",
    }


def test_a_coordinator_keeps_a_thread_for_each_worker_it_waits_for() -> None:
    assert thread_env(1)["TF_NUM_INTEROP_THREADS"] == "2"
    assert thread_env(1, serving_peers=3)["TF_NUM_INTEROP_THREADS"] == "4"


@pytest.mark.parametrize(
    ("names", "available", "wish", "expected"),
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
    wish: Gpus,
    expected: list[tuple[int, ...] | None],
) -> None:
    ids = tasks(*names.split())
    found = divide_gpus(ids, available, wish)
    assert [found[task] for task in ids] == expected


def test_a_task_without_gpus_is_told_so() -> None:
    assert gpu_env((), shared=False) == {"CUDA_VISIBLE_DEVICES": "-1"}
    assert gpu_env((2, 3), shared=False) == {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert gpu_env(None, shared=False) == {}


def test_tasks_that_share_a_gpu_grow_into_it() -> None:
    assert shared_gpus([(0, 1), (1, 2), None]) == {1}
    assert gpu_env((1,), shared=True)["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
