"""The chief of a parameter-server job waits for its servers, which report that they serve."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from .conftest import PYTHONS, Start, tf_configs

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]


JOB = """
import os
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id,
        protocol="grpc",
    ).join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
os._exit(0)
"""


def test_the_chief_waits_and_the_servers_report_serving(start: Start, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    configs = tf_configs(["chief:0", "worker:0", "ps:0"])
    gang = {
        task: start("script", str(tmp_path / "job.py"), python=PYTHONS["newest"], env=config)
        for task, config in configs.items()
    }
    chief = gang["chief:0"].end()
    assert chief.code == 0, chief.err[-2000:]
    imports = [{"type": "task_phase", "name": name} for name in ("importing TensorFlow", "")]
    devices = {"type": "task_devices", "devices": ["CPU"]}
    waiting, ready = {"type": "waiting_for_peers"}, {"type": "task_ready"}
    assert [event for event in chief.events if event["type"] != "meets_peers"] == [
        *(*imports, waiting, devices, ready)
    ]
    for server in ("worker:0", "ps:0"):
        deadline = time.monotonic() + 120
        while {"type": "serving"} not in gang[server].events and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [event for event in gang[server].events if event["type"] != "meets_peers"] == [
            *(*imports, devices, ready, {"type": "serving"})
        ]
