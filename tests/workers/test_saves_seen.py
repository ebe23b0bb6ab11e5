"""The hooks report each save once with its step, on stand-ins for TensorFlow's classes."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tfcluster_workers import event_channel, reporting
from tfcluster_workers.hooks import save_hooks, tensorflow_hooks


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Mapping[str, Any]]:
    """Return the events of a chief that saves below `tmp_path` and has reported no step."""
    events = list[Mapping[str, Any]]()
    channel = types.SimpleNamespace(send=events.append, is_open=True)
    monkeypatch.setattr(event_channel, "channel", channel)
    monkeypatch.setattr(reporting, "meter", reporting.ProgressMeter(lambda event: True))
    monkeypatch.setattr(reporting, "_last_seen", None)
    monkeypatch.setenv("TFCLUSTER_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("TF_CONFIG", json.dumps({"task": {"type": "worker", "index": 0}}))
    return events


def module(**classes: type) -> types.ModuleType:
    made = types.ModuleType("stand_in")
    vars(made).update(classes)
    return made


class BrokenModel:
    """A script's model whose `optimizer` raises before it is compiled."""

    @property
    def optimizer(self) -> Any:
        raise RuntimeError("not compiled yet")


def saver_class() -> type:
    class TrackableSaver:
        def __init__(self, **parts: Any) -> None:
            self._graph_view = types.SimpleNamespace(root=None, children=lambda root: parts)

        def save(self, file_prefix: str) -> str:
            return file_prefix

    save_hooks.watch_checkpoints(module(TrackableSaver=TrackableSaver))
    return TrackableSaver


def counter(number: int) -> Any:
    return types.SimpleNamespace(numpy=lambda: number)


def test_a_save_of_a_model_whose_optimizer_property_fails_is_reported(
    sent: list[Mapping[str, Any]], tmp_path: Path
) -> None:
    class Model(BrokenModel):
        def save(self, filepath: str) -> None:
            """Stand for Keras's `save`."""

        save_weights = save

    save_hooks.watch_models(module(Model=Model))
    reporting.meter.offer(reporting.Reading(30))
    Model().save(str(tmp_path / "model.keras"))
    optimizer = types.SimpleNamespace(_iterations=counter(31))
    saver_class()(model=BrokenModel(), optimizer=optimizer).save(str(tmp_path / "ckpt-1"))
    assert [(Path(event["path"]).name, event["step"]) for event in sent] == [
        ("model.keras", 30),
        ("ckpt-1", 31),
    ]


def test_a_save_with_an_unknown_step_is_reported_without_it(
    sent: list[Mapping[str, Any]], tmp_path: Path
) -> None:
    saver = saver_class()()
    saver._graph_view.children = None
    saver.save(str(tmp_path / "ckpt-1"))
    assert [(event["type"], event["step"]) for event in sent] == [("saved", None)]


def test_a_backup_is_reported_below_the_checkpoint_directory_and_in_it(
    sent: list[Mapping[str, Any]], tmp_path: Path
) -> None:
    for folder in (tmp_path, tmp_path / "backup", tmp_path.parent):
        save_hooks.report_backup(str(folder), 3)
    assert [Path(event["path"]) for event in sent] == [tmp_path, tmp_path / "backup"]


@pytest.mark.parametrize(
    ("parts", "reported", "steps"),
    [
        ({"step": counter(20)}, 25, [20]),
        ({}, 25, [25]),
        ({}, None, [None, 7]),
        (None, 25, [25]),
        (None, None, [7]),
    ],
    ids=["of the checkpoint", "reported", "unknown", "unseen", "unseen and unknown"],
)
def test_a_preemption_save_is_reported_once_with_the_best_step(
    sent: list[Mapping[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parts: dict[str, Any] | None,
    reported: int | None,
    steps: list[int | None],
) -> None:
    """The number of `run` calls (7) is the step only if no better one is known."""
    monkeypatch.chdir(tmp_path)

    class PreemptionCheckpointHandler:
        _is_chief, total_run_calls = True, 7
        _write_checkpoint_manager = types.SimpleNamespace(latest_checkpoint="ckpt-1")

        def _save_checkpoint(self) -> None:
            if parts is not None:  # otherwise the hooks do not see the save
                saver_class()(**parts).save("ckpt-1")

    tensorflow_hooks.watch_preemption(
        module(PreemptionCheckpointHandler=PreemptionCheckpointHandler)
    )
    if reported is not None:
        reporting.meter.offer(reporting.Reading(reported))
    PreemptionCheckpointHandler()._save_checkpoint()
    saves = [event for event in sent if event["type"] == "saved"]
    assert [event["step"] for event in saves] == steps
    assert {event["path"] for event in saves} == {str(tmp_path / "ckpt-1")}
