"""The patched callbacks write on one worker only, tested on stand-ins without TensorFlow."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tfcluster_workers import reporting
from tfcluster_workers.hooks import fit_position, keras2_callbacks, one_writer
from tfcluster_workers.keras3 import callbacks as keras3_callbacks


@dataclass
class Strategy:
    """The parts of MultiWorkerMirroredStrategy that the callbacks use."""

    index: int = 0
    workers: int = 2
    is_multi_worker: bool = True
    extended: Any = field(init=False)
    cluster_resolver: Any = field(init=False)

    def scope(self) -> AbstractContextManager[None]:
        return nullcontext()

    def __post_init__(self) -> None:
        hosts = {"worker": ["host:1"] * self.workers}
        spec = SimpleNamespace(as_dict=lambda: hosts)
        self.extended = SimpleNamespace(
            _in_multi_worker_mode=lambda: self.is_multi_worker, should_checkpoint=self.index == 0
        )
        self.cluster_resolver = SimpleNamespace(
            task_type="worker", task_id=self.index, cluster_spec=lambda: spec
        )


class Model:
    def __init__(self, strategy: Strategy) -> None:
        self.distribute_strategy = strategy
        self._initial_epoch: int | None = None
        self._tfcluster_obstacle = ""  # patched


def keras() -> Any:
    """Return a new `keras.src.callbacks` whose classes write as Keras 3's do."""

    class Callback:
        model: Any = None

        def set_model(self, model: Any) -> None:
            self.model = model

        def on_train_begin(self) -> None: ...

        def on_train_end(self) -> None: ...

    class ModelCheckpoint(Callback):
        def __init__(self, filepath: str) -> None:
            self.filepath = filepath
            self.fails = False
            self.meanwhile: Callable[[], None] = lambda: None  # what another process does

        def _get_file_path(self, epoch: int) -> str:
            return self.filepath.format(epoch=epoch)

        def _save_model(self, epoch: int) -> None:
            path = Path(self._get_file_path(epoch))
            if not path.parent.exists():  # like Keras: a race between check and mkdir
                self.meanwhile()
                path.parent.mkdir(parents=True)
            path.write_text("weights")
            if self.fails:
                raise OSError("disk full")

    class BackupAndRestore(Callback):
        def __init__(self, backup_dir: str) -> None:
            self.backup_dir = backup_dir
            self._weights_path = f"{backup_dir}/latest.weights.h5"
            self._training_metadata_path = f"{backup_dir}/training_metadata.json"
            self.delete_checkpoint = True
            self._current_epoch = 0
            self.dies_half_way = False

        def on_train_begin(self) -> None:
            if os.path.exists(self._training_metadata_path):
                metadata = json.loads(Path(self._training_metadata_path).read_text())
                self.model._initial_epoch = metadata["epoch"]

        def _save_model(self) -> None:
            Path(self.backup_dir).mkdir(parents=True, exist_ok=True)
            Path(self._weights_path).write_text(f"weights {self._current_epoch}")
            if self.dies_half_way:
                raise KeyboardInterrupt
            metadata = json.dumps({"epoch": self._current_epoch})
            Path(self._training_metadata_path).write_text(metadata)

        def on_train_end(self) -> None:
            for path in Path(self.backup_dir).iterdir():
                path.unlink()
            Path(self.backup_dir).rmdir()

    class TensorBoard(Callback):
        def __init__(self, log_dir: str) -> None:
            self.log_dir = log_dir

        def set_model(self, model: Any) -> None:
            self.model = model
            Path(self.log_dir).mkdir(exist_ok=True)
            self.file = Path(self.log_dir) / "events"
            self.file.write_text("events")

    class CSVLogger(Callback):
        def __init__(self, filename: str) -> None:
            self.filename = filename

        def on_train_begin(self) -> None:
            self.csv_file = open(self.filename, "w")  # noqa: SIM115 (as Keras does)

        def on_train_end(self) -> None:
            self.csv_file.close()

    module: Any = ModuleType("callbacks")
    for owner in (ModelCheckpoint, BackupAndRestore, TensorBoard, CSVLogger):
        setattr(module, owner.__name__, owner)
    keras3_callbacks.patch(module)
    return module


CHIEF, OTHER = Strategy(0), Strategy(1)
ALONE = [Strategy(is_multi_worker=False), Strategy(1, workers=1)]


@pytest.fixture(autouse=True)
def _own_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(keras3_callbacks, "_finished", set())
    monkeypatch.setattr(keras2_callbacks, "_finished", set())


def files() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))


@pytest.mark.parametrize("strategy", [CHIEF, *ALONE])
def test_the_chief_or_a_single_process_writes_to_the_path_of_the_script(strategy: Strategy) -> None:
    callbacks = keras()
    checkpoint = callbacks.ModelCheckpoint("out/{epoch}.keras")
    board = callbacks.TensorBoard("logs")
    table = callbacks.CSVLogger("log.csv")
    for callback in (checkpoint, board, table):
        callback.set_model(Model(strategy))
    table.on_train_begin()
    checkpoint._save_model(3)
    table.on_train_end()
    board.on_train_end()
    assert files() == ["log.csv", "logs", "logs/events", "out", "out/3.keras"]


def test_another_worker_leaves_nothing_at_the_path_of_the_script() -> None:
    callbacks = keras()
    checkpoint = callbacks.ModelCheckpoint("out/{epoch}.keras")
    board = callbacks.TensorBoard("logs")
    table = callbacks.CSVLogger("log.csv")
    for callback in (checkpoint, board, table):
        callback.set_model(Model(OTHER))
    table.on_train_begin()
    checkpoint._save_model(3)
    assert board.file.exists()
    table.on_train_end()
    board.on_train_end()
    assert not board.file.exists()
    assert files() == ["out"]
    assert (board.log_dir, table.filename) == ("logs", "log.csv"), "the script reads its own paths"


def test_a_callback_without_a_model_writes_as_usual() -> None:
    """A custom training loop calls `on_train_begin` and sets no model."""
    table = keras().CSVLogger("log.csv")
    table.on_train_begin()
    table.on_train_end()
    assert files() == ["log.csv"]


def test_a_model_may_be_a_keyword_argument() -> None:
    board = keras().TensorBoard("logs")
    board.set_model(model=Model(OTHER))
    assert board.file.exists()
    board.on_train_end()
    assert files() == []


def test_workers_may_make_the_folder_at_the_same_time() -> None:
    """One in twenty runs failed: `FileExistsError: 'shared'` in the chief's ModelCheckpoint."""
    checkpoint = keras().ModelCheckpoint("out/{epoch}.keras")
    checkpoint.set_model(Model(CHIEF))
    checkpoint.meanwhile = lambda: os.makedirs("out/workertemp_worker_1")
    checkpoint._save_model(3)
    assert files() == ["out", "out/3.keras"]


def test_a_save_that_fails_leaves_no_temporary_folder() -> None:
    checkpoint = keras().ModelCheckpoint("model.keras")
    checkpoint.fails = True
    checkpoint.set_model(Model(OTHER))
    with pytest.raises(OSError, match="disk full"):
        checkpoint._save_model(1)
    assert files() == []


def backup(callbacks: Any, strategy: Strategy) -> Any:
    made = callbacks.BackupAndRestore("backup")
    made.set_model(Model(strategy))
    return made


def test_all_workers_resume_from_the_chiefs_backup_and_the_chief_removes_it() -> None:
    callbacks = keras()
    chief, other = backup(callbacks, CHIEF), backup(callbacks, OTHER)
    for callback in (other, chief, other):
        callback._current_epoch = 2
        callback._save_model()
    assert files() == ["backup", "backup/latest.weights.h5", "backup/training_metadata.json"]

    resumed = backup(callbacks, OTHER)
    resumed.on_train_begin()
    assert resumed.model._initial_epoch == 2
    assert resumed._current_epoch == 2, "the epoch that the next backup records"

    other.on_train_end()
    assert "backup" in files()
    chief.on_train_end()
    assert files() == []


def test_the_next_fit_does_not_resume_from_the_backup_of_the_last_one() -> None:
    callbacks = keras()
    chief, other = backup(callbacks, CHIEF), backup(callbacks, OTHER)
    chief._current_epoch = 3
    chief._save_model()
    other.on_train_end()
    other.on_train_begin()
    assert other.model._initial_epoch is None


def test_a_later_fit_resumes_from_its_own_backup() -> None:
    callbacks = keras()
    chief, other = backup(callbacks, CHIEF), backup(callbacks, OTHER)
    other.on_train_end()
    for callback in (chief, other):  # the next fit
        callback._current_epoch = 3
        callback._save_model()
    other.on_train_begin()
    assert other.model._initial_epoch == 3


def test_with_keras_2_a_later_fit_resumes_from_its_own_backup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keras2_callbacks, "_position_class", lambda: lambda model: None)

    class WorkerTrainingState:
        read_checkpoint_manager = SimpleNamespace(
            directory="backup/chief", checkpoint=SimpleNamespace()
        )
        _model = Model(OTHER)

        def maybe_load_initial_counters_from_ckpt(self) -> None: ...

        def back_up(self, epoch: int) -> None: ...

        def delete_backup(self) -> None: ...

        def restore(self) -> str:
            return "restored"

    inside: Any = ModuleType("callbacks")
    inside.CSVLogger = type("CSVLogger", (), {})
    inside.worker_training_state = SimpleNamespace(WorkerTrainingState=WorkerTrainingState)
    keras2_callbacks.patch(inside)
    state: Any = WorkerTrainingState()
    assert state.restore() == "restored"
    state.delete_backup()
    assert state.restore() is None
    state.back_up(1)
    assert state.restore() == "restored"


@pytest.mark.parametrize(
    ("batches", "is_patched", "resumed"),
    [(0, True, 0), (2, True, 2), (4, True, 4), (2, False, 0)],
    ids=["none", "some", "all", "not patched"],
)
def test_a_backup_resumes_with_the_next_batch_of_its_epoch(
    batches: int, is_patched: bool, resumed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the position; the data begin later by the batches that are done."""
    notes = list[str]()
    monkeypatch.setattr(reporting, "note", notes.append)
    made = backup(keras(), CHIEF)
    made._current_epoch = 2
    made.model.metrics = []
    with fit_position.of_fit():
        position = fit_position.current()
        assert position is not None
        position.begin_epoch(made.model, 2)
        if batches:
            position.end_batch(batches - 1)
        made._save_model()
    if not is_patched:
        made.model._tfcluster_obstacle = "other Keras"
    with fit_position.of_fit():
        made.on_train_begin()
        assert made.model._initial_epoch == 2
        position = fit_position.current()
        assert position is not None
        position.begin_epoch(made.model, 2)
        assert (position.epoch, position.batches) == (2, resumed)
        data = iter("abcd")
        steps = ((first, first + 1, data) for first in (0, 2))  # two steps in a call
        iterator = SimpleNamespace(steps_per_execution=2)
        left = [entry[0] for entry in fit_position.enumerate_steps(lambda _: steps, iterator)]
        assert left == list(range(resumed, 4, 2))
        assert "".join(data) == "abcd"[resumed:]
    assert [note.split(",")[0] for note in notes] == ["epoch 3 begins again"] * (not is_patched)


def test_an_epoch_resumed_with_no_batch_left_has_logs_although_its_metrics_are_lost() -> None:
    """Keras 3.3 and 3.4 have no logs there, and would fail."""
    with fit_position.of_fit():
        position = fit_position.current()
        assert position is not None
        position.restored = {"epoch": 0, "batches": 2}
        position.begin_epoch(None, 0)
        assert fit_position.keras_3_logs(lambda _, logs: logs, None, None) == {}
        position.end_batch(2)
        assert fit_position.keras_3_logs(lambda _, logs: logs, None, None) is None


def test_a_chief_killed_during_a_backup_leaves_the_previous_backup() -> None:
    chief = backup(keras(), CHIEF)
    chief._current_epoch = 1
    chief._save_model()
    chief._current_epoch, chief.dies_half_way = 2, True
    with pytest.raises(KeyboardInterrupt):
        chief._save_model()
    assert Path("backup/latest.weights.h5").read_text() == "weights 1"
    assert json.loads(Path("backup/training_metadata.json").read_text()) == {"epoch": 1}
    assert chief.backup_dir == "backup"


def test_with_the_patch_switched_off_the_callbacks_are_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TFCLUSTER_KERAS3_SHIM", "off")
    checkpoint = keras().ModelCheckpoint("model.keras")
    checkpoint.set_model(Model(OTHER))
    checkpoint._save_model(1)
    assert files() == ["model.keras"]


def test_temporary_folders_have_a_name_that_is_never_gathered() -> None:
    assert (
        one_writer.temporary_path("deep/model.keras", OTHER)
        == "deep/workertemp_worker_1/model.keras"
    )
    assert one_writer.temporary_path("backup/", OTHER) == "workertemp_worker_1/backup"
    assert one_writer.temporary_path("gs://bucket/m.keras", OTHER).startswith(
        "gs://bucket/workertemp_"
    )
