"""The tf.data service of a cluster: its servers, and the way from a dataset to them.

In a script, `distribute` has the tasks `data_worker` compute a dataset instead of this process:

    from tfcluster_workers import data_service

    dataset = dataset.shuffle(1000).repeat().map(decode).batch(64)
    dataset = dataset.apply(data_service.distribute("distributed_epoch")).prefetch(tf.data.AUTOTUNE)

tfcluster runs this module as the program of the tasks `data_dispatcher` and `data_worker`.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable

from tfcluster_workers import context, reporting

HEARTBEAT_MS = 2000
"""The time after which a data worker registers again at a dispatcher that was restarted; 30 s
by default."""


def address() -> str | None:
    """Return the dispatcher's address, ``grpc://host:port``; None without a tf.data service."""
    return os.environ.get("TFCLUSTER_DATA_SERVICE")


def distribute(
    processing_mode: Any, *, job_name: str = "training", **options: Any
) -> Callable[[Any], Any]:
    """Return a transformation for `tf.data.Dataset.apply`; without a service it changes nothing.

    The arguments are those of `tf.data.experimental.service.distribute`. All tasks that name the
    same job share its elements: each element goes to the task that asks first. An attempt has jobs
    of its own: what an earlier one has read is not missing in it.
    """
    import tensorflow as tf

    if (service := address()) is None:
        return lambda dataset: dataset
    attempt = context.current().attempt
    transformation: Callable[[Any], Any] = tf.data.experimental.service.distribute(
        processing_mode, service, job_name=f"{job_name}-attempt-{attempt}", **options
    )
    return transformation


def serve(task: str, listens_at: str, dispatcher: str) -> None:
    """Start the server of `task` at ``host:port``, and never return.

    A dispatcher keeps a journal in the task's checkpoint directory: restarted alone, it goes on
    with the datasets and the clients that it had.
    """
    import tensorflow as tf

    service, port = tf.data.experimental.service, int(listens_at.rpartition(":")[2])
    if task.startswith("data_dispatcher"):
        journal = context.current().checkpoint_dir / "data_service"
        journal.mkdir(parents=True, exist_ok=True)
        server = service.DispatchServer(
            service.DispatcherConfig(port=port, work_dir=str(journal), fault_tolerant_mode=True)
        )
    else:
        server = service.WorkerServer(
            service.WorkerConfig(
                dispatcher_address=dispatcher.partition("://")[2],
                worker_address=listens_at,
                port=port,
                heartbeat_interval_ms=HEARTBEAT_MS,
            )
        )
    reporting.serving()
    server.join()


def main() -> None:
    """Serve, or exit with one line that says why this task cannot serve."""
    task, dispatcher = os.environ.get("TFCLUSTER_TASK", ""), address()
    listens_at = os.environ.get("TFCLUSTER_DATA_ADDRESS")
    if listens_at is None or dispatcher is None:
        sys.exit("data_service: only the tasks data_dispatcher and data_worker of a cluster serve")
    serve(task, listens_at, dispatcher)


if __name__ == "__main__":
    main()
