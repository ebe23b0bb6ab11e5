"""The choice of Keras by `keras.version`, the installed packages and the tested releases."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tfcluster_workers import keras_choice
from tfcluster_workers.hooks import fit_position
from tfcluster_workers.keras3 import patching, release
from tfcluster_workers.keras3.patches import (
    OtherKerasError,
    Patches,
    defining_class,
    find_function,
    require_function,
)

TWO = {"worker": ["a:1", "b:1"]}
SERVED = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TF_CONFIG", "TF_USE_LEGACY_KERAS", "TFCLUSTER_SETTINGS", release.SWITCH):
        monkeypatch.delenv(name, raising=False)


def install(monkeypatch: pytest.MonkeyPatch, obstacle: str = "", **versions: str) -> None:
    """Install stand-ins for packages; each module has its name in `name`.

    `obstacle` is why Keras 3 cannot be patched.
    """
    config = SimpleNamespace(backend=lambda: "tensorflow")
    model = type("Model", (), {fit_position.OBSTACLE: obstacle})
    keras_3 = SimpleNamespace(
        __version__=versions.get("keras", ""), config=config, Model=model, name="3"
    )
    installed = {name.replace("_", "-"): version for name, version in versions.items()}
    monkeypatch.setattr(
        keras_choice, "_version", lambda *names: next(filter(None, map(installed.get, names)), "")
    )
    monkeypatch.setattr(keras_choice, "_has_keras_2", lambda: "tf_keras" in versions)
    monkeypatch.setattr(
        keras_choice, "_keras_of_tensorflow", lambda version: SimpleNamespace(name="tf.keras")
    )
    monkeypatch.setattr("tfcluster_workers.callbacks.of", lambda keras: None)
    monkeypatch.setitem(sys.modules, "keras", keras_3)
    monkeypatch.setitem(sys.modules, "tf_keras", SimpleNamespace(name="tf_keras"))


@pytest.mark.parametrize(
    ("setting", "cluster", "keras", "tf_keras", "expected"),
    [
        ("auto", TWO, "3.15.1", True, "3"),
        ("auto", {}, "3.15.1", True, "3"),
        ("auto", TWO, "3.3.0", False, "3"),
        ("auto", TWO, "3.16.0", True, "3"),
        ("auto", TWO, "3.2.1", True, "tf_keras"),
        ("auto", {}, "3.2.1", True, "tf_keras"),
        ("auto", {}, "3.2.1", False, "3"),
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
    ("setting", "tf_keras", "expected"),
    [("auto", True, "tf_keras"), ("auto", False, ""), ("3", True, "")],
)
def test_a_keras_that_cannot_be_patched_is_replaced_by_keras_2_or_refused(
    monkeypatch: pytest.MonkeyPatch, setting: str, tf_keras: bool, expected: str
) -> None:
    packages = {"keras": "3.17.0", "tensorflow": "2.23.0"} | ({"tf_keras": "2"} if tf_keras else {})
    install(monkeypatch, "Trainer.fit is missing", **packages)
    monkeypatch.setenv("TFCLUSTER_SETTINGS", json.dumps({"keras_version": setting}))
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": TWO, "task": {"type": "worker"}}))
    if expected:
        assert keras_choice.load().name == expected
        return
    with pytest.raises(release.Keras3Error) as refused:
        keras_choice.load()
    for words in ("Trainer.fit is missing", "'keras==3.15.1'", "'tf-keras~=2.23.0'"):
        assert words in str(refused.value)


def test_a_missing_tf_keras_is_reported_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, tensorflow="2.21.0", keras="3.15.1")
    monkeypatch.setenv("TFCLUSTER_SETTINGS", json.dumps({"keras_version": "2"}))
    with pytest.raises(keras_choice.KerasChoiceError, match=r"pip install 'tf-keras~=2\.21\.0'"):
        keras_choice.load()


def test_the_nightly_counts_as_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate of TensorFlow installs keras-nightly and no keras."""
    install(monkeypatch, tensorflow="2.22.0rc0", keras_nightly="3.16.0.dev2026102704")
    assert keras_choice.load().name == "3"
    command = release.install_tested("3.16.0.dev2026102704")
    assert command.startswith("pip uninstall -y keras-nightly; pip install --force-reinstall ")


@pytest.mark.parametrize(
    ("name", "value"), [("TF_USE_LEGACY_KERAS", "1"), ("TFCLUSTER_KERAS3_SHIM", "off")]
)
def test_the_environment_may_select_keras_2(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    install(monkeypatch, tensorflow="2.21.0", keras="3.15.1", tf_keras="2")
    monkeypatch.setenv(name, value)
    assert keras_choice.load().name == "tf_keras"


class Base:
    """A stand-in for the class of Keras that trains, whatever its name is."""

    def make(self, force: bool = False) -> Any:
        def inner(value: Any) -> Any:
            return self.strategy.reduce("MEAN", value)  # type: ignore[attr-defined]

        return inner

    def build(self, iterator: Any = None, data_batch: Any = None) -> Any:
        return self.symbolic(data_batch)  # type: ignore[attr-defined]


class Model(Base):
    pass


def test_a_function_is_found_by_its_parameters_and_the_names_it_uses() -> None:
    assert defining_class(Model, "make") is Base
    assert find_function(Base, takes=["self", "iterator", "data_batch"]) == "build"
    assert find_function(Base, uses=["MEAN", "reduce"]) == "make", "names of inner functions count"
    assert find_function(Base, takes=["self", "iterator"], uses=["reduce"]) is None
    assert find_function(Model, uses=["reduce"]) is None, "only what the class itself defines"


@pytest.mark.parametrize(
    ("name", "takes", "uses", "difference"),
    [
        ("make", ["self"], ["MEAN"], ""),
        ("gone", [], [], "gone is missing"),
        ("make", ["self"], ["SUM"], "make does not use SUM"),
        ("build", ["self", "batch"], [], r"build takes \(self, .*\), not \(self, batch\)"),
        ("make", ["force"], [], r"make takes \(self, force\), not \(force\)"),
    ],
)
def test_what_differs_in_a_function_is_named(
    name: str, takes: list[str], uses: list[str], difference: str
) -> None:
    """One that Keras has fixed itself still takes the same and is replaced all the same."""
    if not difference:
        require_function(Base, name, takes=takes, uses=uses)
        return
    with pytest.raises(OtherKerasError, match=rf"test_keras_choice\.Base\.{difference}"):
        require_function(Base, name, takes=takes, uses=uses)


def test_nothing_is_replaced_before_everything_has_been_found() -> None:
    class Owner:
        def first(self) -> int:
            return 1

    patches = Patches()

    @patches.replaces(Owner, "first", takes=["self"])
    def first(original: Any, self: Any) -> int:
        return int(original(self)) + 1

    with pytest.raises(OtherKerasError):
        patches.replaces(Owner, "second")
    assert Owner().first() == 1
    patches.apply()
    assert Owner().first() == 2


@pytest.mark.parametrize("version", ["2.15.0", "3.15.1"])
def test_keras_2_and_other_backends_are_left_alone(version: str) -> None:
    model = type("Model", (), {"fit": lambda self: None})
    config = SimpleNamespace(backend=lambda: "jax")
    patching.attach(SimpleNamespace(__version__=version, Model=model, config=config))
    assert not hasattr(model, fit_position.OBSTACLE)


def test_an_error_while_patching_is_the_reason_of_the_refusal() -> None:
    """Whatever goes wrong, `fit` on several workers must say so instead of failing unpatched."""
    fit: Any = lambda self: None  # noqa: E731
    keras: Any = ModuleType("keras")
    keras.__version__, keras.Model = "3.16.0", type("Model", (), {"fit": fit})
    keras.config = SimpleNamespace(backend=lambda: "tensorflow")
    patching.attach(keras)
    assert patching.obstacle(keras) == "AttributeError: module 'keras' has no attribute 'random'"
    assert keras.Model.fit.__wrapped__ is fit


def test_a_release_older_than_the_tested_ones_is_not_patched() -> None:
    keras: Any = ModuleType("keras")
    keras.__version__, keras.Model = "3.2.1", type("Model", (), {})
    keras.config = SimpleNamespace(backend=lambda: "tensorflow")
    patching.attach(keras)
    refusal = release.refusal("3.2.1", patching.obstacle(keras))
    assert refusal.startswith("Keras 3.2.1 cannot be patched for several workers: only 3.3.0 and")
