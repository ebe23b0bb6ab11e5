"""Makes the `tf.distribute` strategy the spec names. Call it before any other TensorFlow op."""

from __future__ import annotations

from typing import Any

from tfcluster_workers import context, reporting, server, tpu

NAMES = ("multi_worker_mirrored", "mirrored", "parameter_server", "tpu", "default")


def make(
    name: str | None = None, *, logical_cpus: int = 1, tpu_resolver: tpu.Resolver | None = None
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
        "tpu": lambda: tpu.make(tpu_resolver),
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
