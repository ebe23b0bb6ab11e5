"""The callbacks of `tfcluster_workers.callbacks`, made from a stand-in for Keras."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tfcluster_workers import callbacks


class Made:
    """A stand-in that remembers its arguments."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.args, self.options = args, options


@pytest.fixture
def keras(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("TFCLUSTER_CHECKPOINT_DIR", str(tmp_path))
    inside: Any = ModuleType("stand_in.src.callbacks")
    for name in ("ModelCheckpoint", "BackupAndRestore", "CSVLogger", "LearningRateScheduler"):
        setattr(inside, name, type(name, (Made,), {}))
    inside.LambdaCallback = Made
    inside.Callback = type("Callback", (), {"__module__": "stand_in.src.callbacks.callback"})
    monkeypatch.setitem(sys.modules, inside.__name__, inside)
    return SimpleNamespace(callbacks=inside)


def test_checkpoints_and_backups_are_in_the_gathered_folder(keras: Any, tmp_path: Path) -> None:
    assert callbacks.checkpoint(keras, "model.keras").args == (str(tmp_path / "model.keras"),)
    assert callbacks.backup_and_restore(keras).args == (str(tmp_path / "backup"),)


@pytest.mark.parametrize(
    ("name", "monitor", "options"),
    [
        (
            "{epoch:02d}.weights.h5",
            None,
            {"monitor": "val_loss", "save_best_only": False, "save_weights_only": True},
        ),
        (
            "best.keras",
            "val_accuracy",
            {"monitor": "val_accuracy", "save_best_only": True, "save_weights_only": False},
        ),
    ],
)
def test_the_file_name_selects_what_is_saved(
    keras: Any, name: str, monitor: str | None, options: dict[str, Any]
) -> None:
    assert callbacks.checkpoint(keras, name, monitor=monitor).options == options


def test_a_backup_is_made_each_epoch_or_every_n_steps(keras: Any) -> None:
    assert callbacks.backup_and_restore(keras).options == {"save_freq": "epoch"}
    assert callbacks.backup_and_restore(keras, every=500).options == {"save_freq": 500}


@pytest.mark.parametrize(("attempt", "append"), [("1", False), ("2", True)])
def test_a_restart_appends_to_the_csv_file(
    keras: Any, monkeypatch: pytest.MonkeyPatch, attempt: str, append: bool
) -> None:
    monkeypatch.setenv("TFCLUSTER_ATTEMPT", attempt)
    assert callbacks.csv_log(keras, "epochs.csv").options == {"append": append}


def test_the_learning_rate_falls_after_epochs_3_and_7(keras: Any) -> None:
    (rate,) = callbacks.learning_rate_schedule(keras, scale=2.0).args
    assert [rate(epoch) for epoch in range(8)] == [2e-3] * 3 + [2e-4] * 4 + [2e-5]


def test_the_epoch_line_starts_with_the_loss_and_ends_with_the_rate(keras: Any) -> None:
    lines: list[str] = []
    rate = SimpleNamespace(numpy=lambda: 0.001)
    model = SimpleNamespace(optimizer=SimpleNamespace(learning_rate=rate))
    made = callbacks.epoch_line(keras, model, write=lines.append)
    made.options["on_epoch_end"](0, {"accuracy": 0.5, "loss": 1.25, "lr": 0.001})
    assert lines == ["epoch 1 loss 1.250000 accuracy 0.500000 learning rate 0.001"]
