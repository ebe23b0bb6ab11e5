"""What a run and `doctor --deep` say about the hardware, with real TensorFlow.

There is no GPU here: `nvidia-smi` and the driver are stand-ins (`tests/lab/stand_in_gpu.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.documentation import unprinted
from tests.lab.stand_in_gpu import add_nvidia_smi, build_driver

from tfcluster.preflight.preflight_report import PreflightReport
from tfcluster.typed_json import from_json
from tfcluster.ui.preflight_table import format_report

from .jobs.lab import Lab, a_lab

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

TRAIN = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
print("never printed")
"""
FAST, SLOW = "800mbit", "100mbit"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab() as made:
        yield made


def test_a_task_that_was_given_a_gpu_and_has_none_names_the_missing_libraries(
    lab: Lab, tmp_path: Path
) -> None:
    lab.line.script("train.py", TRAIN)
    env = {
        "PATH": f"{add_nvidia_smi(tmp_path / 'bin')}:{lab.line.env['PATH']}",
        "LD_LIBRARY_PATH": str(build_driver(tmp_path / "driver")),
        "CUDA_VISIBLE_DEVICES": "0,1",  # elsewhere tests hide all GPUs
    }
    run = lab.train("run", "-n", "2", "--set", "resources.gpus=1", "train.py", env=env)
    assert run.code == 1, run.complaint()
    assert "never printed" not in run.out
    cause = run.state["diagnosis"]["root_cause"]
    given = f"GPU {cause['task'][-1]}"  # one GPU for each
    assert cause["reason"].startswith(
        f"NoGpuError: this task was given {given}, but TensorFlow registers none: cannot load"
    )
    assert all(f"{name}.so." in cause["reason"] for name in ("libcudart", "libcublas", "libcudnn"))
    assert (cause["kind"], cause["docs"]) == ("permanent", "docs/failures.md#no-gpu")
    assert Path(cause["file"]).name == "train.py"
    assert "pip install 'tensorflow[and-cuda]'" in cause["hint"]
    assert run.state["attempt"] == 1, "it would fail the same way again"


def test_doctor_deep_measures_each_link_and_names_the_slow_one(lab: Lab) -> None:
    lab.line.script("train.py", TRAIN)
    link = {"between": ["worker:0", "worker:2"], "rate": SLOW}
    network = {"network": {"rate": FAST, "links": [link]}}
    lab.line.spec("s.json", {"script": "train.py"}, workers=3, runtime=network)
    done = lab.line.run("doctor", "--deep", "--json", "s.json", timeout=380)
    assert done.code == 0, done.err + done.out.decode()
    assert "measuring all-reduces of 64 MB between 3 workers (RING)" in done.err
    data = json.loads(done.out)
    report = from_json(PreflightReport, data)
    assert [answer.imported and answer.imported["devices"] for answer in report.seen] == [
        ["CPU"]
    ] * 3
    assert [one.workers for one in report.all_reduces] == [
        ("worker:0", "worker:1"),
        ("worker:0", "worker:2"),
        ("worker:1", "worker:2"),
        ("worker:0", "worker:1", "worker:2"),
    ]
    assert data["slowest_links"] == {"RING": ["worker:0", "worker:2"]}
    slow, ring = report.all_reduces[1], report.all_reduces[3]
    # A queue takes some of what is sent at once, so that a link seems faster than its rate.
    assert slow.gb_per_s < 0.0125 * 1.2
    assert ring.link_gb_per_s < 0.0125 * 1.2
    shown = format_report(report, width=None, colours=False)
    assert unprinted("guides/hosts.md", "ring of 3 workers", str(shown)) == []
    assert not (lab.line.home / "runs").exists() or not list(lab.line.home.glob("runs/s-*"))
