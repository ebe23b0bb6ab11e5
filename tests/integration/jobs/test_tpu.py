"""`strategy.name: tpu` through the real command, without a TPU and on stand-in devices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.documentation import unprinted

from .lab import PYTHONS, SPECS, Lab, Trained, a_lab

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

FAKE_TPU = """
import tensorflow as tf

def resolver():
    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, parts)
    return tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({}))
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab() as made:
        made.line.script("fake_tpu.py", FAKE_TPU)
        yield made


def up(lab: Lab, *options: str) -> Trained:
    python = f"--python={PYTHONS['tf215']}"
    job = ("--", "--examples=480", "--epochs=1")
    return lab.train("up", str(SPECS / "tpu.json"), python, *options, *job)


def test_without_a_tpu_the_run_fails_with_one_line_and_is_not_restarted(lab: Lab) -> None:
    trained = up(lab)
    assert trained.code == 1
    assert trained.state["attempt"] == 1
    (line,) = trained.said("worker:0", r"^custom_loop: strategy tpu, .*")
    assert "no TPU was found: none of TPU_NAME, TPU_CONFIG" in line
    assert "Traceback" not in trained.out
    assert unprinted("tutorials/options.md", "strategy tpu", trained.out) == []
    assert "no TPU was found" in trained.state["diagnosis"]["root_cause"]["reason"]


def test_a_custom_resolver_selects_the_devices(lab: Lab) -> None:
    trained = up(
        lab,
        "--set=job.env.TFCLUSTER_TPU_RESOLVER=fake_tpu:resolver",
        f"--set=job.env.PYTHONPATH={lab.line.cwd}",
    )
    assert trained.code == 0, trained.complaint()
    assert trained.state["warnings"] == []
    (start,) = trained.said("worker:0", r"^custom_loop: .*")
    assert "global batch 96 on 2 replicas" in start
    assert trained.of("progress", "worker:0")[-1]["step"] == 5
