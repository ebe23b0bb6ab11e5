"""Keras saves beside the named file and moves the whole file there, on stand-ins for Keras."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tfcluster_workers.saving import temporary, whole_files


@pytest.fixture(autouse=True)
def _own_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFCLUSTER_TASK", "worker:1")
    monkeypatch.setenv("TFCLUSTER_RUN_ID", "localhost-2w-20260914-153012-k7f3")
    monkeypatch.setattr(temporary, "_checked", set())


def files() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))


class Keras:
    """Stand-ins for Keras's modules, which write two halves; `meanwhile` is called between."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[str], None] = lambda path: None
        self.answers: list[bool] = []
        library: Any = ModuleType("saving_lib")
        library.save_model = library.save_weights_only = self._write
        whole_files.watch_saving_library(library)
        hdf5: Any = ModuleType("hdf5_format")
        hdf5.save_model_to_hdf5 = self._write
        hdf5.io_utils = SimpleNamespace(ask_to_proceed_with_overwrite=self._ask)
        whole_files.watch_hdf5_format(hdf5)
        self.save_model = library.save_model
        self.save_model_to_hdf5 = hdf5.save_model_to_hdf5

    def _write(self, model: str, filepath: Any, overwrite: bool = True) -> str:
        if isinstance(filepath, io.IOBase):
            filepath.write(model.encode())
            return "written"
        with open(filepath, "w") as file:
            file.write(model)
            file.flush()
            self.meanwhile(str(filepath))
            file.write(model)
        return "written"

    def _ask(self, path: Any) -> bool:
        assert os.fspath(path) == "model.h5", "the user knows this name"
        return self.answers.pop()


@pytest.mark.parametrize("path", ["model.keras", Path("model.keras"), "deep/model.keras"])
def test_a_file_appears_when_it_is_whole(path: Any) -> None:
    os.makedirs("deep")
    keras, seen = Keras(), list[list[str]]()
    keras.meanwhile = lambda new: seen.append([new, str(os.path.exists(path))])
    assert keras.save_model("ab", path) == "written"
    assert Path(path).read_text() == "abab"
    ((new, existed),) = seen
    assert existed == "False"
    assert os.path.dirname(os.path.dirname(new)) == str(Path(path).absolute().parent)
    assert os.path.basename(os.path.dirname(new)).startswith("workertemp_worker_1_k7f3_")
    assert not [name for name in files() if "workertemp" in name]


def test_of_two_tasks_that_save_at_once_the_last_to_finish_leaves_its_file() -> None:
    first, second = Keras(), Keras()
    first.meanwhile = lambda new: (second.save_model("second", "model.keras"), None)[1]
    first.save_model("first", "model.keras")
    assert Path("model.keras").read_text() == "firstfirst"
    assert files() == ["model.keras"]


def test_a_save_that_fails_leaves_the_file_as_it_was_and_nothing_else() -> None:
    keras = Keras()
    keras.save_model("old", "model.keras")

    def fail(new: str) -> None:
        raise OSError(28, "No space left on device")

    keras.meanwhile = fail
    with pytest.raises(OSError, match="No space left"):
        keras.save_model("new", "model.keras")
    assert Path("model.keras").read_text() == "oldold"
    assert files() == ["model.keras"]


def test_a_new_file_has_the_usual_mode_and_an_existing_one_keeps_its_own() -> None:
    keras = Keras()
    keras.save_model("a", "model.keras")
    Path("usual").touch()
    assert Path("model.keras").stat().st_mode == Path("usual").stat().st_mode
    Path("model.keras").chmod(0o640)
    keras.save_model("b", "model.keras")
    assert stat.S_IMODE(Path("model.keras").stat().st_mode) == 0o640


def test_a_link_stays_and_the_file_behind_it_is_replaced() -> None:
    os.makedirs("versions")
    os.symlink("versions/3.keras", "latest.keras")
    Keras().save_model("a", "latest.keras")
    assert os.readlink("latest.keras") == "versions/3.keras"
    assert Path("versions/3.keras").read_text() == "aa"
    assert files() == ["latest.keras", "versions", "versions/3.keras"]


def test_what_cannot_be_moved_into_place_is_written_by_keras_itself() -> None:
    keras = Keras()
    buffer = io.BytesIO()
    keras.save_model("a", buffer)
    assert buffer.getvalue() == b"a"
    keras.save_model("a", os.devnull)
    with pytest.raises(FileNotFoundError, match=r"'gs://bucket/model\.keras'"):
        keras.save_model("a", "gs://bucket/model.keras")
    with pytest.raises(FileNotFoundError, match=r"'missing/model\.keras'"):
        keras.save_model("a", "missing/model.keras")
    assert files() == []


def test_the_files_of_one_save_are_moved_with_the_one_that_names_them_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def shard(path: Any) -> None:
        for name in ("w.weights.json", "w_00000.weights.h5", "w_00001.weights.h5"):
            (Path(path).parent / name).write_text(name)

    moved, replace = list[str](), os.replace

    def watched_replace(old: str, new: str) -> None:
        moved.append(os.path.basename(new))
        replace(old, new)

    monkeypatch.setattr(os, "replace", watched_replace)
    whole_files.write_whole("w.weights.h5", shard)  # Keras saves a `.json` beside the parts
    assert moved[2:] == ["w.weights.json"]
    assert files() == sorted(moved)


def test_a_model_saved_as_a_folder_is_moved_file_by_file() -> None:
    def save(path: Any) -> None:
        os.makedirs(f"{path}/assets/layer")
        for name in ("config.json", "model.weights.h5", "assets/layer/words"):
            Path(path, name).write_text("new")

    os.makedirs("model/assets")
    Path("model/config.json").write_text("old")
    Path("model/assets/own").write_text("own")
    whole_files.write_whole("model", save)
    found = {name: Path(name).read_text() for name in files() if os.path.isfile(name)}
    assert found == {
        "model/assets/layer/words": "new",
        "model/assets/own": "own",
        "model/config.json": "new",
        "model/model.weights.h5": "new",
    }


@pytest.mark.parametrize("answer", [True, False])
def test_keras_asks_before_it_overwrites_where_it_was_told_not_to(answer: bool) -> None:
    keras = Keras()
    keras.save_model_to_hdf5("old", "model.h5", False)
    keras.answers = [answer]
    keras.save_model_to_hdf5("new", "model.h5", overwrite=False)
    assert Path("model.h5").read_text() == ("newnew" if answer else "oldold")


def test_a_restart_removes_what_the_killed_attempt_of_this_task_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = ["workertemp_worker_1_k7f3_0b2e91c4", "workertemp_worker_2_k7f3_1", "workertemp_1"]
    for folder in left:
        os.makedirs(folder)
        Path(folder, "model.keras").write_text("half")
    Keras().save_model("a", "model.keras")
    assert Path(left[0]).exists(), "in the first attempt there is nothing of ours"
    monkeypatch.setattr(temporary, "_checked", set())
    monkeypatch.setenv("TFCLUSTER_ATTEMPT", "2")
    Keras().save_model("a", "model.keras")
    assert not Path(left[0]).exists()
    assert all(map(os.path.exists, left[1:]))


def test_an_export_prints_the_path_of_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed = list[str]()
    utils: Any = ModuleType("keras.src.utils")
    utils.io_utils = SimpleNamespace(print_msg=printed.append)
    monkeypatch.setitem(sys.modules, "keras.src.utils", utils)

    def export_onnx(model: str, filepath: str, verbose: bool | None = None, **kwargs: Any) -> None:
        Path(filepath).write_text(model)
        if verbose is None or verbose:
            printed.append(f"Saved artifact at '{filepath}'.")

    export: Any = ModuleType("keras.src.export")
    export.export_onnx = export_onnx
    whole_files.watch_exports(export)
    export.export_onnx("a", "model.onnx", None, opset_version=18)
    export.export_onnx("b", "model.onnx", verbose=False)
    assert printed == ["Saved artifact at 'model.onnx'."]
    assert (files(), Path("model.onnx").read_text()) == (["model.onnx"], "b")
