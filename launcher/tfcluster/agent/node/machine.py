"""Facts about this machine and Python: packages, GPUs, cores, disk, network settings.

The probe collects them with a task's own Python, `tfcluster doctor` with this one, using the
standard library and in milliseconds. Versions come from package metadata; only
`import_tensorflow` imports a package.
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
from collections.abc import Mapping, Sequence

from tfcluster.agent import Any
from tfcluster.agent.error_text import describe_error, reason_of
from tfcluster.agent.foreign_json import parse_json_object
from tfcluster.agent.node import limits

PACKAGES = (
    *("tensorflow", "jax", "torch", "keras", "tf-keras", "numpy", "protobuf"),
    *("mlflow", "wandb"),
)
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
    "keras": ("keras-nightly", "keras"),
    "mlflow": ("mlflow", "mlflow-skinny"),
}
"""Package → its distributions; the first one that is installed gives the version."""
PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "HTTPS_PROXY", "HTTP_PROXY")
_PROXY_EXCEPTIONS = ("no_grpc_proxy", "no_proxy", "NO_PROXY", "TF_GRPC_DEFAULT_OPTIONS")
SHARED_OUT = (
    "CUDA_VISIBLE_DEVICES",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)
"""The variables that are set for tasks that share a machine, unless its environment has them."""
TRACKERS = (
    "MLFLOW_RUN_CONTEXT",
    "WANDB_FORK_FROM",
    "WANDB_RESUME",
    "WANDB_RESUME_FROM",
    "WANDB_RUN_GROUP",
    "WANDB_RUN_ID",
)
"""The variables by which a user chooses the runs of experiment trackers."""
SMI_S = 5.0
"""The time for NVIDIA's driver to answer."""
IMPORT_S = 180.0
_SMALL_FILE = b"\0" * 65536


def facts(order: Mapping[str, Any]) -> dict[str, Any]:
    """Return all facts about this machine.

    `order` has ``folder``, whose disk is measured, ``folders`` that have to be writable,
    ``shared`` paths that have to be there, ``script``, which is hashed if it exists, and ``mine``,
    the tasks with their ``host``.
    """
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
        "visible_gpus": visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES", "")),
        "named": [name for name in (*SHARED_OUT, *TRACKERS) if name in os.environ],
        "free_bytes": free_bytes(order["folder"]),
        "interfaces": interfaces([mine["host"] for mine in order.get("mine", ())]),
        "shm_bytes": free_bytes("/dev/shm") if os.path.isdir("/dev/shm") else None,
        "port_range": port_range(),
        "proxies": proxies(os.environ),
        "unwritable": unwritable(order.get("folders", ())),
        "absent": [path for path in order.get("shared", ()) if not os.path.exists(path)],
        "script_sha256": sha256(order.get("script")),
    }


def versions() -> dict[str, str]:
    """Return package → version for those of `PACKAGES` that are installed."""
    import importlib.metadata

    releases = {}
    for package in PACKAGES:
        for name in _DISTRIBUTIONS.get(package, (package,)):
            try:
                releases[package] = str(importlib.metadata.version(name))  # None if it is damaged
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    return releases


def gpus() -> tuple[list[str], str]:
    """Return the names of the GPUs in order, and why they are unknown ("": they are known).

    A machine without nvidia-smi has no GPUs; one whose driver hangs may have some.
    """
    try:
        code, lines, errors = query_driver("name", os.environ.get("PATH"))
    except TimeoutError as error:
        return [], describe_error(error)
    except OSError as error:
        return [], f"nvidia-smi cannot be run: {reason_of(error)}"
    if code == 0:
        return [line for line in lines if not line.startswith("No devices")], ""
    output = " ".join([*lines, *errors.split()])
    if "No devices were found" in output:
        return [], ""
    return [], f"nvidia-smi failed: {output[:200] or f'exit code {code}'}"


def visible_gpus(text: str) -> list[int | str]:
    """Return the GPUs of a CUDA_VISIBLE_DEVICES: indexes, and names (``GPU-…``, ``MIG-…``).

    The first word that is neither ends the list, as in CUDA: ``-1``, Slurm's ``NoDevFiles``.
    """
    gpus: list[int | str] = []
    for word in map(str.strip, text.split(",")):
        if word.isascii() and word.isdecimal():
            gpus.append(int(word))
        elif word.startswith(("GPU-", "MIG-")):
            gpus.append(word)
        else:
            break
    return gpus


def query_driver(field: str, path: str | None) -> tuple[int, list[str], str]:
    """Query one field of each GPU; return nvidia-smi's (exit code, lines, errors).

    Return (0, [], "") without an nvidia-smi on `path`. Raises TimeoutError where it does not
    answer, and OSError. A process in a hanging driver cannot be killed, so it is not waited for.
    """
    smi = shutil.which("nvidia-smi", path=path)
    if smi is None:
        return 0, [], ""
    process = subprocess.Popen(
        [smi, f"--query-gpu={field}", "--format=csv,noheader"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        out, errors = process.communicate(timeout=SMI_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        raise TimeoutError(f"nvidia-smi did not answer within {SMI_S:.0f} s") from None
    return process.returncode, [line.strip() for line in out.splitlines() if line.strip()], errors


def free_bytes(folder: str) -> int:
    """Return the free bytes of the disk of `folder`, which need not exist yet."""
    return shutil.disk_usage(_existing(folder)).free


def port_range() -> list[int]:
    """Return the first and last port that the kernel chooses from, or [] where unknown."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            return [int(word) for word in file.read().split()]
    except (OSError, ValueError):
        return []


def proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the proxy variables that are set.

    The values of proxies, which may contain a password, are replaced; the values of the variables
    that list exceptions are kept.
    """
    hidden = {name: "set" for name in PROXIES if environ.get(name)}
    return {**hidden, **{name: environ[name] for name in _PROXY_EXCEPTIONS if environ.get(name)}}


def unwritable(folders: Sequence[str]) -> list[tuple[str, str]]:
    """Return (folder, why) for each folder in which no file can be created.

    A folder that does not exist yet is judged by its nearest existing parent.
    """
    failures = []
    for folder in folders:
        try:
            with tempfile.TemporaryFile(dir=_existing(folder)) as file:
                file.write(_SMALL_FILE)
        except OSError as error:
            failures.append((folder, reason_of(error)))
    return failures


def interfaces(hosts: Sequence[str]) -> list[tuple[str, str, bool]]:
    """Return (interface, address, whether one of `hosts` is that address); [] if not listed."""
    from tfcluster.agent.net.interfaces import find_interfaces

    used = set()
    for host in dict.fromkeys(hosts):
        with contextlib.suppress(OSError):
            used |= {str(info[4][0]) for info in socket.getaddrinfo(host.strip("[]"), 0)}
    try:
        return [(name, address, address in used) for name, address in find_interfaces()]
    except (OSError, AttributeError):  # a libc without getifaddrs
        return []


def sha256(path: str | None) -> str | None:
    """Return the SHA-256 of a file's content, or None if it cannot be read."""
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


def is_local(host: str) -> bool:
    """Return whether a name or address belongs to this machine: only those can be bound."""
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in addresses)


_LOOK = """
import json, sys
sys.path.insert(0, sys.argv[1])
from tfcluster_workers.hooks import devices
print(json.dumps(devices.look()))
"""


def import_tensorflow(
    python: str, workers: str, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Import TensorFlow in a new process; return ``version``, ``seconds`` and ``devices``.

    Without a GPU, ``no_gpu`` is TensorFlow's reason. Where the import fails, ``error`` is its last
    line. `workers`: the folder of tfcluster_workers; `env`: the environment, if not this one.
    """
    try:
        done = subprocess.run(
            [python, "-c", _LOOK, workers],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=IMPORT_S,
        )
        return parse_json_object(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": f"the import took more than {IMPORT_S:.0f} s"}
    except OSError as error:
        return {"error": describe_error(error)}
    except (ValueError, IndexError):
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        return {"error": lines[-1] if lines else f"no output (exit code {done.returncode})"}


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
