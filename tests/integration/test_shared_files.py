"""Files that several tasks write, and files that a task writes after the chief has ended."""

from __future__ import annotations

from pathlib import Path

from tests.documentation import unprinted

from .commandline import CommandLine

SCRIPT = """
import json, os, pathlib, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
for name in ("predictions.npy", f"own-{index}.npy"):
    with open(name, "wb") as file:
        file.write(b"numbers")
run = pathlib.Path(os.environ["TFCLUSTER_HOME"], "runs", os.environ["TFCLUSTER_RUN_ID"])
if index == 1:
    while '"task_exited"' not in (run / "events.jsonl").read_text():
        time.sleep(0.02)
    pathlib.Path("late.txt").write_text("late")
    pathlib.Path("model.keras").write_bytes(b"PK half a model")
"""


def test_outputs_are_taken_when_the_last_task_has_ended_and_damage_and_clashes_are_said(
    shell: CommandLine,
) -> None:
    shell.script("train.py", SCRIPT)
    globs = '["*.npy", "late.txt", "model.keras"]'
    done = shell.run("run", "--set", f"checkpoints.outputs={globs}", "train.py")
    assert done.code == 0, done.err
    outputs = Path(shell.last_run()) / "outputs"
    assert sorted(path.name for path in outputs.iterdir()) == [
        *("late.txt", "model.keras", "own-0.npy", "own-1.npy", "predictions.npy")
    ]
    assert (outputs / "late.txt").read_text() == "late", "written after the chief's end"
    said = " ".join(done.err.split())
    assert "model.keras was copied, but is damaged: it is not a complete zip archive" in said, (
        done.err
    )
    assert said.count("two tasks wrote the same file") == 1
    assert ": predictions.npy (worker:0, worker:1). Write it in the first worker only" in said
    assert unprinted("failures.md", "two tasks wrote the same file", done.err) == []
