"""A task reports the files that it opens for writing, as far as they may be results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfcluster_workers.saving.written_files import MOST, WrittenFiles

from .conftest import PYTHONS, Boot, Ended, Start

SCRIPT = """
import io, os, pathlib, sys, tempfile
open("predictions.npy", "wb").close()
open("predictions.npy", "wb").close()
pathlib.Path("deep").mkdir()
pathlib.Path("deep/table.csv").write_text("a")
os.chdir("deep")
io.FileIO("x.bin", "x").close()
os.close(os.open(b"y.bin", os.O_WRONLY | os.O_CREAT))
open("y.bin", "r+").close()
os.chdir("..")
# No results, or meant for several writers:
open("log.txt", "a").close()
open("predictions.npy").close()
os.makedirs(".cache")
for name in (".cache/x", "download.lock", os.devnull):
    open(name, "w").close()
open(os.open("deep/y.bin", os.O_WRONLY), "w").close()
with tempfile.TemporaryDirectory() as folder:
    open(f"{folder}/x", "w").close()
tempfile.TemporaryFile().close()
tempfile.NamedTemporaryFile().close()
checkpoints = os.environ["TFCLUSTER_CHECKPOINT_DIR"]
os.makedirs(checkpoints)
open(f"{checkpoints}/state", "w").close()
open("new.tmp", "w").close()
os.replace("new.tmp", "moved.csv")
handle, temporary = tempfile.mkstemp(dir=".")
os.close(handle)
os.rename(temporary, b"from_tempfile.csv")
os.rename("read.csv", "old.csv")  # this task has not written it
os.replace("moved.csv", ".hidden")
os.symlink("deep", "link")
open("link/z.bin", "w").close()
sys.audit("open", "strange")
print("done", flush=True)
if len(sys.argv) > 1:
    open("last.npy", "wb").close()
    os.kill(os.getpid(), 9)
"""
WRITTEN = [
    *("deep/table.csv", "deep/x.bin", "deep/y.bin", "from_tempfile.csv", "link/z.bin"),
    *("moved.csv", "new.tmp", "predictions.npy"),
]


def written(ended: Ended) -> list[dict[str, str]]:
    return [file for event in ended.of("wrote") for file in event["files"]]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "run" / "tasks" / "worker-0" / "checkpoints"
    return {"TFCLUSTER_TASK": "worker:0", "TFCLUSTER_CHECKPOINT_DIR": str(folder)}


def test_a_task_reports_each_file_once(
    boot: Boot, tmp_path: Path, env: dict[str, str], python: str
) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    (tmp_path / "read.csv").touch()
    ended = boot("script", str(tmp_path / "job.py"), python=python, env=env)
    assert (ended.code, ended.out) == (0, "done\n"), ended.err
    paths = sorted(str(Path(file["path"]).relative_to(tmp_path)) for file in written(ended))
    assert paths == WRITTEN


def test_two_tasks_give_one_file_the_same_id_under_any_name(
    start: Start, tmp_path: Path, env: dict[str, str]
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    tasks = [
        start("script", str(tmp_path / f"{name}.py"), env={**env, "TFCLUSTER_TASK": f"worker:{n}"})
        for n, name in enumerate(("real", "link"))
        if (tmp_path / f"{name}.py").write_text(f"open('{name}/model.npy', 'wb')")
    ]
    first, second = (written(task.end())[0] for task in tasks)
    assert first["path"] != second["path"]
    assert first["file"] == second["file"]


def test_the_files_of_a_killed_task_are_known(
    boot: Boot, tmp_path: Path, env: dict[str, str]
) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    (tmp_path / "read.csv").touch()
    ended = boot("script", str(tmp_path / "job.py"), "killed", env=env)
    assert ended.code == -9
    assert Path(written(ended)[-1]["path"]).name == "last.npy"


def test_a_directory_that_all_tasks_share_holds_results(boot: Boot, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("open('shared/state', 'w')")
    (tmp_path / "shared").mkdir()
    shared = {"TFCLUSTER_TASK": "worker:0", "TFCLUSTER_CHECKPOINT_DIR": str(tmp_path / "shared")}
    ended = boot("script", str(tmp_path / "job.py"), env=shared)
    assert [Path(file["path"]).name for file in written(ended)] == ["state"]


def test_the_number_of_reports_is_bounded(tmp_path: Path) -> None:
    sent, has_room = list[int](), [True]

    def report(files: list[dict[str, str]]) -> bool:
        if has_room[0]:
            sent.append(len(files))
        return has_room[0]

    files = WrittenFiles(report, str(tmp_path))
    for number in range(50):
        files.note(f"{number}.npy")
    has_room[0] = False  # the agent is busy: nothing is lost, and nothing waits
    for number in range(50, 2 * MOST):
        files.note(f"{number}.npy")
    has_room[0] = True
    files.flush()
    assert sum(sent) == MOST
    assert len(sent) < 60
    assert max(sent) <= 20


NATIVE = """
import os
import tensorflow as tf, h5py
with tf.io.gfile.GFile("gfile.txt", "w") as file:
    file.write("a")
with tf.io.gfile.GFile("gfile.txt", "r") as file:
    file.read()
tf.io.TFRecordWriter("data.tfrecord").close()
tf.io.write_file("image.png", b"a")
h5py.File("array.h5", "w").close()
h5py.File("array.h5", "r").close()
h5py.File("memory.h5", "w", driver="core", backing_store=False).close()
tf.train.Checkpoint(a=tf.Variable(1)).write("ckpt")
tf.saved_model.save(tf.Module(), "model")
model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
model.save("model.keras")
model.save_weights("later.weights.h5")
os.makedirs("workertemp_1")
tf.saved_model.save(tf.Module(), "workertemp_1/model")
"""


@pytest.mark.tensorflow
@pytest.mark.parametrize("tensorflow", list(PYTHONS))
def test_files_that_native_code_writes_are_reported_and_what_is_moved_is_not(
    boot: Callable[..., Ended], tmp_path: Path, env: dict[str, Any], tensorflow: str
) -> None:
    (tmp_path / "job.py").write_text(NATIVE)
    ended = boot("script", str(tmp_path / "job.py"), python=PYTHONS[tensorflow], env=env)
    assert ended.code == 0, ended.err[-3000:]
    saved = [event["path"] for event in ended.of("saved_model")]
    assert saved == [str(tmp_path / "model.keras")], "the newest whole model that is kept"
    names = {str(Path(file["path"]).relative_to(tmp_path)) for file in written(ended)}
    written_in_model = {name for name in names if name.startswith("model/")}
    assert names - written_in_model == {
        *("gfile.txt", "data.tfrecord", "image.png", "array.h5", "ckpt", "model"),
    }
