"""Joins JAX's processes at their addresses, and has one that failed end at once.

JAX itself reads the coordinator's address only. `jax.distributed.initialize()` without arguments
takes the rest from a `ClusterEnv`, of which tfcluster adds one, before that of a Slurm job or a
pod around the run.
"""

from __future__ import annotations

import os
import socket
import sys
from types import ModuleType
from typing import Any

from tfcluster_workers import context, reporting
from tfcluster_workers.hooks.replacing import replaces

_ADDRESS, _NUMBER, _INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


def watch_clusters(module: ModuleType) -> None:
    """Have JAX find the processes of the run (jax/_src/clusters/cluster.py, `ClusterEnv`)."""
    base: Any = vars(module)["ClusterEnv"]

    class TfclusterEnv(base):  # type: ignore[misc]
        name = "tfcluster"

        @classmethod
        def is_env_present(cls) -> bool:
            return {_ADDRESS, _NUMBER, _INDEX} <= os.environ.keys()

        @classmethod
        def get_coordinator_address(cls, *args: Any, **kwargs: Any) -> str:
            return os.environ[_ADDRESS]

        @classmethod
        def get_process_count(cls) -> int:
            return int(os.environ[_NUMBER])

        @classmethod
        def get_process_id(cls) -> int:
            return int(os.environ[_INDEX])

    known = base._cluster_types
    known.insert(0, known.pop())


def watch_distributed(module: ModuleType) -> None:
    """Watch `jax.distributed.initialize`, which waits for all processes, and the end of it.

    At its exit JAX has a process wait up to five minutes until all others exit, too. After an error
    they never do: they wait for this process in their next step.
    """
    state = vars(module)["State"]

    @replaces(state, "initialize")
    def initialize(stock: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        reporting.waiting_for_peers()
        result = stock(self, *args, **kwargs)
        reporting.ready()
        if (self.num_processes or 1) > 1:
            reporting.meets_peers()
        return result

    @replaces(state, "shutdown")
    def shutdown(stock: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        code = getattr(sys.modules.get("tfcluster_workers.boot"), "failed_with", 0)
        if code and self.client is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return stock(self, *args, **kwargs)


def watch_backends(module: ModuleType) -> None:
    """Have Gloo, JAX's collectives on CPUs, use the address by which the others know this task.

    By itself it looks up the machine's name, which may be unknown, or be 127.0.1.1 (Debian's
    /etc/hosts), where no other host reaches it.
    """
    library = vars(module).get("_jax")
    if not hasattr(library, "make_gloo_tcp_collectives"):
        return  # another release

    @replaces(library, "make_gloo_tcp_collectives")
    def make(stock: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) < 2 and not kwargs.keys() & {"hostname", "interface"} and (host := own_host()):
            kwargs["hostname"] = host
        return stock(*args, **kwargs)


def own_host() -> str:
    """Return the host in this task's address; empty if it is not one of this machine.

    For a name that is loopback here, return the address from which this machine reaches another.
    """
    task = context.current()
    addresses = task.cluster.get(task.job, ())
    host = _host_of(addresses[task.index]) if addresses else ""
    own = ""
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as trial:
                trial.bind(address)
            own = own or str(address[0])
        others = {_host_of(each) for job in task.cluster.values() for each in job} - {host}
        if own != host and own.startswith("127.") and others:
            return _address_towards(min(others))
    except OSError:
        return ""
    return host


def _host_of(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _address_towards(host: str) -> str:
    """Return the address of this machine in packets to `host`; none is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.connect((host, 9))
        return str(asked.getsockname()[0])


def process_count() -> int:
    """Return the number of processes that have joined; 1 without JAX."""
    module: Any = sys.modules.get("jax._src.distributed")
    return int(module.global_state.num_processes or 1) if module is not None else 1


def process_index() -> int:
    """Return the index of this process; 0 is the coordinator."""
    module: Any = sys.modules.get("jax._src.distributed")
    return int(module.global_state.process_id or 0) if module is not None else 0


def batches_per_step() -> int:
    """Return the number of processes that each add a batch of Keras's `fit` to a global one."""
    distribution = _distribution()
    if distribution is None or getattr(distribution, "auto_shard_dataset", False):
        return 1
    return process_count()


def is_outside_distribution() -> bool:
    """Return whether Keras knows nothing of the other processes, which JAX has joined."""
    return process_count() > 1 and keras_backend() == "jax" and _distribution() is None


def keras_backend() -> str:
    """Return the backend of Keras 3; `tensorflow` for other Keras and without one."""
    config: Any = getattr(sys.modules.get("keras"), "config", None)
    return str(config.backend()) if hasattr(config, "backend") else "tensorflow"


def _distribution() -> Any:
    """Return what `keras.distribution.set_distribution` has set; None without Keras on JAX."""
    keras: Any = sys.modules.get("keras")
    return keras.distribution.distribution() if keras_backend() == "jax" else None
