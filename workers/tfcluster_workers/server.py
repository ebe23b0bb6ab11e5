"""What ps and worker tasks of a parameter-server job do: serve their chief until they are ended.

A script of your own calls it before anything else of TensorFlow:

    from tfcluster_workers import server
    server.serve_unless_chief()
    strategy = tf.distribute.ParameterServerStrategy(...)    # only the chief comes here

A task that only serves needs no script: `python -m tfcluster_workers.server` does the same.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from tfcluster_workers import context, reporting


def serve_unless_chief() -> None:
    """Serve for ever in a ps, or in a worker of a cluster with ps; return in any other task.

    A server never ends by itself: tfcluster ends it after the chief.
    """
    here = context.current()
    if is_served(here):
        serve(here)


def is_served(here: context.Context) -> bool:
    """Whether this task is one of those that a coordinator makes use of."""
    return here.job == "ps" or (here.job == "worker" and "ps" in here.cluster)


def require_chief() -> None:
    """Raise RuntimeError where only the coordinator belongs, and this task is to serve it."""
    here = context.current()
    if is_served(here):
        raise RuntimeError(
            f"{here.task} only serves the chief: call tfcluster_workers.server.serve_unless_chief()"
            " before the strategy is made"
        )


def serve(here: context.Context) -> None:
    """Start the gRPC server of this task and never return."""
    import tensorflow as tf

    fail_as_the_caller_says()
    server = tf.distribute.Server(
        {job: list(addresses) for job, addresses in here.cluster.items()},
        job_name=here.job,
        task_index=here.index,
        protocol="grpc",
        config=config(len(here.cluster.get("worker", ()))),
    )
    reporting.serving()  # `join` reports it, too, where the hooks are on
    server.join()


def fail_as_the_caller_says() -> None:
    """gRPC shall fail fast only where the caller asks for it: what the coordinator relies on.

    TensorFlow's guide "Parameter server training", "Clusters in the real world".
    """
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")


def config(workers: int) -> Any:
    """The server's ConfigProto, with threads enough for `workers`."""
    import tensorflow as tf

    return tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads_between(workers))


def threads_between(workers: int, *, cores: int | None = None) -> int:
    """Threads between operations: more than there are workers; 0 where there are so many anyway.

    With fewer, on a machine of few cores, workers that wait for each other's answers can block a
    server for good (same guide: "set inter_op_parallelism_threads").
    """
    chosen = os.environ.get("TF_NUM_INTEROP_THREADS", "")
    usual = int(chosen) if chosen.isdecimal() else 0
    if (usual or cores or os.cpu_count() or 1) > workers:
        return 0
    return workers + 1


def start_in_process(workers: int = 1, ps: int = 1) -> Any:
    """A whole cluster in this process, for a coordinator that is alone; its resolver.

    TensorFlow cannot stop such a server: it lives as long as the process.
    """
    import tensorflow as tf

    fail_as_the_caller_says()
    jobs = {"worker": workers, "ps": ps}
    addresses = {job: [f"localhost:{_free_port()}" for _ in range(jobs[job])] for job in jobs}
    spec = tf.train.ClusterSpec(addresses)
    for job, count in jobs.items():
        for index in range(count):
            tf.distribute.Server(
                spec, job_name=job, task_index=index, protocol="grpc", config=config(workers)
            )
    return tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Serve, or say in one line why this task has nothing to serve."""
    here = context.current()
    if not is_served(here):
        place = here.task if here.cluster else "alone: TF_CONFIG names no cluster"
        sys.exit(f"server: only ps and worker tasks of a cluster with ps serve; this is {place}")
    serve(here)


if __name__ == "__main__":
    main()
