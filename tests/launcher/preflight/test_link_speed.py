"""`doctor --deep` measures each link and the ring, names the slowest link, and reports failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.launcher.conftest import plan_of
from tests.launcher.messages import read_report

from tfcluster.nodes.hub import Hub
from tfcluster.nodes.probe_answers import ProbeAnswer
from tfcluster.plans.plan import NodePlan, Plan, TaskId
from tfcluster.preflight import link_speed
from tfcluster.preflight.link_speed import Measurement
from tfcluster.preflight.preflight_report import Finding, MeasuredAllReduce, PreflightReport
from tfcluster.rundir.paths import RunPaths
from tfcluster.typed_json import from_json
from tfcluster.ui.preflight_table import format_report

CPU, GPU = ("CPU",), ("CPU", "GPU")


def plan_over(*nodes: str, **fields: Any) -> Plan:
    """Return a plan whose workers are on these nodes, in this order."""
    plan = plan_of(*(f"worker:{number}" for number in range(len(nodes))))
    tasks = (replace(task, node=node) for task, node in zip(plan.tasks, nodes, strict=True))
    names = dict.fromkeys(nodes)
    planned = tuple(NodePlan(name, "ssh", None, "/job") for name in names)
    return replace(plan, tasks=tuple(tasks), nodes=planned, **fields)


def names(links: Sequence[tuple[TaskId, TaskId]]) -> list[str]:
    return ["-".join(str(task.index) for task in link) for link in links]


def test_links_are_those_between_nodes_or_between_the_workers_of_the_only_node() -> None:
    links = link_speed.links_of(plan_over("a", "a", "b", "b", "c"))[0]
    assert names(links) == ["0-2", "0-4", "2-4"]
    assert names(link_speed.links_of(plan_over("a", "a", "a"))[0]) == ["0-1", "0-2", "1-2"]


def test_of_many_nodes_only_the_links_of_the_ring_are_measured_and_the_report_says_so() -> None:
    links, left_out = link_speed.links_of(plan_over(*map(str, range(12))))
    assert names(links) == [*(f"{n}-{n + 1}" for n in range(11)), "11-0"]
    assert left_out == "Only 12 of 66 links were measured: neighbours in the ring"


def test_the_chief_is_the_first_worker_and_others_take_no_part() -> None:
    plan = plan_of("evaluator:0", "worker:0", "worker:1", "chief:0")
    workers = [str(task.id) for task in link_speed.workers_of(plan)]
    assert workers == ["chief:0", "worker:0", "worker:1"]
    order = json.loads(link_speed.order_of(plan, ["RING"]))
    assert order["groups"] == [
        ["chief:0", "worker:0"],
        ["chief:0", "worker:1"],
        ["worker:0", "worker:1"],
        ["chief:0", "worker:0", "worker:1"],
    ]
    assert order["bytes"] == 64_000_000


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ({"a": GPU, "b": GPU}, ("RING", "NCCL")),
        ({"a": GPU, "b": CPU}, ("RING",)),
        ({"a": CPU, "b": CPU}, ("RING",)),
    ],
)
def test_nccl_applies_where_every_worker_has_a_gpu(
    devices: Mapping[str, Sequence[str]], expected: Sequence[str]
) -> None:
    assert link_speed.communications(plan_over("a", "b"), devices) == expected


def test_nccl_does_not_apply_to_workers_that_share_a_gpu() -> None:
    plan = plan_over("a", "a")
    shared = replace(plan, tasks=tuple(replace(task, gpus=(0,)) for task in plan.tasks))
    assert link_speed.communications(shared, {"a": GPU}) == ("RING",)
    apart = tuple(replace(task, gpus=(task.id.index,)) for task in plan.tasks)
    assert link_speed.communications(replace(plan, tasks=apart), {"a": GPU}) == ("RING", "NCCL")


@pytest.mark.parametrize(
    ("plan", "devices", "why"),
    [
        (plan_over("a"), {"a": CPU}, "there is one worker"),
        (
            plan_over("a", "b", strategy="parameter_server"),
            {},
            "strategy parameter_server has none",
        ),
        (plan_over("a", "b", kind="plain"), {}, "a job of kind plain has none"),
        (plan_over("a", "b"), {"a": CPU}, "TensorFlow was not imported on b"),
        (plan_over("a", "b"), {"a": CPU, "b": CPU}, ""),
    ],
)
def test_the_reason_why_nothing_can_be_measured_is_known(
    plan: Plan, devices: Mapping[str, Sequence[str]], why: str
) -> None:
    assert link_speed.why_not(plan, devices).startswith(why)
    assert bool(link_speed.why_not(plan, devices)) == bool(why)


def measured(seconds: float, *workers: int, name: str = "RING") -> MeasuredAllReduce:
    tasks = tuple(f"worker:{number}" for number in workers)
    return MeasuredAllReduce(name, tasks, tuple(f"gpu{number}" for number in workers), seconds)


FOUND = (
    measured(0.05, 0, 1),
    measured(0.64, 0, 2),
    measured(0.04, 1, 2),
    measured(0.8, 0, 1, 2),
    measured(0.002, 0, 1, name="NCCL"),
    measured(0.001, 0, 2, name="NCCL"),
)


def test_bandwidths_are_those_of_nccl_tests() -> None:
    assert FOUND[0].gb_per_s == FOUND[0].link_gb_per_s == pytest.approx(1.28)
    assert FOUND[3].gb_per_s == pytest.approx(0.08)
    assert FOUND[3].link_gb_per_s == pytest.approx(0.08 * 4 / 3)


def test_the_table_has_a_row_for_each_link_and_the_ring_and_names_the_slowest_link() -> None:
    report = PreflightReport(("a",), (ProbeAnswer("a", "3.11.7"),), (), (), FOUND)
    shown = format_report(report, width=None, colours=False)
    lines = [line.rstrip() for line in str(shown).splitlines()]
    assert lines[-9:] == [
        "all-reduce of 64 MB  RING                                 NCCL",
        "worker:0 – worker:1  1.28 GB/s                            32 GB/s",
        "worker:0 – worker:2  0.1 GB/s                             64 GB/s",
        "worker:1 – worker:2  1.6 GB/s",
        "ring of 3 workers    0.08 GB/s (0.107 GB/s on each link)",
        "slowest link with RING: worker:0 (gpu0) – worker:2 (gpu2), 0.1 GB/s",
        "slowest link with NCCL: worker:0 (gpu0) – worker:1 (gpu1), 32 GB/s",
        "",
        "All checks passed",
    ]


def test_the_json_has_the_bandwidths_and_can_be_read_back() -> None:
    report = PreflightReport((), (), (), (), FOUND)
    data = json.loads(json.dumps(report.to_json()))
    assert data["all_reduces"][3]["link_gb_per_s"] == pytest.approx(0.1067)
    assert data["slowest_links"] == {
        "RING": ["worker:0", "worker:2"],
        "NCCL": ["worker:0", "worker:1"],
    }
    assert from_json(PreflightReport, data).all_reduces == FOUND


# -- the measurement -------------------------------------------------------------------------


def exited(task: str, code: int | None = 0, **more: Any) -> dict[str, Any]:
    base = {"type": "task_exited", "task": task, "attempt": 1, "exit_code": code, "signal": None}
    return base | {"ended_by": "itself", "duration_s": 1.0} | more


def told(task: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "task_event", "task": task, "attempt": 1, "event": {"type": kind, **fields}}


RING = told(
    "worker:0", "all_reduce", communication="RING", workers=["worker:0", "worker:1"], seconds=0.5
)
NO_GPU = "this task was given GPU 1, but TensorFlow registers none: cannot load libcudart.so.12"
NO_GPU_ERROR = {
    "exception": "tfcluster_workers.errors.NoGpuError",
    "message": NO_GPU,
    "cause": "no-gpu-libraries",
}
LOST_PEER = "Collective ops is aborted by: Connection reset by peer"


def report_of(
    plan: Plan, paths: RunPaths, *messages: Mapping[str, Any], devices: Sequence[str] = CPU
) -> tuple[PreflightReport, bool]:
    """Return the report after these messages, and whether the measurement is over."""

    async def measure() -> tuple[PreflightReport, bool]:
        hub: Any = Hub(paths)
        found = Measurement(plan, hub, paths, dict.fromkeys(("a", "b"), devices))
        for message in messages:
            found.note(read_report(message))
        return found.added_to(PreflightReport((), (), ()), {}), found.is_over

    return asyncio.run(measure())


def test_what_the_workers_report_is_the_result_once_all_have_ended(paths: RunPaths) -> None:
    ends = [exited("worker:0"), exited("worker:1")]
    report, is_over = report_of(plan_over("a", "b"), paths, RING, *ends)
    assert (is_over, report.findings, report.notes) == (True, (), ())
    measured = MeasuredAllReduce("RING", ("worker:0", "worker:1"), ("a", "b"), 0.5)
    assert report.all_reduces == (measured,)
    assert not report_of(plan_over("a", "b"), paths, RING, ends[0])[1]
    torn = exited("worker:1", None, signal=6)  # another was faster to leave
    assert report_of(plan_over("a", "b"), paths, RING, ends[0], torn)[0].findings == ()


def test_a_failure_is_the_finding_of_the_worker_that_caused_it(paths: RunPaths) -> None:
    failed = "tensorflow.python.framework.errors_impl.UnavailableError"
    report, is_over = report_of(
        plan_over("a", "b"),
        paths,
        told("worker:0", "task_error", exception=failed, message=LOST_PEER, traceback=""),
        exited("worker:0", 1),
        told("worker:1", "task_error", **NO_GPU_ERROR),
        exited("worker:1", 1),
    )
    (finding,) = report.fatal
    assert (is_over, finding.node, finding.check) == (True, "b", "all-reduce")
    assert finding.what == f"worker:1 failed in an all-reduce: NoGpuError: {NO_GPU}"
    assert "pip install 'tensorflow[and-cuda]'" in finding.fix


def test_workers_that_never_end_are_named(paths: RunPaths) -> None:
    broken = told("worker:0", "all_reduce", communication="RING", workers=5, seconds=-1)
    report, _ = report_of(plan_over("a", "b"), paths, broken, exited("worker:0"))
    (finding,) = report.fatal
    assert finding.what == "worker:1: the all-reduces were not over in time"
    assert report.all_reduces == (), "an invalid report is ignored"


def test_a_failure_of_nccl_is_a_warning_unless_the_job_asks_for_it(paths: RunPaths) -> None:
    failed = exited("worker:1", None, signal=11)
    for settings, is_fatal in (({}, False), ({"communication": "NCCL"}, True)):
        plan = plan_over("a", "b", settings=settings)
        report, _ = report_of(plan, paths, RING, failed, devices=GPU)
        assert [finding.is_fatal for finding in report.findings] == [is_fatal]


def test_all_reduces_that_the_time_did_not_suffice_for_are_counted(paths: RunPaths) -> None:
    plan = plan_over("a", "b", "c")
    ends = [exited(f"worker:{number}") for number in range(3)]
    report, _ = report_of(plan, paths, RING, *ends)
    assert report.notes == ("Only 1 of 4 all-reduces were measured, in 240 s",)


def test_a_node_that_is_lost_meanwhile_is_the_only_finding(paths: RunPaths) -> None:
    async def measure() -> Sequence[Finding]:
        hub: Any = Hub(paths)
        found = Measurement(plan_over("a", "b"), hub, paths, {})
        found.note(read_report(exited("worker:0", 1)))
        return found.added_to(PreflightReport((), (), ()), {"b": "its agent went away"}).findings

    (finding,) = asyncio.run(measure())
    assert (finding.node, finding.what) == ("b", "its agent went away")


def test_a_worker_that_cannot_be_started_is_a_finding(paths: RunPaths) -> None:
    failed = {"type": "start_failed", "task": "worker:1", "attempt": 1, "error": "no such file"}
    report, _ = report_of(plan_over("a", "b"), paths, failed)
    assert [finding.what for finding in report.fatal] == [
        "worker:1 failed in an all-reduce: no such file"
    ]
