"""Unmodified scripts find under `tfcluster run` all that plain Python gives them."""

from __future__ import annotations

import json
from pathlib import Path

from .commandline import CommandLine

FAMILY = """
import argparse, json, multiprocessing, os, sys
import sibling


def double(number):
    return sibling.FACTOR * number


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="none")
    parser.add_argument("rest", nargs="*")
    args = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        doubled = pool.map(double, [1, 2, 3])
    import theirs
    print(json.dumps({
        "argv": sys.argv[1:], "doubled": doubled, "theirs": theirs.VALUE, "path0": sys.path[0],
        "customized": os.environ.get("CUSTOMIZED"), "cwd": os.getcwd(), "name": __name__,
        "workers": len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]),
    }))
"""
WRITER = """
import json, os, pathlib
task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
if task == 0:
    pathlib.Path("model").mkdir()
    pathlib.Path("model/weights.bin").write_bytes(b"1234")
    pathlib.Path("notes.txt").write_text("done")
"""


def answer(out: bytes, task: str) -> dict[str, object]:
    prefix = f"{task} │ {{"
    (line,) = (line for line in out.decode().splitlines() if line.startswith(prefix))
    found: dict[str, object] = json.loads(line[len(prefix) - 1 :])
    return found


def test_a_script_finds_all_that_plain_python_gives_it(shell: CommandLine) -> None:
    theirs = shell.root / "theirs"
    theirs.mkdir()
    (theirs / "theirs.py").write_text("VALUE = 7\n")
    (theirs / "sitecustomize.py").write_text("import os\nos.environ['CUSTOMIZED'] = 'yes'\n")
    code = shell.cwd / "code"
    code.mkdir()
    (code / "sibling.py").write_text("FACTOR = 2\n")
    (code / "family.py").write_text(FAMILY)
    done = shell.run("run", "-n", "2", "code/family.py", "--name", "x", "-n", "--", "--set")
    assert done.code == 1, "-n is the script's own, and it does not know it"
    assert "unrecognized arguments: -n" in done.out.decode()
    shell.env["PYTHONPATH"] = str(theirs)
    done = shell.run("run", "-n", "2", "code/family.py", "--name", "x", "--", "--set", "a b")
    assert done.code == 0, done.err
    for task in ("worker:0", "worker:1"):
        assert answer(done.out, task) == {
            "argv": ["--name", "x", "--", "--set", "a b"],
            "doubled": [2, 4, 6],
            "theirs": 7,
            "path0": str(code),
            "customized": "yes",
            "cwd": str(shell.cwd),
            "name": "__main__",
            "workers": 2,
        }


def test_a_package_runs_as_a_module(shell: CommandLine) -> None:
    package = shell.cwd / "trainer"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "task.py").write_text("from . import other\nprint(other.WHO, __spec__.name)\n")
    (package / "other.py").write_text("WHO = 'other'\n")
    (package / "__main__.py").write_text("from . import task\n")
    done = shell.run("run", "-m", "trainer.task")
    assert done.code == 0, done.err
    assert b"worker:1 \xe2\x94\x82 other trainer.task" in done.out
    done = shell.run("run", "-n", "1", "-m", "trainer")
    assert b"worker:0 \xe2\x94\x82 other trainer.task" in done.out


def test_new_files_beside_a_script_are_reported_once_and_gathered_if_configured(
    shell: CommandLine,
) -> None:
    shell.script("writer.py", WRITER)
    first = shell.run("run", "writer.py")
    assert first.code == 0, first.err
    said = " ".join(first.err.split())
    assert said.count("New files in the working directory: model/, notes.txt") == 1
    assert "--set 'checkpoints.outputs=" in said
    for name in ("model/weights.bin", "notes.txt"):
        (shell.cwd / name).unlink()
    (shell.cwd / "model").rmdir()

    again = shell.run("run", "--set", 'checkpoints.outputs=["model/**", "*.txt"]', "writer.py")
    assert again.code == 0, again.err
    outputs = Path(shell.last_run()) / "outputs"
    assert (outputs / "model/weights.bin").read_bytes() == b"1234"
    assert (outputs / "notes.txt").read_text() == "done"
    assert "New files" not in again.err


def test_a_setting_that_no_task_reads_is_reported_with_and_without_hooks(
    shell: CommandLine,
) -> None:
    shell.script("deaf.py", "print('trained')")
    shell.script("heeds.py", "from tfcluster_workers import context as c\nc.setting('precision')")
    sets = ("--set", "keras.precision=mixed_bfloat16")
    for hooks in ("auto", "off"):
        deaf = shell.run("run", *sets, "--set", f"job.hooks={hooks}", "deaf.py")
        said = " ".join(deaf.err.split())
        assert said.count("no task has read keras.precision = mixed_bfloat16") == 1
        assert "tfcluster_workers.keras_choice.apply_precision(keras)" in said
        heeds = shell.run("run", *sets, "--set", f"job.hooks={hooks}", "heeds.py")
        assert (heeds.code, "no task has read" in heeds.err) == (0, False), heeds.err
