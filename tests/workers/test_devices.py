"""A task that was given GPUs and has none fails with TensorFlow's reason; else it is a warning.

There is no GPU here. `no_gpu_logs.txt` holds what TensorFlow 2.12 to 2.21 wrote on a machine
without one, and with the stand-in for its driver (`tests/lab/stand_in_gpu.py`), each without lines
that are about something else, and without releases that wrote what an earlier one did.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.lab.stand_in_gpu import add_nvidia_smi

from tfcluster_workers import reporting
from tfcluster_workers.errors import NoGpuError
from tfcluster_workers.hooks import devices

from .conftest import PYTHONS, Boot

LOGS = (Path(__file__).parent / "no_gpu_logs.txt").read_text()
LOST_DRIVER = "cannot load libcuda.so.1"
LOOP = """
import tensorflow as tf
value = tf.Variable(2.0)

@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = value * value
    value.assign_sub(0.1 * tape.gradient(loss, value))

tf.constant(1.0) + 1.0
print("computes")
step()
print("trained")
"""


def recordings() -> Iterator[tuple[str, list[str]]]:
    for section in LOGS.split("== ")[1:]:
        name, *lines = section.splitlines()
        yield name, lines


RECORDINGS = dict(recordings())


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_reason_is_found_in_what_each_release_writes(name: str) -> None:
    release, _, what = name.partition(": ")
    can_use_gpus = not release.startswith("tensorflow-cpu")
    why, cause = devices.explain(RECORDINGS[name], can_use_gpus=can_use_gpus)
    if not can_use_gpus:
        assert (why, cause) == ("it was built without support for GPUs", "build")
    elif what == "no driver":
        assert (why, cause) == (LOST_DRIVER, "driver")
    elif what == "stand-in driver without NVML":
        assert (why, cause) == ("cannot load libnvidia-ml.so.1", "driver")
    elif what == "stand-in driver, no other library":
        assert cause == "libraries"
        assert why.startswith("cannot load ")
        assert all(f"lib{name}.so." in why for name in ("cudart", "cublas", "cufft", "cudnn"))
    else:
        error = what.rpartition(" ")[2]
        assert cause == ""
        assert why.startswith(f"cuInit: {error}: ")
        assert why.endswith("; kernel driver does not appear to be running")


SPELLINGS = {
    # https://github.com/tensorflow/tensorflow/issues/110956 and others, of machines with a GPU
    "E external/local_xla/xla/stream_executor/cuda/cuda_diagnostics.cc:262] kernel version"
    " 550.120.0 does not match DSO version 560.35.5 -- cannot find working devices in this"
    " configuration": ("kernel version 550.120.0 does not match DSO version 560.35.5", "version"),
    "W tensorflow/stream_executor/platform/default/dso_loader.cc:60] Could not load dynamic library"
    " 'libcusolver.so.11'; dlerror: libnvJitLink.so.12: cannot open shared object file: No such"
    " file or directory": (
        "cannot load libcusolver.so.11 (it needs libnvJitLink.so.12)",
        "libraries",
    ),
    "I0000 00:00:1 1 dso_loader.cc:144] Could not load dynamic library 'libcudnn.so.9'; dlerror:"
    " /lib/libm.so.6: version `GLIBC_2.38' not found; LD_LIBRARY_PATH: /opt": (
        "cannot load libcudnn.so.9 (/lib/libm.so.6: version `GLIBC_2.38' not found)",
        "libraries",
    ),
    "I gpu_device.cc:2211] Ignoring visible gpu device (device: 0, name: GT 710) with Cuda compute"
    " capability 3.5.": ("(device: 0, name: GT 710) with Cuda compute capability 3.5.", ""),
    "W gpu_device.cc:1956] Cannot dlopen some GPU libraries. Please make": (
        "Cannot dlopen some GPU libraries",
        "libraries",
    ),
    "nothing that is known": ("", ""),
}


@pytest.mark.parametrize(("line", "found"), SPELLINGS.items())
def test_other_spellings_of_the_reason_are_found(line: str, found: tuple[str, str]) -> None:
    assert devices.explain([line]) == found


@pytest.mark.parametrize(
    ("planned", "visible", "given"),
    [
        ("0,1", "0,1", "0,1"),
        ("0,1", "-1", ""),  # the script has decided otherwise
        ("0,1", "2", ""),
        ("", "0", ""),
        ("", None, ""),
        ("all", None, "all"),
        ("some", "3", "some"),  # as Slurm has chosen
        ("some", "", ""),
    ],
)
def test_gpus_count_as_given_while_the_plan_s_choice_is_in_force(
    planned: str, visible: str | None, given: str
) -> None:
    environ = {"TFCLUSTER_GPUS": planned}
    assert (
        devices.given(environ | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}))
        == given
    )


@pytest.fixture
def tensorflow(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replace TensorFlow by a stand-in that registers these devices."""

    def register(*types: str) -> None:
        listed = [SimpleNamespace(device_type=kind) for kind in types]

        def list_devices(kind: str | None = None) -> list[Any]:
            return [device for device in listed if kind in (None, device.device_type)]

        context = SimpleNamespace(
            list_physical_devices=list_devices,
            get_device_details=lambda device: {"device_name": "NVIDIA H200"},
        )
        eager = SimpleNamespace(context=SimpleNamespace(context=lambda: context))
        for name in ("tensorflow", "tensorflow.python", "tensorflow.python.eager"):
            monkeypatch.setitem(sys.modules, name, eager)

    monkeypatch.setattr(devices, "_has_gpus", False)
    monkeypatch.setattr(devices, "look", lambda: {"no_gpu": LOST_DRIVER})
    return register


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return what is reported, in the place of reporting it."""
    found: list[object] = []
    monkeypatch.setattr(reporting, "devices", found.append)
    monkeypatch.setattr(reporting, "unused_gpus", found.append)
    return found


def test_a_task_whose_tensorflow_has_the_given_gpus_trains(
    tensorflow: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensorflow("CPU", "GPU")
    monkeypatch.setenv("TFCLUSTER_GPUS", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    devices.require_gpus()


@pytest.mark.parametrize(
    ("planned", "visible", "says"),
    [("0,1", "0,1", "given GPU 0,1, but"), ("some", "3", "given GPUs, but")],
)
def test_a_task_whose_tensorflow_lacks_the_given_gpus_fails_with_the_reason(
    tensorflow: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    planned: str,
    visible: str,
    says: str,
) -> None:
    tensorflow("CPU")
    monkeypatch.setenv("TFCLUSTER_GPUS", planned)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for _ in range(2):  # also for a script that catches the first error
        with pytest.raises(NoGpuError, match=rf"{says} TensorFlow .*none: {LOST_DRIVER}$"):
            devices.require_gpus()


def test_all_gpus_of_a_machine_without_any_are_none(
    tensorflow: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tensorflow("CPU")
    monkeypatch.setenv("TFCLUSTER_GPUS", "all")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    devices.require_gpus()
    monkeypatch.setattr(devices, "_has_gpus", False)
    add_nvidia_smi(tmp_path)
    with pytest.raises(NoGpuError):
        devices.require_gpus()


def test_devices_are_reported_with_the_models_of_gpus(
    tensorflow: Callable[..., None], told: list[object]
) -> None:
    tensorflow("CPU", "GPU", "GPU")
    devices.report()
    assert told == [["CPU", "GPU NVIDIA H200", "GPU NVIDIA H200"]]


@pytest.mark.parametrize(
    ("visible", "has_smi", "reported"),
    [(None, True, [["CPU"], 3]), (None, False, [["CPU"]]), ("-1", True, [["CPU"]])],
)
def test_unused_gpus_of_the_machine_are_reported_unless_they_are_hidden_on_purpose(
    tensorflow: Callable[..., None],
    told: list[object],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    visible: str | None,
    has_smi: bool,
    reported: list[object],
) -> None:
    tensorflow("CPU")
    monkeypatch.delenv("TFCLUSTER_GPUS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if has_smi:
        add_nvidia_smi(tmp_path, gpus=3)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    devices.report()
    for thread in threading.enumerate():
        if thread.name == "nvidia-smi":
            thread.join()
    assert told == reported


@pytest.mark.parametrize("says", ["exit 9", "exec sleep 60"])
def test_a_driver_that_does_not_answer_has_no_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n{says}\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(devices, "_SMI_S", 0.2)
    assert devices.machine_gpus() == 0


@pytest.mark.tensorflow
@pytest.mark.slow
def test_a_custom_loop_without_a_strategy_fails_at_its_first_gradient(
    boot: Boot, tmp_path: Path
) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    given = {"CUDA_VISIBLE_DEVICES": "0", "TFCLUSTER_GPUS": "0"}
    ended = boot("script", str(tmp_path / "loop.py"), python=PYTHONS["tf215"], env=given)
    assert ended.code == 1
    assert ended.out.split() == ["computes"]
    assert [event["devices"] for event in ended.of("task_devices")] == [["CPU"]]
    (error,) = ended.of("task_error")
    assert (
        f"NoGpuError: this task was given GPU 0, but TensorFlow registers none: {LOST_DRIVER}"
        in error["message"]
    )
    assert (Path(error["file"]).name, error["line"]) == ("loop.py", 9)
