"""An evaluator on one host sees the checkpoints that the chief saves on another."""

from __future__ import annotations

import pytest

from .office import Office

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, socket, struct, time
INDEX_END = struct.pack("<Q", 0xDB4775248B80FB57)
folder = os.environ["TFCLUSTER_CHECKPOINT_DIR"]
os.makedirs(folder, exist_ok=True)

def save(step):
    for name in (f"ckpt-{step}.data-00000-of-00001", f"ckpt-{step}.index"):
        with open(f"{folder}/{name}", "wb") as file:
            file.write(f"{step}".encode() * 1000 + INDEX_END)

def evaluate(step):
    with open(f"{folder}/mine", "a") as file:
        file.write(f"{step}")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            named = open(f"{folder}/checkpoint").read().splitlines()[0]
        except FileNotFoundError:
            named = ""
        if named == f'model_checkpoint_path: "ckpt-{step}"':
            content = open(f"{folder}/ckpt-{step}.index", "rb").read()
            return content == f"{step}".encode() * 1000 + INDEX_END
        time.sleep(0.1)

if os.environ["TFCLUSTER_TASK"] == "evaluator:0":
    chief = json.loads(os.environ["TF_CONFIG"])["cluster"]["chief"][0].split(":")[0]
    for step in (1, 2, 3):
        print("step", step, evaluate(step), flush=True)
        if step < 3:
            socket.create_connection((chief, 5555)).close()
    listed = sorted(os.listdir(folder))
    while any(name.endswith(".incoming") for name in listed):  # the list of checkpoints comes last
        time.sleep(0.1)
        listed = sorted(os.listdir(folder))
    print(open(f"{folder}/mine").read(), listed, flush=True)
else:
    waiting = socket.create_server(("", 5555))
    for step in (1, 2):
        save(step)
        waiting.accept()
    save(3)
"""


def test_an_evaluator_on_another_host_follows_the_chief(office: Office) -> None:
    first, second = office.add_hosts(2)
    cluster = {"chief": [f"{first.address}:0"], "evaluator": [f"{second.address}:0"]}
    run = office.up(office.spec(SCRIPT, cluster=cluster), "--set", "checkpoints.keep=1")
    assert run.end() == 0, run.said
    *steps, last = run.log("evaluator:0").splitlines()
    assert steps == ["step 1 True", "step 2 True", "step 3 True"]
    files = [f"ckpt-{n}.{end}" for n in (1, 2, 3) for end in ("data-00000-of-00001", "index")]
    listed = [".tfcluster-checkpoints.json", "checkpoint", "mine"]
    assert last == f"123 {sorted([*files, *listed])}"
