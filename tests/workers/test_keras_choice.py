"""The choice of Keras by `keras.version`, the installed packages and the tested releases."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tfcluster_workers import keras_choice
from tfcluster_workers.keras3 import patching, release
from tfcluster_workers.keras3 import trainer as keras3_trainer

TWO = {"worker": ["a:1", "b:1"]}
SERVED = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TF_CONFIG", "TF_USE_LEGACY_KERAS", "TFCLUSTER_SETTINGS", release.SWITCH):
        monkeypatch.delenv(name, raising=False)


def install(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Install stand-ins for packages; each module has its name in `name`."""
    config = SimpleNamespace(backend=lambda: "tensorflow")
    monkeypatch.setattr(keras_choice, "_version", lambda package: versions.get(package, ""))
    monkeypatch.setattr(keras_choice, "_has_keras_2", lambda: "tf_keras" in versions)
    monkeypatch.setattr(
        keras_choice, "_keras_of_tensorflow", lambda version: SimpleNamespace(name="tf.keras")
    )
    monkeypatch.setattr("tfcluster_workers.callbacks.of", lambda keras: None)
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(config=config, name="3"))
    monkeypatch.setitem(sys.modules, "tf_keras", SimpleNamespace(name="tf_keras"))


@pytest.mark.parametrize(
    ("setting", "cluster", "keras", "tf_keras", "expected"),
    [
        ("auto", TWO, "3.15.1", True, "3"),
        ("auto", {}, "3.15.1", True, "3"),
        ("auto", TWO, "3.3.0", False, "3"),
        ("auto", TWO, "3.16.0", True, "tf_keras"),
        ("auto", {}, "3.16.0", True, "tf_keras"),
        ("auto", {}, "3.16.0", False, "3"),
        ("auto", SERVED, "3.15.1", True, "tf_keras"),
        ("auto", SERVED, "3.15.1", False, "3"),
        ("2", TWO, "3.15.1", True, "tf_keras"),
        ("3", TWO, "3.15.1", True, "3"),
        ("3", SERVED, "3.15.1", True, "3"),
        ("auto", TWO, "2.15.0", True, "tf.keras"),
        ("2", TWO, "2.15.0", False, "tf.keras"),
    ],
)
def test_the_chosen_keras(
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    cluster: dict[str, list[str]],
    keras: str,
    tf_keras: bool,
    expected: str,
) -> None:
    packages = {"keras": keras} | ({"tf_keras": "2"} if tf_keras else {})
    install(monkeypatch, tensorflow="2.21.0", **packages)
    monkeypatch.setenv("TFCLUSTER_SETTINGS", json.dumps({"keras_version": setting}))
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    assert keras_choice.load().name == expected


@pytest.mark.parametrize(
    ("setting", "keras", "fix"),
    [
        ("auto", "3.16.0", "pip install 'keras==3.15.1'; or pip install 'tf-keras~=2.21.0'"),
        ("3", "3.16.0", "pip install 'keras==3.15.1'"),
        ("2", "3.15.1", "tf_keras is not installed: pip install 'tf-keras~=2.21.0'"),
    ],
)
def test_a_missing_package_is_reported_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch, setting: str, keras: str, fix: str
) -> None:
    install(monkeypatch, tensorflow="2.21.0", keras=keras)
    monkeypatch.setenv("TFCLUSTER_SETTINGS", json.dumps({"keras_version": setting}))
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": TWO, "task": {"type": "worker"}}))
    with pytest.raises(keras_choice.KerasChoiceError) as refused:
        keras_choice.load()
    assert fix in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"), [("TF_USE_LEGACY_KERAS", "1"), ("TFCLUSTER_KERAS3_SHIM", "off")]
)
def test_the_environment_may_select_keras_2(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    install(monkeypatch, tensorflow="2.21.0", keras="3.15.1", tf_keras="2")
    monkeypatch.setenv(name, value)
    assert keras_choice.load().name == "tf_keras"


def trainer(reduce: Any, build: Any) -> Any:
    """Return a stand-in for Keras's trainer module with these two functions."""
    owner = type("TensorFlowTrainer", (), {"_maybe_symbolic_build": build})
    return SimpleNamespace(reduce_per_replica=reduce, TensorFlowTrainer=owner)


def known_reduce(values: Any, strategy: Any, reduction: Any) -> Any:
    def inner(value: Any) -> Any:
        if _collective_all_reduce_multi_worker(strategy):  # type: ignore[name-defined] # noqa: F821
            return strategy.reduce("MEAN", value, axis=0)

    return inner(values)


def known_build(self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
    isinstance(iterator, self.DistributedValues)
    self._symbolic_build(self.reduce("MEAN", data_batch))


def patched_reduce(values: Any, strategy: Any, reduction: Any) -> Any:
    return strategy.mean_of_scalars(values)


def other_build(self: Any, data_batch: Any) -> Any:
    self._symbolic_build(self.DistributedValues, self.reduce("MEAN", data_batch))


def test_a_half_patched_keras_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release may lack a function that a later patch replaces, when others are applied."""

    def fail(trainer: Any) -> None:
        raise AttributeError("_moments")

    half: Any = ModuleType("trainer")
    vars(half).update(vars(trainer(known_reduce, known_build)))
    monkeypatch.setitem(sys.modules, patching.TRAINER, half)
    monkeypatch.setattr(release, "version", lambda: "3.15.1")
    monkeypatch.setattr(patching, "_patch", fail)
    with pytest.raises(AttributeError):
        patching.attach()
    assert hasattr(half.TensorFlowTrainer._maybe_symbolic_build, "__wrapped__"), (
        "the build was patched"
    )
    with pytest.raises(release.Keras3Error, match="could not patch all of Keras 3"):
        patching.require_patched(half)


@pytest.mark.parametrize(
    ("reduce", "build", "unknown"),
    [
        (known_reduce, known_build, ""),
        (patched_reduce, known_build, "reduce_per_replica"),
        (None, known_build, "reduce_per_replica"),
        (known_reduce, other_build, "TensorFlowTrainer._maybe_symbolic_build"),
    ],
)
def test_only_known_functions_are_replaced(reduce: Any, build: Any, unknown: str) -> None:
    """A function that a Keras release changed, for example fixed, is reported as unknown."""
    assert keras3_trainer.find_unknown_function(trainer(reduce, build)) == unknown
