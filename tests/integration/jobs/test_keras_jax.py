"""Keras on JAX, plain JAX, Orbax, DTensor and what torch does: each finds the other tasks.

Keras on JAX has the losses of one process on two, also after either has failed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.documentation import unprinted

from .lab import PYTHONS, ROOT, SPECS, Lab, Trained, a_lab

# Four runs of JAX, one of DTensor, and one of a stand-in for torch.
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(900)]

PYTHON = f"--python={ROOT / '.venv-jax/bin/python'}"
SMALL = ("--epochs=3", "--examples=960")
STEPS = 10
"""Steps of an epoch."""
FAULTS = "kill worker:1 at step 15; raise worker:0 at step 25 in attempt 2"
LOOP = """
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from tfcluster_workers import reporting

jax.distributed.initialize()
mesh = jax.make_mesh((jax.device_count(),), ("batch",))
over_processes = NamedSharding(mesh, PartitionSpec("batch"))
own = np.full(4, jax.process_index() + 1.0)
batch = jax.make_array_from_process_local_data(over_processes, own)
step = jax.jit(jax.grad(lambda weight, x: ((weight * x - 1) ** 2).mean()))
weight = np.float32(0)
for number in range(1, 6):
    weight -= 0.1 * np.float32(step(weight, batch).addressable_data(0))
    reporting.progress(number, total=5, metrics={"weight": float(weight)})
print(f"weight {weight:.6f}")
"""
ORBAX = """
import os
import jax
import numpy as np
import orbax.checkpoint as ocp
from tfcluster_workers import reporting

manager = ocp.CheckpointManager(os.environ["TFCLUSTER_CHECKPOINT_DIR"])
done, weight = manager.latest_step() or 0, np.zeros(4)
if done:
    weight = manager.restore(done, args=ocp.args.StandardRestore({"weight": weight}))["weight"]
for step in range(done + 1, 7):
    weight = np.asarray(jax.numpy.add(weight, step))
    manager.save(step, args=ocp.args.StandardSave({"weight": weight}))
    manager.wait_until_finished()
    reporting.saved(str(manager.directory / str(step)), step=step)
    reporting.progress(step, total=6)
print(f"after {done}: weight {weight[0]:.0f}")
"""
DTENSOR = """
import tensorflow as tf
from tensorflow.experimental import dtensor

dtensor.initialize_accelerator_system("CPU")
clients = dtensor.num_clients()
axes = [("batch", clients)]
mesh = dtensor.create_distributed_mesh(axes, device_type="CPU", local_devices=["CPU:0"])
ones = dtensor.call_with_layout(tf.ones, dtensor.Layout(["batch"], mesh), shape=(clients,))
total = dtensor.relayout(tf.reduce_sum(ones), dtensor.Layout.replicated(mesh, rank=0))
print(f"the sum is {float(dtensor.unpack(total)[0]):.0f}")
"""
TORCH = """
import os
import socket


def init_process_group():
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    others = int(os.environ["WORLD_SIZE"]) - 1
    if int(os.environ["RANK"]):
        while True:
            try:
                return socket.create_connection(address)
            except ConnectionRefusedError:
                continue
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("0.0.0.0", address[1]))
        server.listen()
        return [server.accept() for _ in range(others)]
"""
"""What torch.distributed does at its start: TCPStore reuses addresses, and never ports."""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab() as made:
        yield made


def loss_on_tests(trained: Trained, task: str) -> list[float]:
    return [float(loss) for loss in trained.said(task, r"^test loss (\S+)")]


def test_two_processes_have_the_losses_of_one_although_each_of_them_fails_once(lab: Lab) -> None:
    options = (PYTHON, "--set=supervision.backoff_s=0", "--set=supervision.restart_on_error=true")
    up = ("up", str(SPECS / "keras-jax-2w.json"), *options)
    alone = lab.train(*up, "--set=cluster.worker=1", "--", *SMALL)
    assert alone.code == 0, alone.complaint()
    two = lab.train(*up, f"--chaos={FAULTS}", "--", *SMALL)
    assert two.code == 0, two.complaint()
    for task in ("worker:0", "worker:1"):
        assert two.losses(task) == pytest.approx(alone.losses(), abs=1e-4)
        expected = loss_on_tests(alone, "worker:0")
        assert loss_on_tests(two, task) == pytest.approx(expected, abs=1e-4)
        steps = [(report["attempt"], report["step"]) for report in two.reports(task)]
        first = [min(step for attempt, step in steps if attempt == number) for number in (2, 3)]
        assert first == [STEPS + 1, 2 * STEPS + 1]
    restarts = [(event["reason"], event["from_step"]) for event in two.of("restarting")]
    assert restarts[0] == ("worker:1: killed by SIGKILL", STEPS)
    assert restarts[1][0].startswith("worker:0: InjectedFault")
    assert restarts[1][1] == 2 * STEPS
    assert unprinted("tutorials/keras_jax.md", "test loss", two.out) == []
    assert two.state["warnings"] == []
    assert two.of("alert") == []
    gathered = {event["step"] for event in two.of("checkpoint_gathered")}
    assert {STEPS, 2 * STEPS, 3 * STEPS} <= gathered


def test_a_plain_loop_is_found_by_its_import_and_joins_without_arguments(lab: Lab) -> None:
    (lab.line.root / "loop.py").write_text(LOOP)
    trained = lab.train("run", "-n2", PYTHON, str(lab.line.root / "loop.py"))
    assert trained.code == 0, trained.complaint()
    weights = [trained.said(f"worker:{index}", r"^weight (\S+)") for index in (0, 1)]
    assert weights[0] == weights[1] != []
    assert [event["step"] for event in trained.reports("worker:1")][-1] == 5
    assert trained.of("alert") == []


def test_a_folder_of_orbax_is_gathered_and_put_back(lab: Lab) -> None:
    (lab.line.root / "orbax_loop.py").write_text(ORBAX)
    options = ("-n1", PYTHON, "--set=supervision.max_restarts=1", "--chaos=kill worker:0 at step 4")
    trained = lab.train("run", *options, str(lab.line.root / "orbax_loop.py"))
    assert trained.code == 0, trained.complaint()
    assert trained.said("worker:0", "^after .*") == ["after 4: weight 21"]
    assert [event["from_step"] for event in trained.of("restarting")] == [4]
    assert trained.state["checkpoints"][-1]["step"] == 6


def test_the_clients_of_dtensor_join(lab: Lab) -> None:
    (lab.line.root / "sum.py").write_text(DTENSOR)
    python = f"--python={PYTHONS['newest']}"
    trained = lab.train("run", "-n2", python, str(lab.line.root / "sum.py"))
    assert trained.code == 0, trained.complaint()
    assert [trained.said(f"worker:{i}", "^the sum is .*") for i in (0, 1)] == [["the sum is 2"]] * 2


def test_a_script_that_imports_torch_meets_at_the_held_port(lab: Lab) -> None:
    """Over the network of its task's address, whatever the machine's name stands for."""
    folder, packages = lab.line.root / "torched", lab.line.root / "packages"
    folder.mkdir()
    package = packages / "torch/distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text(TORCH)
    (package / "__init__.py").write_text("from torch.distributed import distributed_c10d\n")
    (package / "distributed_c10d.py").write_text("")
    begin = "import os\nimport torch\nimport torch.distributed\n"
    end = 'print("met as", os.environ["RANK"], "over", os.environ["GLOO_SOCKET_IFNAME"])\n'
    (folder / "train.py").write_text(f"{begin}torch.init_process_group()\n{end}")
    env = {"PYTHONPATH": str(packages)}
    trained = lab.train("run", "-n2", PYTHON, str(folder / "train.py"), env=env)
    assert trained.code == 0, trained.complaint()
    assert [trained.said(f"worker:{i}", "^met as .*") for i in (0, 1)] == [
        ["met as 0 over lo"],
        ["met as 1 over lo"],
    ]
