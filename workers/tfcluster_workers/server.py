"""Runs the servers of a parameter-server job: ps and workers serve the chief until they are ended.

A script calls it before anything else of TensorFlow:

    from tfcluster_workers import server
    server.serve_unless_chief()
    strategy = tf.distribute.ParameterServerStrategy(...)    # only the chief gets here

A task that only serves needs no script: run `python -m tfcluster_workers.server`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from tfcluster_workers import context, reporting
from tfcluster_workers.errors import NotServingError


def serve_unless_chief() -> None:
    """Serve forever in a ps, or in a worker of a cluster with ps; return in any other task.

    A server never ends by itself: tfcluster ends it after the chief has ended.
    """
    this_task = context.current()
    if is_served(this_task):
        serve(this_task)


def is_served(this_task: context.Context) -> bool:
    """Return whether this task is a server: a ps, or a worker of a cluster with ps."""
    return this_task.job == "ps" or (this_task.job == "worker" and "ps" in this_task.cluster)


def require_chief() -> None:
    """Raise NotServingError if this task is a server: only the chief makes the strategy."""
    this_task = context.current()
    if is_served(this_task):
        raise NotServingError(this_task.task)


def serve(this_task: context.Context) -> None:
    """Start the gRPC server of this task and never return."""
    import tensorflow as tf

    let_caller_fail_fast()
    server = tf.distribute.Server(
        {job: list(addresses) for job, addresses in this_task.cluster.items()},
        job_name=this_task.job,
        task_index=this_task.index,
        protocol="grpc",
        config=config(len(this_task.cluster.get("worker", ()))),
    )
    reporting.serving()  # with hooks on, `join` reports it too; it is sent once
    server.join()


def let_caller_fail_fast() -> None:
    """Have gRPC fail fast only where the caller requests it, as the coordinator requires.

    Source: TensorFlow's guide "Parameter server training", "Clusters in the real world".
    """
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")


def config(workers: int) -> Any:
    """Return the server's ConfigProto, with enough threads for `workers`."""
    import tensorflow as tf

    return tf.compat.v1.ConfigProto(inter_op_parallelism_threads=inter_op_threads(workers))


def inter_op_threads(workers: int, *, cores: int | None = None) -> int:
    """Return the inter-op threads a server needs: more than workers; 0 if the default is enough.

    With fewer threads, on a machine with few cores, workers that wait for each other's answers can
    block a server forever (same guide: "set inter_op_parallelism_threads").
    """
    variable = os.environ.get("TF_NUM_INTEROP_THREADS", "")
    configured = int(variable) if variable.isdecimal() else 0
    if (configured or cores or os.cpu_count() or 1) > workers:
        return 0
    return workers + 1


def start_in_process(workers: int = 1, ps: int = 1) -> Any:
    """Start a whole cluster in this process, for a chief without a cluster; return its resolver.

    TensorFlow cannot stop such a server: it lives as long as the process.
    """
    import tensorflow as tf

    let_caller_fail_fast()
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
    """Serve, or exit with one line that says why this task cannot serve."""
    this_task = context.current()
    if not is_served(this_task):
        reason = f"this is {this_task.task}" if this_task.cluster else "TF_CONFIG names no cluster"
        sys.exit(f"server: only ps and worker tasks of a cluster with ps can serve; {reason}")
    serve(this_task)


if __name__ == "__main__":
    main()
