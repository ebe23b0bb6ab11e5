"""The spec's smaller sections: strategy, keras, runtime, resources, supervision, checkpoints."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from tfcluster.spec.cluster import Gpus
from tfcluster.spec.fields import (
    Deadline,
    Env,
    Keyed,
    Listed,
    Seconds,
    Section,
    documented,
    shorten,
    wrong,
)
from tfcluster.spec.job import Text

DEFAULT_IMAGE: Final = "tfcluster-worker:latest"
"""What `tfcluster build` makes, and containers are started from where a spec names no image."""


Count = Annotated[int, Field(ge=1, le=1_000_000)]
_USER = re.compile(r"[A-Za-z0-9_][\w.-]*(:[A-Za-z0-9_][\w.-]*)?", re.ASCII)
_MEMORY = re.compile(r"[1-9]\d{0,15}[bkmg]?", re.ASCII | re.IGNORECASE)
"""As docker reads it (docs.docker.com, resource constraints)."""


class Strategy(Section):
    """How replicas are kept equal; read by tasks that ask `tfcluster_workers.strategy` for it."""

    name: (
        Literal["multi_worker_mirrored", "parameter_server", "mirrored", "tpu", "default"] | None
    ) = documented(
        None,
        "Distribution strategy; null: `parameter_server` if the cluster has ps, "
        "else `multi_worker_mirrored`.",
        "multi_worker_mirrored",
    )
    communication: Literal["AUTO", "RING", "NCCL"] = documented(
        "AUTO", "How gradients are summed. NCCL needs GPUs; AUTO runs RING.", "NCCL"
    )
    bytes_per_pack: Annotated[int, Field(ge=0, le=2**40)] = documented(
        0, "Gradients are packed up to so many bytes; 0 = TensorFlow decides.", 33554432
    )
    collective_timeout_s: Deadline | None = documented(
        None, "A collective that takes longer fails; null: it waits for ever.", "10m"
    )


class Keras(Section):
    """Keras settings; read by tasks that ask `tfcluster_workers` for them."""

    version: Literal["auto", "2", "3"] = documented(
        "auto",
        "Keras generation; `auto`: Keras 3 where it is patched for several workers, else Keras 2.",
        "2",
    )
    precision: Literal["float32", "float64", "mixed_float16", "mixed_bfloat16"] | None = documented(
        None, "Global dtype policy; null leaves it to the job.", "mixed_bfloat16"
    )
    steps_per_execution: Count | None = documented(
        None, "Batches per compiled call of `fit`; null leaves it to the job.", 16
    )


def _is_ssh_destination(value: str) -> str:
    # ssh would take it as an option, -oProxyCommand=… among them.
    if value.startswith("-"):
        raise wrong(f"{shorten(value)} is not a host", 'write "host" or "user@host"')
    return value


class Host(Section):
    """Settings of one host."""

    python: Text | None = documented(None, "Python of this host's tasks.", "/opt/tf/bin/python")
    data_dir: Text | None = documented(
        None, "Where data sets lie (TFDS_DATA_DIR).", "/mnt/nfs/tfds"
    )
    ssh: Annotated[Text, AfterValidator(_is_ssh_destination)] | None = documented(
        None, "What ssh is given to reach it; null: the host part of the address.", "anna@gpu1"
    )
    env: Env = documented(
        {}, "Environment variables of this host's tasks.", {"NCCL_SOCKET_IFNAME": "eth0"}
    )
    workdir: Text | None = documented(
        None, "Folder in which each run gets a copy of the code; null: the cache.", "/scratch/anna"
    )


def _is_user(value: str) -> str:
    if not _USER.fullmatch(value):
        raise wrong(f"{shorten(value)} is no user", 'write for example "root" or "1000:1000"')
    return value


class Runtime(Section):
    """Backend, Python, network, and settings by host."""

    backend: Literal["auto", "local", "ssh", "docker"] = documented(
        "auto",
        "`auto`: this machine's addresses run locally, others through ssh; `docker`: each task in "
        "a container of its own.",
        "local",
    )
    image: Text | None = documented(
        None,
        f"Image of the containers; null: {DEFAULT_IMAGE}, as `tfcluster build` makes it.",
        "tensorflow/tensorflow:2.15.0",
    )
    python: Text | None = documented(
        None,
        "Python of the tasks; null: the active environment, `.venv` at the workdir, python3.",
        "/opt/tf/bin/python",
    )
    user: Annotated[Text, AfterValidator(_is_user)] | None = documented(
        None,
        "User of the containers, a name or UID[:GID]; null: the image's, else `nobody`. With docker"
        " only.",
        "root",
    )
    network: Literal["host", "private"] = documented(
        "host",
        "`private` closes TensorFlow's ports, which ask for no password, to other users.",
        "private",
    )
    preload: Literal["auto", "on", "off"] = documented(
        "auto",
        "Import TensorFlow once for all tasks of a node, and for their restarts (Linux, not in "
        "containers). `auto`: where the job imports TensorFlow; `on`: what else it imports, too.",
        "off",
    )
    warm_s: Deadline = documented(
        600.0, "How long what is imported waits for the next run after `up --warm`.", "30m"
    )
    hosts: Keyed[Text, Host] = documented(
        {},
        'Settings by host part of an address, or "*" for all.',
        {"*": {"python": "/opt/tf/bin/python"}, "10.0.0.1": {"ssh": "anna@gpu1"}},
    )


def _is_memory(value: str) -> str:
    if not _MEMORY.fullmatch(value):
        raise wrong(f"{shorten(value)} is no amount of memory", 'write for example "512m" or "8g"')
    return value.lower()


class Resources(Section):
    """GPUs, cores and threads, per task."""

    gpus: Gpus | None = documented(
        None,
        'GPUs per task: a number, indexes, "all", 0 for none; null: divided evenly.',
        "all",
    )
    cpus: Count | None = documented(
        None, "Cores each task may count on; null: the node's, divided evenly.", 4
    )
    pin: bool | None = documented(
        None, "Keep each task on its own cores (Linux); null: on its NUMA node's, if several.", True
    )
    memory: Annotated[Text, AfterValidator(_is_memory)] | None = documented(
        None, "Memory each container may take; more ends a task. With docker only.", "8g"
    )
    threads: Count | None = documented(
        None, "Threads of each pool of TensorFlow and NumPy; null: one per core of its share.", 2
    )


class Supervision(Section):
    """Deadlines and restarts. Durations are seconds, or texts such as 90s, 5m, 12h."""

    max_restarts: Annotated[int, Field(ge=0, le=1_000_000)] = documented(
        3, "Restarts of the gang before the run has failed.", 10
    )
    restart_on_error: bool = documented(
        False, "Also restart after a Python exception or a bad exit code.", True
    )
    backoff_s: Seconds = documented(1.0, "Wait before a restart; doubles up to 60 s.", "5s")
    start_deadline_s: Deadline = documented(
        300.0, "Longest wait for all tasks, from the first that waits for its peers.", "10m"
    )
    stall_deadline_s: Deadline | None = documented(
        None, "Silence after the first progress that leads to a restart; null: never.", "15m"
    )
    run_deadline_s: Deadline | None = documented(
        None, "Longest run; null: no limit. Ends it with exit code 4.", "12h"
    )
    grace_s: Seconds = documented(30.0, "From SIGTERM to SIGKILL for tasks that can save.", "2m")
    finish_grace_s: Seconds = documented(
        60.0, "How long workers may go on after the chief has ended.", "5m"
    )
    lease_s: Deadline = documented(
        60.0,
        "A node without a sign of life for so long is lost; with -d on other hosts 1h, unless set.",
        "5m",
    )
    min_workers: Count | None = documented(
        None, "Go on with so many workers when nodes are lost; null: all are needed.", 2
    )


class Checkpoints(Section):
    """What is gathered from the chief, and where it goes."""

    gather: bool = documented(
        True, "Copy complete checkpoints of the chief into the run folder.", False
    )
    keep: Count = documented(3, "How many of the newest are kept.", 5)
    dir: Text | None = documented(
        None, "Storage that all tasks share; all save there and nothing is copied.", "/mnt/exp7"
    )
    outputs: Listed[Text] = documented(
        (),
        "Globs below the workdir, copied from the chief's node at the end.",
        ["*.keras", "plots/**"],
        shown_default=[],
    )
    to: Text | None = documented(
        None, "Folder that gets the newest checkpoint and the outputs at the end.", "results"
    )
