"""The devices that TensorFlow registers in a task, and why there is no GPU among them.

TensorFlow trains on the CPU without an error where a library or the driver is missing. Since 2.12
it names the missing library only in its verbose log (dso_loader.cc, tensorflow#66987), so the
question why is answered by an import of TensorFlow in a process of its own, with that log; also
for `tfcluster doctor --deep`, which calls `look` with the tasks' Python.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfcluster_workers import event_channel, reporting
from tfcluster_workers.errors import NoGpuError
from tfcluster_workers.hooks import jax_cluster

GIVEN = "TFCLUSTER_GPUS"
"""The GPUs that the plan gives to this task: the value of CUDA_VISIBLE_DEVICES, or one of these."""
ALL = "all"
"""All GPUs of the machine, if it has any."""
SOME = "some"
"""The scheduler chooses them."""
_HIDDEN = ("", "-1")
"""The values of CUDA_VISIBLE_DEVICES that hide all GPUs."""
_SMI_S = 5.0
_IMPORT_S = 120.0
_VERBOSE = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "dso_loader=1,cuda_diagnostics=1"}
_IMPORT = """
import json, time
began = time.monotonic()
import tensorflow as tf
seconds = round(time.monotonic() - began, 1)
devices = [device.device_type for device in tf.config.list_physical_devices()]
can_use_gpus = tf.test.is_built_with_gpu_support()
found = {"version": tf.__version__, "seconds": seconds, "devices": devices}
print(json.dumps({**found, "can_use_gpus": can_use_gpus}))
"""

_has_gpus = False
"""True once `require_gpus` has found what the plan gives to this task."""


def given(environ: Mapping[str, str] = os.environ) -> str:
    """Return the GPUs that the plan gives to this task; empty if none.

    A CUDA_VISIBLE_DEVICES that the script or the spec's `env` has set is somebody's own decision.
    """
    planned, visible = environ.get(GIVEN, ""), environ.get("CUDA_VISIBLE_DEVICES")
    if planned in (ALL, SOME):
        return "" if visible in _HIDDEN else planned
    return planned if planned == visible else ""


def report() -> None:
    """Report the devices, once; to be called when TensorFlow has initialised them itself."""
    if event_channel.is_pool_worker():  # there may be hundreds
        return
    try:
        reporting.devices([_describe(device) for device in _list_devices()])
        is_surprise = not (given() or os.environ.get("CUDA_VISIBLE_DEVICES") in _HIDDEN)
        if is_surprise and not _list_devices("GPU"):
            threading.Thread(target=_report_unused_gpus, daemon=True, name="nvidia-smi").start()
    except Exception as error:
        reporting.note(f"tfcluster cannot report the devices of TensorFlow: {error!r}")


def _list_devices(kind: str | None = None) -> Sequence[Any]:
    """Return TensorFlow's physical devices, of one `kind` or of all; this initialises none.

    That is `tf.config.list_physical_devices`, also while `tensorflow` is still being imported.
    """
    from tensorflow.python.eager import context

    found: Sequence[Any] = context.context().list_physical_devices(kind)
    return found


def _describe(device: Any) -> str:
    """Return the type of a device, of a GPU also its model: ``GPU NVIDIA H200``."""
    from tensorflow.python.eager import context

    if device.device_type != "GPU":
        return str(device.device_type)
    name = context.context().get_device_details(device).get("device_name", "")
    return f"GPU {name}".strip()


def _report_unused_gpus() -> None:
    if count := machine_gpus():
        reporting.unused_gpus(count)


def machine_gpus() -> int:
    """Return the number of GPUs that `nvidia-smi` lists; 0 if it is missing or does not answer."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return 0
    try:
        listed = subprocess.run(
            [smi, "--query-gpu=name", "--format=csv,noheader"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SMI_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    names = [line for line in listed.stdout.splitlines() if not line.startswith("No devices")]
    return 0 if listed.returncode else len(names)


def require_gpus() -> None:
    """Raise NoGpuError if the plan gives this task GPUs and TensorFlow registers none.

    Another backend of Keras has devices of its own. This initialises no device, so a
    MultiWorkerMirroredStrategy can still be made.
    """
    global _has_gpus
    if _has_gpus or jax_cluster.keras_backend() != "tensorflow":
        return
    planned = given()
    if planned and not _list_devices("GPU") and (planned != ALL or machine_gpus()):
        found = look()
        why = found.get("no_gpu") or "TensorFlow does not say why"
        raise NoGpuError(planned, why, found.get("no_gpu_cause", ""))
    _has_gpus = True


def look() -> dict[str, Any]:
    """Import TensorFlow in a new process; return ``version``, ``seconds`` and ``devices``.

    Without a GPU, ``no_gpu`` and ``no_gpu_cause`` are what `explain` returns. If the import fails,
    ``error`` is its last line.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT],
            env={**os.environ, **_VERBOSE},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_IMPORT_S,
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": f"the import took more than {_IMPORT_S:.0f} s"}
    except (ValueError, IndexError):
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        return {"error": lines[-1] if lines else f"no output (exit code {done.returncode})"}
    can_use_gpus = found.pop("can_use_gpus")
    if "GPU" not in found["devices"]:
        why, cause = explain(done.stderr.splitlines(), can_use_gpus=can_use_gpus)
        found |= {"no_gpu": why, "no_gpu_cause": cause}
    return found


_MISSING = re.compile(
    r"Could not load dynamic library '([^']+)'; dlerror: (.*?)(?:; LD_LIBRARY_PATH: .*)?$"
)
_NOT_NEEDED = re.compile(r"libnvinfer|libcupti|libnvshmem|libnccl")
"""Libraries without which TensorFlow registers GPUs all the same."""
_DRIVER = "libcuda.so.1"
_OF_DRIVER = ("libcuda.so", "libnvidia-ml.so")
_NEEDS = re.compile(r"(\S+): cannot open shared object file")
_NO_INIT = re.compile(r"failed call to cuInit: (?:INTERNAL: CUDA error: Failed call to cuInit: )?")
_OTHER_VERSION = re.compile(r"\] (kernel version \S+ does not match DSO version \S+)")
_CAUSES = (_OTHER_VERSION, re.compile(r"\] failed call to (cuInit: .*)"))
"""Messages that say more than a library that is missing, too."""
_DETAILS = (
    re.compile(r"\] (kernel driver does not appear to be running) on this host"),
    re.compile(r"\] no NVIDIA GPU device is present: (/dev/\S+ does not exist)"),
)
_NO_LIBRARIES = re.compile(r"\] (Cannot dlopen some GPU libraries)\.")
_LAST = (
    re.compile(r"\] Ignoring visible gpu device (\(.*)"),
    _NO_LIBRARIES,
    re.compile(r"\] (Could not find cuda drivers on your machine)"),
)


def explain(lines: Iterable[str], *, can_use_gpus: bool = True) -> tuple[str, str]:
    """Return why TensorFlow registers no GPU, from the lines of its verbose log, and the cause.

    The cause is ``driver``, ``build``, ``libraries``, ``version``, or "" for any other; both are
    "" if the log does not say why. `can_use_gpus`: its build can use GPUs at all. The messages are
    those of TensorFlow 2.12 to 2.21: dso_loader.cc, cuda_driver.cc, cuda_platform.cc,
    cuda_diagnostics.cc, gpu_device.cc.
    """
    if not can_use_gpus:
        return "it was built without support for GPUs", "build"
    text = [_NO_INIT.sub("failed call to cuInit: ", line.rstrip()) for line in lines]
    missing = {found[1]: found[2] for line in text if (found := _MISSING.search(line))}
    missing = {name: why for name, why in missing.items() if not _NOT_NEEDED.match(name)}
    if _DRIVER in missing:
        return _describe_missing({_DRIVER: missing[_DRIVER]}), "driver"
    if causes := _find(text, _CAUSES)[:1]:
        is_version = bool(_find(text, [_OTHER_VERSION]))
        return "; ".join(causes + _find(text, _DETAILS)), "version" if is_version else ""
    if missing:
        of_driver = any(name.startswith(_OF_DRIVER) for name in missing)
        return _describe_missing(missing), "driver" if of_driver else "libraries"
    last = "".join(_find(text, _LAST)[:1])
    return last, "libraries" if last in _find(text, [_NO_LIBRARIES]) else ""


def _find(lines: Iterable[str], patterns: Iterable[re.Pattern[str]]) -> list[str]:
    """Return what the patterns find, in their order, each text once."""
    matches = (pattern.search(line) for pattern in patterns for line in lines)
    return list(dict.fromkeys(match[1] for match in matches if match))


def _describe_missing(missing: Mapping[str, str]) -> str:
    """Return which libraries (name → dlerror) cannot be loaded, and what they need themselves."""
    named = []
    for name, why in missing.items():
        needed = _NEEDS.match(why)
        reason = f"it needs {needed[1]}" if needed else why
        named.append(name if needed and needed[1] == name else f"{name} ({reason})")
    return f"cannot load {', '.join(named)}"
