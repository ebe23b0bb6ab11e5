"""A stub job whose chief saves like TensorFlow, and which continues where it was stopped."""

from __future__ import annotations

SAVES = """
import json, os, re, struct, sys, time
cluster = json.loads(os.environ["TF_CONFIG"])
workers = len(cluster["cluster"]["worker"])
attempt, folder = int(os.environ["TFCLUSTER_ATTEMPT"]), os.environ["TFCLUSTER_CHECKPOINT_DIR"]
os.makedirs(folder, exist_ok=True)
saved = [int(n) for name in os.listdir(folder) for n in re.findall(r"ckpt-(\\d+).index", name)]
step = max(saved, default=0)
print(workers, "workers from step", step, flush=True)
last = step + 5 if workers == int(os.environ["WORKERS"]) else None
is_last = attempt >= int(os.environ["ATTEMPT"])
while not (is_last and last is not None and step >= last):
    step += 1
    if cluster["task"]["index"] == 0:
        for end in ("data-00000-of-00001", "index"):
            with open(f"{folder}/ckpt-{step}.{end}.new", "wb") as file:
                file.write(struct.pack("<Q", 0xDB4775248B80FB57))
            os.replace(f"{folder}/ckpt-{step}.{end}.new", f"{folder}/ckpt-{step}.{end}")
    print("step", step, flush=True)
    time.sleep(0.2)
"""
"""Trains until it has WORKERS workers in attempt ATTEMPT or later, and five steps more."""
