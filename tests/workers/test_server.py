"""The tasks that serve, and the messages in others; test_parameter_server.py tests serving."""

from __future__ import annotations

import json
import sys

import pytest

from tfcluster_workers import context, server
from tfcluster_workers.errors import NotServingError

from .conftest import run_plain


def tf_config(task: str, *jobs: str) -> str:
    job, _, index = task.partition(":")
    cluster = {name: ["127.0.0.1:2222"] for name in jobs}
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": int(index)}})


@pytest.mark.parametrize(
    ("task", "jobs", "serves"),
    [
        ("ps:0", ("chief", "worker", "ps"), True),
        ("worker:0", ("chief", "worker", "ps"), True),
        ("chief:0", ("chief", "worker", "ps"), False),
        ("worker:0", ("worker",), False),
        ("evaluator:0", ("chief", "worker", "ps", "evaluator"), False),
    ],
)
def test_ps_tasks_and_their_workers_serve(task: str, jobs: tuple[str, ...], serves: bool) -> None:
    this_task = context.current({"TF_CONFIG": tf_config(task, *jobs)})
    assert server.is_served(this_task) is serves


def test_a_strategy_in_a_server_task_is_refused_with_the_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config("worker:0", "chief", "worker", "ps"))
    with pytest.raises(NotServingError, match=r"worker:0 makes a ParameterServerStrategy"):
        server.require_chief()


@pytest.mark.parametrize(
    ("task", "jobs", "reason"),
    [
        ("chief:0", ("chief", "worker", "ps"), "this is chief:0"),
        ("worker:0", (), "TF_CONFIG names no cluster"),
    ],
)
def test_the_module_reports_why_it_cannot_serve(
    task: str, jobs: tuple[str, ...], reason: str
) -> None:
    config = tf_config(task, *jobs)
    done = run_plain(sys.executable, "-m", "tfcluster_workers.server", TF_CONFIG=config)
    assert done.returncode == 1
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("workers", "cores", "chosen", "threads"),
    [
        (2, 2, "", 3),
        (2, 8, "", 0),
        (8, 8, "", 9),
        (2, 8, "1", 3),
        (2, 1, "3", 0),
        (2, 2, "0", 3),
    ],
)
def test_a_server_has_more_threads_than_there_are_workers(
    workers: int, cores: int, chosen: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", chosen)
    assert server.inter_op_threads(workers, cores=cores) == threads
