"""Makes the tf.distribute strategy that the spec names, with its options.

    strategy = strategy.make()

For `strategy.name: tpu` a TPU has to be found. It is not in TF_CONFIG: TensorFlow's cluster
resolver asks the environment (TPU_NAME, TPU_CONFIG, GKE's variable) and Google's metadata server,
without a time-out, so the search here runs with one. If the resolver needs a zone or a project,
write a function that makes it and name it in the spec's `job.env`:

    "TFCLUSTER_TPU_RESOLVER": "my_module:resolver"
"""

from __future__ import annotations

import importlib
import os
import socket
import threading
from typing import Any, Callable
from urllib.parse import urlsplit

from tfcluster_workers import context, reporting, server
from tfcluster_workers.errors import JobError, NoTpuError

NAMES = ("multi_worker_mirrored", "mirrored", "parameter_server", "tpu", "default")

TPU_TIMEOUT_S = 8.0
"""Seconds a resolver may take to answer, including the connection to its address."""
RESOLVER_VARIABLE = "TFCLUSTER_TPU_RESOLVER"
_TPU_VARIABLES = ("TPU_NAME", "TPU_CONFIG", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")
_TPU_DEVICES = ("/dev/accel0", "/dev/vfio/0")
"""The device files of a TPU VM."""

Resolver = Callable[[], Any]
"""A function that makes a `tf.distribute.cluster_resolver.ClusterResolver`."""


def make(
    name: str | None = None, *, logical_cpus: int = 1, tpu_resolver: Resolver | None = None
) -> Any:
    """Return the strategy `name`, else the spec's, else the one that suits TF_CONFIG.

    `logical_cpus` splits the CPU for `mirrored` on a machine without GPUs; `tpu_resolver` finds the
    TPU if the environment does not name it. Raises ValueError for an unknown name, and NoTpuError
    for `tpu` without a TPU.
    """
    chosen = name or context.setting("strategy") or _name_for_cluster()
    makers = {
        "multi_worker_mirrored": _multi_worker_mirrored,
        "mirrored": lambda: _mirrored(logical_cpus),
        "parameter_server": _parameter_server,
        "tpu": lambda: make_tpu_strategy(tpu_resolver),
        "default": _default,
    }
    if chosen not in makers:
        raise ValueError(f"unknown strategy {chosen!r}; choose one of {', '.join(NAMES)}")
    return makers[chosen]()


def _name_for_cluster() -> str:
    cluster = context.current().cluster
    if "ps" in cluster:
        return "parameter_server"
    return "multi_worker_mirrored" if cluster else "default"


def communication_options() -> Any:
    """Return the spec's `communication`, `bytes_per_pack` and `collective_timeout_s`.

    tensorflow/python/distribute/collective_util.py documents them; a timeout costs a thread per
    collective.
    """
    import tensorflow as tf

    implementation = str(context.setting("communication", "AUTO")).upper()
    return tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation[implementation],
        bytes_per_pack=int(context.setting("bytes_per_pack", 0)),
        timeout_seconds=context.setting("collective_timeout_s"),
    )


def _multi_worker_mirrored() -> Any:
    import tensorflow as tf

    reporting.waiting_for_peers()
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=communication_options()
    )
    reporting.ready()
    return strategy


def _mirrored(logical_cpus: int) -> Any:
    import tensorflow as tf

    if logical_cpus == 1 or tf.config.list_physical_devices("GPU"):
        return tf.distribute.MirroredStrategy()
    devices = [tf.config.LogicalDeviceConfiguration() for _ in range(logical_cpus)]
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(logical_cpus)])


def _parameter_server() -> Any:
    import tensorflow as tf

    server.require_chief()
    server.let_caller_fail_fast()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return tf.distribute.ParameterServerStrategy(resolver)


def _default() -> Any:
    import tensorflow as tf

    return tf.distribute.get_strategy()


def make_tpu_strategy(resolver: Resolver | None = None, *, timeout_s: float = TPU_TIMEOUT_S) -> Any:
    """Return a TPUStrategy for the TPU that a resolver finds.

    The resolver is `resolver`, else the one that $TFCLUSTER_TPU_RESOLVER names, else TensorFlow's.
    Raises NoTpuError within `timeout_s` seconds if there is no TPU.
    """
    resolve = resolver or _named_resolver() or _tensorflow_resolver
    found = _with_timeout(timeout_s, lambda: _require_answer(resolve(), timeout_s / 2))
    return _strategy_for(found)


def _named_resolver() -> Resolver | None:
    path = os.environ.get(RESOLVER_VARIABLE)
    if not path:
        return None
    module, _, name = path.partition(":")
    try:
        resolver: Resolver = getattr(importlib.import_module(module), name or "resolver")
    except (ImportError, AttributeError) as error:
        raise NoTpuError(f"{RESOLVER_VARIABLE}={path}: {error}") from None
    return resolver


def _tensorflow_resolver() -> Any:
    import tensorflow as tf

    if any(os.environ.get(name) for name in _TPU_VARIABLES):
        return tf.distribute.cluster_resolver.TPUClusterResolver()
    if any(os.path.exists(device) for device in _TPU_DEVICES):
        return tf.distribute.cluster_resolver.TPUClusterResolver("local")
    raise NoTpuError(f"none of {', '.join(_TPU_VARIABLES)} is set, and this machine has no TPU")


def _require_answer(resolver: Any, timeout_s: float) -> Any:
    """Return `resolver` if its master accepts a connection: TensorFlow would wait forever."""
    master = urlsplit(str(resolver.master() or ""))
    if master.scheme == "grpc" and master.hostname:
        try:
            socket.create_connection((master.hostname, master.port or 8470), timeout_s).close()
        except OSError as error:
            raise NoTpuError(f"no answer from {master.netloc} ({error})") from None
    return resolver


def _with_timeout(seconds: float, work: Callable[[], Any]) -> Any:
    """Return what `work` returns; raise NoTpuError if it fails or takes longer than `seconds`.

    A late thread is abandoned: nothing can interrupt its request.
    """
    done: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True, name="tpu-resolver")
    thread.start()
    thread.join(seconds)
    if done:
        return done[0]
    if not failed:
        raise NoTpuError(f"the resolver did not answer within {seconds:g} s")
    cause = failed[0]
    if isinstance(cause, JobError):
        raise cause
    raise NoTpuError(f"{type(cause).__name__}: {str(cause)[:300]}") from cause


def _strategy_for(resolver: Any) -> Any:
    """Return a TPUStrategy; for a resolver without TPUs a MirroredStrategy, to test without one."""
    import tensorflow as tf

    if isinstance(resolver, tf.distribute.cluster_resolver.TPUClusterResolver):
        try:
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
        except tf.errors.OpError as error:
            raise NoTpuError(f"{type(error).__name__}: {error.message[:300]}") from error
        return tf.distribute.TPUStrategy(resolver)
    return tf.distribute.MirroredStrategy([d.name for d in tf.config.list_logical_devices()])
