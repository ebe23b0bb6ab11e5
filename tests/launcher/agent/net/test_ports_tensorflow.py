"""TensorFlow's server starts on a port that the agent holds, in both supported versions."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.launcher.agent.conftest import Rig

REPOSITORY = Path(__file__).parents[4]
SCRIPT = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
total = strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None)
print("sum", float(total), tf.__version__, flush=True)
"""


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("venv", [".venv", ".venv-tf215"])
def test_two_workers_join_on_held_ports(rig: Rig, venv: str) -> None:
    names = ["worker:0", "worker:1"]
    wanted = [{"task": name, "host": "localhost", "port": 0} for name in names]
    rig.peer.send("hold_ports", ports=wanted)
    ports = rig.peer.take("ports_held")["ports"]
    cluster = {"worker": [f"localhost:{ports[name]}" for name in names]}
    for index, name in enumerate(names):
        config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        env = {"TF_CONFIG": json.dumps(config), "TF_GRPC_REUSE_PORT": "1"}
        python = str(REPOSITORY / venv / "bin" / "python")
        rig.start(python, "-c", SCRIPT, task=name, env=env, unset=["CUDA_VISIBLE_DEVICES"])
    rig.peer.socket.settimeout(100)
    deadline = time.monotonic() + 100
    for name in names:
        while not any(m.get("task") == name and m["type"] == "task_exited"
                      for m in rig.peer.messages):  # fmt: skip
            assert time.monotonic() < deadline, rig.log(name).read_text()[-2000:]
            rig.peer.read()
        exited = rig.exited(name)
        assert exited["exit_code"] == 0, rig.log(name).read_text()[-2000:]
        assert "sum 2.0" in rig.log(name).read_text()
