"""What can be seen of the machine this runs on, with the standard library and in milliseconds.

Used by the probe with a task's own Python, and here by `tfcluster doctor`. Versions come from
package metadata, nothing of a package is imported, save in `tensorflow_imported`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile

from tfcluster.agent.error_text import describe_error, reason_of
from tfcluster.agent.foreign_json import parse_json_object
from tfcluster.agent.node import limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

PACKAGES = ("tensorflow", "keras", "tf-keras", "numpy", "protobuf")
_DISTRIBUTIONS = {
    "tensorflow": (
        "tensorflow",
        "tensorflow-cpu",
        "tensorflow-gpu",
        "tensorflow-rocm",
        "tensorflow-macos",
        "tensorflow-intel",
        "tf-nightly",
        "tf-nightly-cpu",
    ),
}
PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "HTTPS_PROXY", "HTTP_PROXY")
_OF_PROXIES = ("no_grpc_proxy", "no_proxy", "NO_PROXY", "TF_GRPC_DEFAULT_OPTIONS")
SHARED_OUT = (
    "CUDA_VISIBLE_DEVICES",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)
"""What tasks that share a machine are given, save where its own environment says it already."""
SMI_S = 5.0
"""How long NVIDIA's driver may take to answer."""
IMPORT_S = 180.0
_SMALL_FILE = b"\0" * 65536


def facts(order: Mapping[str, Any]) -> dict[str, Any]:
    """All but who can reach whom. `order`: ``folder`` whose disk counts; ``folders`` that have to
    be writable; ``script``, to be hashed where it is there."""
    names, trouble = gpus()
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "packages": versions(),
        "gpus": names,
        "gpu_trouble": trouble,
        "cores": limits.usable(),
        "core_nodes": limits.by_node(),
        "core_limit": limits.limit(),
        "named": [name for name in SHARED_OUT if name in os.environ],
        "free_bytes": free_bytes(order["folder"]),
        "shm_bytes": free_bytes("/dev/shm") if os.path.isdir("/dev/shm") else None,
        "port_range": port_range(),
        "proxies": proxies(os.environ),
        "unwritable": unwritable(order.get("folders", ())),
        "script_sha256": sha256(order.get("script")),
    }


def versions() -> dict[str, str]:
    import importlib.metadata

    found = {}
    for package in PACKAGES:
        for name in _DISTRIBUTIONS.get(package, (package,)):
            try:
                found[package] = importlib.metadata.version(name)
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def gpus() -> tuple[list[str], str]:
    """(names of the GPUs in order, why they are not known). A driver that hangs is not a machine
    without GPUs; one without nvidia-smi is."""
    try:
        code, lines, errors = query_driver("name", os.environ.get("PATH"))
    except TimeoutError as error:
        return [], describe_error(error)
    except OSError as error:
        return [], f"nvidia-smi cannot be run: {reason_of(error)}"
    if code == 0:
        return [line for line in lines if not line.startswith("No devices")], ""
    said = " ".join([*lines, *errors.split()])
    if "No devices were found" in said:
        return [], ""
    return [], f"nvidia-smi failed: {said[:200] or f'exit code {code}'}"


def query_driver(what: str, path: str | None) -> tuple[int, list[str], str]:
    """(exit code, lines, errors) of nvidia-smi for one field of each GPU; (0, [], "") where there
    is none on `path`. Raises TimeoutError where it does not answer, OSError.

    In a driver that hangs nothing can be killed, so nobody waits for it.
    """
    smi = shutil.which("nvidia-smi", path=path)
    if smi is None:
        return 0, [], ""
    asked = subprocess.Popen(
        [smi, f"--query-gpu={what}", "--format=csv,noheader"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        out, errors = asked.communicate(timeout=SMI_S)
    except subprocess.TimeoutExpired:
        asked.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            asked.wait(1.0)
        for pipe in (asked.stdout, asked.stderr):
            if pipe is not None:
                pipe.close()
        raise TimeoutError(f"nvidia-smi did not answer within {SMI_S:.0f} s") from None
    return asked.returncode, [line.strip() for line in out.splitlines() if line.strip()], errors


def free_bytes(folder: str) -> int:
    """Of the disk on which `folder` lies, or will."""
    return shutil.disk_usage(_existing(folder)).free


def port_range() -> list[int]:
    """From which the kernel chooses ports; empty where it does not say."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            return [int(word) for word in file.read().split()]
    except (OSError, ValueError):
        return []


def proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """The proxy variables that are set, without their values, which may hold a password; and
    whole the ones that say what no proxy is for."""
    found = {name: "set" for name in PROXIES if environ.get(name)}
    return {**found, **{name: environ[name] for name in _OF_PROXIES if environ.get(name)}}


def unwritable(folders: Sequence[str]) -> list[tuple[str, str]]:
    """(folder, why) of each in which nothing can be written; one that is not there yet is judged
    by where it will be made."""
    found = []
    for folder in folders:
        try:
            with tempfile.TemporaryFile(dir=_existing(folder)) as file:
                file.write(_SMALL_FILE)
        except OSError as error:
            found.append((folder, reason_of(error)))
    return found


def sha256(path: str | None) -> str | None:
    """Of a file's content; None where there is none."""
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


def is_own(host: str) -> bool:
    """Whether a name or address is one of this machine's: only those can be bound."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


_IMPORT = """
import json, sys, time
began = time.monotonic()
import tensorflow as tf
seconds = round(time.monotonic() - began, 1)
devices = [d.device_type for d in tf.config.list_physical_devices()]
print(json.dumps({"version": tf.__version__, "seconds": seconds, "devices": devices}))
"""


def tensorflow_imported(python: str = sys.executable) -> dict[str, Any]:
    """What `import tensorflow` gives in a process of its own: ``version``, ``seconds``, and
    ``devices``; or ``error``, its last line."""
    try:
        done = subprocess.run(
            [python, "-c", _IMPORT],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=IMPORT_S,
        )
        return parse_json_object(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": f"it took more than {IMPORT_S:.0f} s"}
    except OSError as error:
        return {"error": describe_error(error)}
    except (ValueError, IndexError):
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        end = f"exit code {done.returncode}"
        return {"error": lines[-1] if lines else f"it said nothing ({end})"}


def _existing(folder: str) -> str:
    while not os.path.isdir(folder):
        above = os.path.dirname(folder)
        if above == folder or not above:
            return "/"
        folder = above
    return folder


def _can_bind(family: int, address: Any) -> bool:
    try:
        with socket.socket(family) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True
