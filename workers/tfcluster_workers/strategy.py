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

ANSWER_S = 8.0
"""How long a resolver may take to answer, the connection to its address included."""
VARIABLE = "TFCLUSTER_TPU_RESOLVER"
_NAMES = ("TPU_NAME", "TPU_CONFIG", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")
_DEVICES = ("/dev/accel0", "/dev/vfio/0")
"""A TPU VM has its TPU here."""

Resolver = Callable[[], Any]
"""Makes a `tf.distribute.cluster_resolver.ClusterResolver`."""


def make_tpu_strategy(resolver: Resolver | None = None, *, answer_s: float = ANSWER_S) -> Any:
    """A TPUStrategy over what `resolver` finds; else $TFCLUSTER_TPU_RESOLVER's, else TensorFlow's.

    Raises NoTpuError within `answer_s` seconds where there is none.
    """
    resolve = resolver or _named_resolver() or _tensorflows_resolver
    return _strategy(_within(answer_s, lambda: _answering(resolve(), answer_s / 2)))


def _named_resolver() -> Resolver | None:
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    module, _, name = path.partition(":")
    try:
        found: Resolver = getattr(importlib.import_module(module), name or "resolver")
    except (ImportError, AttributeError) as error:
        raise NoTpuError(f"{VARIABLE}={path}: {error}") from None
    return found


def _tensorflows_resolver() -> Any:
    import tensorflow as tf

    if any(os.environ.get(name) for name in _NAMES):
        return tf.distribute.cluster_resolver.TPUClusterResolver()
    if any(os.path.exists(device) for device in _DEVICES):
        return tf.distribute.cluster_resolver.TPUClusterResolver("local")
    raise NoTpuError(f"none of {', '.join(_NAMES)} is set, and this machine has no TPU of its own")


def _answering(resolver: Any, timeout_s: float) -> Any:
    """`resolver`, once a connection to its master was possible: TensorFlow would wait for ever."""
    master = urlsplit(str(resolver.master() or ""))
    if master.scheme == "grpc" and master.hostname:
        try:
            socket.create_connection((master.hostname, master.port or 8470), timeout_s).close()
        except OSError as error:
            raise NoTpuError(f"nothing answers at {master.netloc} ({error})") from None
    return resolver


def _within(seconds: float, work: Callable[[], Any]) -> Any:
    """What `work` returns. Raises NoTpuError with what went wrong, a late answer included.

    A thread that is late is left behind: nothing can interrupt a request in it.
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
        raise NoTpuError(f"the resolver has not answered within {seconds:g} s")
    cause = failed[0]
    if isinstance(cause, JobError):
        raise cause
    raise NoTpuError(f"{type(cause).__name__}: {str(cause)[:300]}") from cause


def _strategy(resolver: Any) -> Any:
    """On TPUs a TPUStrategy. Another resolver's devices are mirrored: a rehearsal without a TPU."""
    import tensorflow as tf

    if isinstance(resolver, tf.distribute.cluster_resolver.TPUClusterResolver):
        try:
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
        except tf.errors.OpError as error:
            raise NoTpuError(f"{type(error).__name__}: {error.message[:300]}") from error
        return tf.distribute.TPUStrategy(resolver)
    return tf.distribute.MirroredStrategy([d.name for d in tf.config.list_logical_devices()])


NAMES = ("multi_worker_mirrored", "mirrored", "parameter_server", "tpu", "default")


def make(
    name: str | None = None, *, logical_cpus: int = 1, tpu_resolver: Resolver | None = None
) -> Any:
    """The strategy `name`, else the spec's, else the one that fits TF_CONFIG.

    `logical_cpus` splits the CPU for `mirrored` on a machine without GPUs, `tpu_resolver` finds
    the TPU where the environment does not name it. Raises ValueError for an unknown name,
    NoTpuError for `tpu` without one.
    """
    chosen = name or context.setting("strategy") or _fitting()
    makers = {
        "multi_worker_mirrored": _multi_worker_mirrored,
        "mirrored": lambda: _mirrored(logical_cpus),
        "parameter_server": _parameter_server,
        "tpu": lambda: make_tpu_strategy(tpu_resolver),
        "default": _default,
    }
    if chosen not in makers:
        raise ValueError(f"no strategy named {chosen!r}; there are {', '.join(NAMES)}")
    return makers[chosen]()


def _fitting() -> str:
    cluster = context.current().cluster
    if "ps" in cluster:
        return "parameter_server"
    return "multi_worker_mirrored" if cluster else "default"


def communication_options() -> Any:
    """`communication`, `bytes_per_pack` and `collective_timeout_s` of the spec.

    TensorFlow's tensorflow/python/distribute/collective_util.py says what they do; a timeout
    costs a thread per collective.
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
    made = tf.distribute.MultiWorkerMirroredStrategy(communication_options=communication_options())
    reporting.ready()
    return made


def _mirrored(logical_cpus: int) -> Any:
    import tensorflow as tf

    if logical_cpus == 1 or tf.config.list_physical_devices("GPU"):
        return tf.distribute.MirroredStrategy()
    parts = [tf.config.LogicalDeviceConfiguration() for _ in range(logical_cpus)]
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
    return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(logical_cpus)])


def _parameter_server() -> Any:
    import tensorflow as tf

    server.require_chief()
    server.fail_as_the_caller_says()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return tf.distribute.ParameterServerStrategy(resolver)


def _default() -> Any:
    import tensorflow as tf

    return tf.distribute.get_strategy()
