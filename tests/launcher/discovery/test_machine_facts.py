"""The facts that planning gathers about this machine and the files of a job."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tfcluster.agent.node import machine
from tfcluster.discovery import machine_facts
from tfcluster.discovery.machine_facts import (
    addresses_to_compare,
    gather,
    own_addresses,
    visible_gpus,
)
from tfcluster.errors import SpecError, UsageError
from tfcluster.plans.context import PlanContext
from tfcluster.plans.placement import place_tasks
from tfcluster.spec.model import ClusterSpec


def make_spec(job: dict[str, Any], **sections: Any) -> ClusterSpec:
    return ClusterSpec.model_validate({"cluster": {"worker": 2}, "job": job} | sections)


def gathered(
    job: dict[str, Any], folder: Path, python: str | None = sys.executable, **sections: Any
) -> PlanContext:
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    spec = make_spec(job, **sections)
    return gather(
        spec,
        place_tasks(spec, addresses_to_compare(spec)),
        spec_dir=folder,
        bundle="/b/0123",
        python=python,
        environ=environ,
    )


def test_own_addresses_include_loopback_and_the_host_name() -> None:
    facts = own_addresses()
    assert {"127.0.0.1", socket.gethostname()} <= facts
    assert not any("%" in address for address in facts)


@pytest.mark.linux("cores of a process")
def test_only_cores_that_this_process_may_use_are_counted(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    first = min(before)
    os.sched_setaffinity(0, {first})
    try:
        assert gathered({"command": ["true"]}, tmp_path).cores.nodes == ((first,),)
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("script", "shown", "expected"),
    [
        ("echo 0; echo 1; echo 2", None, (0, 1, 2)),
        ("echo 0; echo 1; echo 2", "2,0", (2, 0)),
        ("echo 0; echo 1; echo 2", "1,-1,2", (1,)),
        ("echo 0, GPU-aa10; echo 1, GPU-ab20", None, (0, 1)),
        ("echo 0, GPU-aa10; echo 1, GPU-ab20", "GPU-ab20,0", (1, 0)),
        ("echo 0, GPU-aa10; echo 1, GPU-ab20", "GPU-ab", (1,)),
        ("echo 0, GPU-aa10; echo 1, GPU-ab20", "GPU-a,1", ()),
        ("echo 0, GPU-aa10", "MIG-7,MIG-8", ("MIG-7", "MIG-8")),
        ("", "MIG-7,GPU-8", ("MIG-7", "GPU-8")),
        ("", "0,1", ()),
        ("echo 0", "", ()),
        ("echo 0", "-1", ()),
        ("echo no driver; exit 9", None, ()),
    ],
)
def test_visible_gpus_are_listed_by_the_driver_and_in_cuda_visible_devices(
    tmp_path: Path, script: str, shown: str | None, expected: tuple[int | str, ...]
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n{script}\n")
    smi.chmod(0o755)
    environ = {"PATH": str(tmp_path)} | ({} if shown is None else {"CUDA_VISIBLE_DEVICES": shown})
    assert visible_gpus(environ) == expected


def test_a_driver_that_does_not_answer_does_not_mean_no_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "SMI_S", 0.2)
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus({"PATH": str(tmp_path)}) is None
    named = {"PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0,MIG-1"}
    assert visible_gpus(named) == (0, "MIG-1")
    assert machine.gpus() == ([], "nvidia-smi did not answer within 0 s")


def test_imports_are_followed_into_the_jobs_own_modules(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("import os\nimport mnist\nfrom pkg.data import load\n")
    (tmp_path / "mnist.py").write_text("import tensorflow as tf\nimport main\n")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "data.py").write_text("import numpy\n")
    facts = gathered({"script": "main.py"}, tmp_path)
    assert facts.imports is not None
    assert {"os", "tensorflow", "numpy"} <= facts.imports


@pytest.mark.parametrize("job", [{"module": "json.tool"}, {"command": ["true"]}])
def test_imports_outside_the_workdir_are_unknown(tmp_path: Path, job: dict[str, Any]) -> None:
    assert gathered(job, tmp_path).imports is None


def test_an_env_file_that_cannot_be_read_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no\.env"):
        gathered({"command": ["x"], "env_file": "no.env"}, tmp_path)
    (tmp_path / "bad.env").write_text("what\n")
    with pytest.raises(SpecError, match=r"bad\.env:1"):
        gathered({"command": ["x"], "env_file": "bad.env"}, tmp_path)


def test_the_python_of_the_command_line_wins(tmp_path: Path) -> None:
    runtime = {"python": "/no/such/python"}
    facts = gathered({"command": ["x"]}, tmp_path, runtime=runtime)
    assert facts.interpreters["local"].path == sys.executable
    assert facts.interpreters["local"].why == "--python"
    with pytest.raises(UsageError, match=r"runtime\.python"):
        gathered({"command": ["x"]}, tmp_path, python=None, runtime=runtime)


def test_the_python_of_a_host_wins_over_that_of_all_hosts(tmp_path: Path) -> None:
    hosts = {"*": {"python": "/all"}, "10.0.0.1": {"python": "/one"}}
    facts = gathered(
        {"command": ["x"]},
        tmp_path,
        python=None,
        cluster={"worker": ["10.0.0.1:1", "10.0.0.2:1"]},
        runtime={"python": "/large", "hosts": hosts},
    )
    assert {node: python.path for node, python in facts.interpreters.items()} == {
        "10.0.0.1": "/one",
        "10.0.0.2": "/all",
    }
    assert all(python.version is None for python in facts.interpreters.values())


def test_what_is_installed_beside_an_example_job_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel puts tfcluster_workers beside TensorFlow, which sets variables of its own."""
    jobs = tmp_path / "site-packages" / "tfcluster_workers" / "jobs"
    jobs.mkdir(parents=True)
    (jobs / "train.py").write_text(
        "import tensorflow\nimport tfcluster_workers.more\nimport local\n"
    )
    (jobs / "local.py").write_text("import a_local_import\n")
    (jobs.parent / "more.py").write_text("import one_more\n")
    (jobs.parents[1] / "tensorflow.py").write_text(
        "import os\nimport beside\nos.environ['TF_DETERMINISTIC_OPS'] = '1'\n"
    )
    monkeypatch.setattr(machine_facts, "workers_folder", lambda: jobs.parent)
    code = gathered({"module": "tfcluster_workers.jobs.train"}, tmp_path).code
    assert code is not None
    assert {"tensorflow", "one_more", "a_local_import"} <= code.imports
    assert "beside" not in code.imports
    assert gathered({"module": "tensorflow"}, tmp_path).code is None


def test_imports_of_a_module_below_the_workdir_are_read(tmp_path: Path) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__main__.py").write_text("import tensorflow\n")
    assert gathered({"module": "trainer"}, tmp_path).imports == frozenset({"tensorflow"})


def test_the_env_file_is_relative_to_the_spec(tmp_path: Path) -> None:
    (tmp_path / "my.env").write_text("A=1\n")
    assert gathered({"command": ["x"], "env_file": "my.env"}, tmp_path).env_file == (("A", "1"),)
