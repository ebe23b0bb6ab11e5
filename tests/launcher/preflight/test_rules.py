"""The preflight rules report problems of the nodes, as fatal findings or as warnings."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.launcher.conftest import plan_of, spread

from tfcluster.backends.jobs import Obstacle, Outlook
from tfcluster.errors import PreflightError
from tfcluster.nodes import probe_answers
from tfcluster.nodes.probe_answers import ProbeAnswer
from tfcluster.nodes.sites import Site
from tfcluster.plans.plan import Command
from tfcluster.preflight import rules
from tfcluster.preflight.preflight_report import Finding, PreflightReport
from tfcluster.preflight.rules import Needs
from tfcluster.rundir.paths import RunPaths
from tfcluster.supervision.task_network import plan_dials
from tfcluster.typed_json import from_json
from tfcluster.ui.preflight_table import format_report

VERSIONS = {"tensorflow": "2.15.1", "keras": "2.15.0", "numpy": "1.26.4", "protobuf": "4.25.9"}
A = ProbeAnswer("a", "3.11.7", VERSIONS, free_bytes=10**12, clock_ahead_s=0.1)
B, C = replace(A, node="b"), replace(A, node="c")


def found(*answers: ProbeAnswer, **needs: Any) -> list[Finding]:
    return list(rules.judge(answers, Needs(**needs)))


@pytest.mark.parametrize(
    ("odd", "what", "is_fatal"),
    [
        ({"packages": {**VERSIONS, "tensorflow": "2.16.1"}},
         "TensorFlow: 2.16.1 on this node, 2.15.1 on the others", True),
        ({"packages": {**VERSIONS, "numpy": "2.0.0"}}, "NumPy: 2.0.0 on this node", False),
        ({"python": "3.12.1"}, "Python: 3.12 on this node, 3.11 on the others", True),
        ({"gpus": ("H100",)}, "GPUs: 1 × H100 on this node, 2 × H100 on the others", True),
        ({"python": "3.11.2"}, None, False),
    ],
)  # fmt: skip
def test_the_node_that_differs_from_the_other_two_is_named(
    odd: dict[str, Any], what: str | None, is_fatal: bool
) -> None:
    same = [replace(node, gpus=("H100", "H100")) for node in (A, B, C)]
    assert found(*same) == []
    findings = found(same[0], replace(same[1], **odd), same[2])
    assert [finding.node for finding in findings] == ["b"] * (what is not None)
    assert all(finding.what.startswith(str(what)) for finding in findings)
    assert [finding.is_fatal for finding in findings] == [is_fatal] * (what is not None)


def test_a_python_without_tensorflow_is_fatal_only_for_a_job_that_imports_it() -> None:
    bare = [replace(answer, packages={}) for answer in (A, B)]
    assert [finding.what for finding in found(*bare)] == ["its Python has no TensorFlow"] * 2
    assert found(*bare, packages=()) == []


def test_only_versions_of_the_library_that_connects_the_tasks_must_be_equal() -> None:
    of_jax = {"keras": "3.15.1", "jax": "0.10.2"}
    newer, with_tensorflow = {**of_jax, "jax": "0.11.0"}, {**of_jax, "tensorflow": "2.21.0"}
    nodes = [replace(n, packages=p) for n, p in ((A, of_jax), (B, newer), (C, with_tensorflow))]
    (finding,) = found(*nodes, packages=("jax", "keras"))
    assert finding.what == "JAX: 0.11.0 on this node, 0.10.2 on the others"
    others = [replace(node, packages={**VERSIONS, "jax": node.node}) for node in (A, B)]
    assert found(*others) == []


def test_a_blocked_port_is_reported_for_the_node_that_cannot_connect() -> None:
    line = ("b", "worker:1", "10.0.0.2", 2222, "Connection timed out")
    (finding,) = found(replace(A, unreachable=(line,)), B)
    assert finding.node == "a"
    assert "cannot connect to worker:1 (10.0.0.2:2222)" in finding.what


@pytest.mark.parametrize(("wrong_names", "fix"), [((), "open that port"), (("b",), "/etc/hosts")])
def test_a_wrong_name_of_a_peer_has_another_fix_than_a_firewall(
    wrong_names: tuple[str, ...], fix: str
) -> None:
    line = ("b", "worker:1", "b", 2222, "Connection refused")
    (finding,) = found(replace(A, unreachable=(line,), wrong_names=wrong_names), B)
    assert "Connection refused" in finding.what
    assert fix in finding.fix


def test_an_unreachable_node_that_did_not_answer_is_not_reported_again() -> None:
    line = ("b", "worker:1", "10.0.0.2", 2222, "Connection refused")
    assert rules.judge([replace(A, unreachable=(line,))], Needs(), silent={"b"}) == ()


def test_a_wrong_address_is_fatal_but_a_full_disk_and_a_wrong_clock_are_warnings() -> None:
    bad = replace(A, strange_names=("gpu7",), free_bytes=10**6, clock_ahead_s=-90.0)
    assert [(f.what, f.is_fatal) for f in found(bad, B)] == [
        ("gpu7 is not an address of this node", True),
        ("only 1 MB of disk are free", False),
        ("its clock differs from this machine's by -90 s", False),
    ]


def test_nodes_without_a_gang_may_have_different_packages_and_gpus() -> None:
    other = replace(B, packages={}, gpus=("H100",))
    assert found(A, other, packages=(), gang=False) == []


def test_nodes_without_a_worker_may_have_other_gpus_and_versions_than_the_workers() -> None:
    plan = spread(plan_of("worker:0", "worker:1", "data_worker:0", "data_dispatcher:0"))
    needs = rules.needs_of(plan)
    assert needs.without_training == {"data-worker-0", "data-dispatcher-0"}
    older = {**VERSIONS, "tensorflow": "2.15.0"}
    nodes = [replace(A, node=n.name, packages=older, python="3.10.1") for n in plan.nodes]
    nodes[:2] = [replace(A, node=node.node, gpus=("H100",)) for node in nodes[:2]]
    assert found(*nodes, without_training=needs.without_training) == []


def test_nodes_of_the_data_service_need_tensorflow_only() -> None:
    plan = spread(plan_of("worker:0", "data_worker:0", "evaluator:0"))
    needs = rules.needs_of(replace(plan, needs=("jax", "tensorflow")))
    nodes = [replace(A, node=node.name) for node in plan.nodes]
    lacking = [finding.node for finding in rules.judge(nodes, needs)]
    assert lacking == [node.name for node in plan.nodes if node.name != "data-worker-0"]
    bare = [replace(A, node="data-worker-0", packages={})]
    (finding,) = rules.judge(bare, needs)
    assert finding.what == "its Python has no TensorFlow"


def test_a_line_that_is_not_a_probe_answer_is_refused() -> None:
    for line in ("", "no JSON", "[]", json.dumps({"node": "a"})):
        with pytest.raises(ValueError, match="not a probe's answer"):
            probe_answers.read_answer(line, now=0.0)


REPORT: dict[str, Any] = {
    **{"node": "a", "python": "3.11.7", "packages": VERSIONS, "gpus": ["H100"], "gpu_trouble": ""},
    **{"clock": 5.0, "free_bytes": 10**12, "shm_bytes": None, "strange_names": [], "cores": 4},
    **{"not_listening": [], "unreachable": [["b", "worker:1", "10.0.0.2", 2222, "no answer"]]},
    **{"wrong_names": []},
    **{"executable": "/py", "port_range": [1, 2], "proxies": {}, "unwritable": [], "absent": []},
    **{"script_sha256": None, "imported": None, "visible_gpus": []},
    **{"interfaces": [["lo", "127.0.0.1", False], ["ib0", "10.20.0.1", True]]},
    **{"core_nodes": [[0, 1], [2, 3]], "core_limit": None, "named": ["OMP_NUM_THREADS"]},
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("unreachable", [["b", "worker:1"]]),
        ("unreachable", 5),
        ("shm_bytes", "x"),
        ("free_bytes", float("inf")),
        ("clock", 10**400),
        ("imported", 5),
        ("imported", {}),
        ("imported", {"version": "2", "seconds": 1, "devices": 5}),
        ("packages", ["tensorflow"]),
        ("port_range", ["a"]),
    ],
    ids=str,
)
def test_an_answer_with_a_bad_field_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"answer|values to unpack|invalid literal"):
        probe_answers.read_answer(json.dumps({**REPORT, field: value}), now=0.0)


@pytest.mark.parametrize("field", REPORT)
@pytest.mark.parametrize("value", [5, "x", None, [{}], [[]], {"a": [1]}, {"error": {}}], ids=str)
def test_every_accepted_answer_can_be_judged_and_displayed(field: str, value: object) -> None:
    try:
        probed = probe_answers.read_answer(json.dumps({**REPORT, field: value}), now=0.0)
    except ValueError:
        return
    found(
        probed, B, packages=("tensorflow",), script_sha256="aa", gpu_indexes={"a": 1}, writes="/mnt"
    )
    assert format_report(PreflightReport(("a",), (probed,), ()), width=None, colours=False)


def test_a_driver_that_hangs_does_not_mean_no_gpus() -> None:
    silent = replace(B, gpu_trouble="nvidia-smi did not answer within 5 s")
    two = replace(A, gpus=("H100", "H100"))
    (finding,) = found(two, silent, nccl={"a": ["worker:0"], "b": ["worker:1"]})
    assert (finding.node, finding.what, finding.is_fatal) == ("b", silent.gpu_trouble, False)


def test_nccl_without_a_gpu_and_a_missing_gpu_are_fatal() -> None:
    nccl = found(A, nccl={"a": ["worker:0", "worker:1"]})
    assert [f.what for f in nccl] == [
        "strategy.communication is NCCL, but there is no GPU for worker:0, worker:1"
    ]
    (finding,) = found(replace(A, gpus=("H100",)), gpu_indexes={"a": 1})
    assert finding.what == "GPU index 1 is requested, but the node's GPU count is 1"


def test_the_checkpoint_folder_must_be_writable_but_a_data_set_may_be_read_only() -> None:
    probed = replace(A, unwritable=(("/mnt/exp", "Read-only file system"), ("/mnt/data", "…")))
    assert [(f.what, f.is_fatal) for f in found(probed, writes="/mnt/exp")] == [
        ("/mnt/exp cannot be written: Read-only file system", True),
        ("/mnt/data cannot be written: …", False),
    ]


def test_a_node_with_another_version_of_the_script_is_a_finding() -> None:
    probed = replace(A, script_sha256="aa")
    assert found(probed, script_sha256="aa") == []
    assert [f.check for f in found(probed, script_sha256="bb")] == ["script"]
    assert found(A, script_sha256="bb") == []  # a missing script will be sent


def test_an_import_that_fails_is_reported_with_its_last_line() -> None:
    probed = replace(A, imported={"error": "ImportError: libcudart.so.12"}, executable="/tf/python")
    (finding,) = found(probed)
    assert finding.what == "import tensorflow fails: ImportError: libcudart.so.12"
    assert "/tf/python" in finding.fix


TWO = replace(
    A,
    gpus=("H100", "H100"),
    named=("CUDA_VISIBLE_DEVICES",),
    visible_gpus=(0, 1),
    imported={
        "devices": ["CPU"],
        "no_gpu": "cannot load libcudart.so.12, libcudnn.so.9",
        "no_gpu_cause": "libraries",
    },
)


def test_a_node_whose_tensorflow_registers_no_gpu_is_named_with_the_library() -> None:
    (finding,) = found(TWO, with_gpus={"a"})
    assert (finding.check, finding.is_fatal) == ("GPUs", True)
    assert finding.what == (
        "TensorFlow registers no GPU (nvidia-smi lists 2 × H100):"
        " cannot load libcudart.so.12, libcudnn.so.9"
    )
    assert "pip install 'tensorflow[and-cuda]'" in finding.fix
    assert [one.is_fatal for one in found(TWO)] == [False], "no task was given a GPU"


@pytest.mark.parametrize(
    "answer",
    [
        replace(TWO, imported={"devices": ["CPU", "GPU", "GPU"]}),
        replace(TWO, visible_gpus=()),  # CUDA_VISIBLE_DEVICES=-1, or names of parts
        replace(TWO, gpus=()),
        replace(TWO, imported=None),
        replace(TWO, imported={"error": "ImportError"}, packages={}),
    ],
    ids=["registered", "hidden", "no GPU", "not imported", "no TensorFlow"],
)
def test_there_is_nothing_to_say_about_gpus_that_are_registered_or_not_to_be_seen(
    answer: ProbeAnswer,
) -> None:
    assert found(answer, with_gpus={"a"}, packages=()) == []


def test_fewer_registered_gpus_than_the_driver_lists_are_a_warning() -> None:
    all_of_them = replace(TWO, named=(), visible_gpus=(), imported={"devices": ["CPU", "GPU"]})
    (finding,) = found(all_of_them, with_gpus={"a"})
    assert finding.what == "TensorFlow registers 1 of 2 GPUs (nvidia-smi lists 2 × H100)"
    assert not finding.is_fatal


def test_the_report_of_a_scheduler_is_joined_by_that_of_its_nodes() -> None:
    obstacles = (Obstacle("nodes", "one is down", "wait", False), Obstacle("limits", "no", "less"))
    job = PreflightReport.of_job("slurm", Outlook(obstacles, "it would start now"))
    assert [(f.node, f.check, f.is_fatal) for f in job.findings] == [
        ("slurm", "limits", True),
        ("slurm", "nodes", False),
    ]
    with pytest.raises(PreflightError, match="slurm: no\n  → less"):
        job.require()
    report = job.with_nodes(PreflightReport(("a",), (A,), (Finding("a", "clock", "late", "NTP"),)))
    assert (report.nodes, report.seen) == (("slurm", "a"), (A,))
    assert from_json(PreflightReport, json.loads(json.dumps(report.to_json()))).notes == job.notes
    shown = format_report(report, width=None, colours=False)
    assert "nodes       !" in shown
    assert "note: slurm: one is down\n  → wait" in shown
    assert "it would start now\n2 problems" in shown


def test_a_node_is_asked_for_the_script_of_the_first_task_only(paths: RunPaths) -> None:
    plan = plan_of("worker:0", "worker:1", "worker:2")
    scripts = ("/job/train.py", "/job/other.py", "/job/train.py")
    tasks = tuple(
        replace(task, node=f"n{n}", command=Command(("python", script), (), "/job"))
        for n, (task, script) in enumerate(zip(plan.tasks, scripts, strict=True))
    )
    plan = replace(plan, tasks=tasks)
    nodes, ports = ["n0", "n1", "n2"], {task.id: 2222 for task in tasks}
    asked = [
        probe_answers.probe_order(
            plan, Site(node, paths.run_id, paths), plan_dials(plan, nodes, ports)
        )["script"]
        for node in nodes
    ]
    assert asked == ["/job/train.py", None, "/job/train.py"]
