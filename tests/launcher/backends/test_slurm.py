"""The backend `slurm` without a cluster: its plan, its commands, its batch script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.documentation import ROOT

from tfcluster.backends.relayed import STARTER
from tfcluster.backends.slurm.slurm_nodes import SlurmNodes
from tfcluster.discovery.planning import plan_file
from tfcluster.plans.plan import NodePlan
from tfcluster.spec import HostChoice

SPEC = str(ROOT / "cluster_specs/slurm-2n.json")


@pytest.mark.parametrize(
    ("backend", "hosts", "nodes"),
    [
        ("slurm", None, ["node-0", "node-1"]),
        ("local", None, ["local"]),
        ("docker", None, ["worker-0", "worker-1"]),
        ("ssh", "gpu1,gpu2", ["gpu1", "gpu2"]),
    ],
)
def test_the_spec_for_slurm_is_planned_for_every_backend(
    backend: str, hosts: str | None, nodes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    options = {"--backend": ("runtime.backend", backend)}
    planned = plan_file(SPEC, options=options, hosts=HostChoice(hosts, None, (), ()))
    assert [node.name for node in planned.plan.nodes] == nodes
    assert {node.backend for node in planned.plan.nodes} == {backend}
    assert [str(task.id) for task in planned.plan.tasks] == ["worker:0", "worker:1"]


def test_words_before_the_python_follow_the_options_of_srun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So options of srun (Pyxis) can be among them."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("HOME", "/home/ann")
    node = NodePlan("node-0", "slurm", None, "/", destination="n1", wrap=("--x=y", "~/wrap"))
    argv = SlurmNodes.argv(node)
    start = argv.index("--x=y")
    assert argv[start - 1].startswith("--")
    assert argv[start:] == ["--x=y", "/home/ann/wrap", "python3", "-I", "-S", "-c", STARTER]


def test_a_python_inside_the_words_is_not_looked_for_on_this_machine(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    runtime = {"backend": "slurm", "wrap": ["apptainer", "exec", "tf.sif"], "python": "/opt/tf/py"}
    job = {"module": "tfcluster_workers.jobs.keras_mnist"}
    spec.write_text(json.dumps({"cluster": {"worker": 1}, "job": job, "runtime": runtime}))
    planned = plan_file(str(spec))
    (node,) = planned.plan.nodes
    assert (node.python, node.wrap) == ("/opt/tf/py", ("apptainer", "exec", "tf.sif"))
    assert node.interpreter is not None
    assert node.interpreter.why == "in apptainer exec tf.sif"
    assert planned.obstacles() == ()
