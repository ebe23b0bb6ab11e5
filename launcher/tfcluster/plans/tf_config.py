"""TF_CONFIG of each task of an attempt, and the variables that other libraries read instead.

A task of a training job gets a TF_CONFIG, and with the strategies `jax`, `torch` and `dtensor` the
variables of these libraries, too. In a KerasTuner search the chief is the oracle and each
worker a tuner that trains alone, without TF_CONFIG. KerasTuner reads three variables, all or none
(keras_tuner/src/distribute/utils.py); the chief is the process with the letters "chief" in its
KERASTUNER_TUNER_ID. A worker without a chief searches alone and gets none of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from tfcluster.plans import trackers
from tfcluster.plans.plan import EnvVar, Plan, TaskId
from tfcluster.spec import COORDINATED, JOBS, TUNER_VARIABLES

SOURCE: Final = "tfcluster"
"""The source of variables that tfcluster sets."""
ORACLE_IP, ORACLE_PORT, TUNER_ID = TUNER_VARIABLES
FOLDER: Final = "TFCLUSTER_TUNER_DIR"
_WITH_PORTS: Final = (
    *("KERAS_DISTRIBUTION_JOB_ADDRESSES", "JAX_COORDINATOR_ADDRESS", "MASTER_PORT", "DTENSOR_JOBS"),
)
LIBRARY_VARIABLES: Final = (
    *(f"KERAS_DISTRIBUTION_{name}" for name in ("JOB_ADDRESSES", "NUM_PROCESSES", "PROCESS_ID")),
    *(f"JAX_{name}" for name in ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID")),
    *("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *(f"DTENSOR_{name}" for name in ("CLIENT_ID", "NUM_CLIENTS", "JOB_NAME", "JOBS")),
)
"""The variables of `_library_environment`; other tasks do not inherit them either."""
DATA_SERVICE: Final = "TFCLUSTER_DATA_SERVICE"
"""The address of the tf.data service's dispatcher, for all tasks: ``grpc://host:port``."""
DATA_ADDRESS: Final = "TFCLUSTER_DATA_ADDRESS"
"""The ``host:port`` at which a task of the tf.data service listens."""
_FOLDER_LATER: Final = "RUN_FOLDER is created at start"


@dataclass(frozen=True, slots=True)
class SharedCluster:
    """The part that the TF_CONFIGs of one attempt share, built once for all tasks."""

    addresses: Mapping[str, Sequence[str]]
    """Job → addresses of its tasks that are in the gang."""
    index: Mapping[TaskId, int]
    """Task → its index in that list."""
    members: frozenset[TaskId]


@dataclass(frozen=True)  # no slots: `cached_property` needs a dict
class Attempt:
    """One start of the gang: `members` start together; `number` 1 is the first start."""

    plan: Plan
    number: int
    members: tuple[TaskId, ...]
    ports: Mapping[TaskId, int]
    """The port of every member: from the spec, or chosen by its agent."""

    def address(self, task: TaskId) -> str:
        """Return the task's ``host:port`` for its peers; raises KeyError if it has no port."""
        planned = self.plan.task(task)
        held = self.ports.get(task, planned.port) if self.is_elsewhere(task) else self.ports[task]
        return f"{planned.host}:{held}"

    def is_elsewhere(self, task: TaskId) -> bool:
        """Return whether tfcluster does not start the task here.

        Its port is one that is held for a start by hand, else the port in the spec.
        """
        return task in self._elsewhere

    @cached_property
    def _elsewhere(self) -> frozenset[TaskId]:
        return frozenset(other.id for other in self.plan.elsewhere)

    @cached_property
    def cluster(self) -> SharedCluster:
        """The common part of every TF_CONFIG; raises KeyError for a member without a port."""
        index: dict[TaskId, int] = {}
        addresses: dict[str, list[str]] = {}
        tasks = (*self.members, *self._elsewhere)
        for task in sorted(tasks, key=lambda task: (JOBS.index(task.job), task.index)):
            if self.plan.task(task).in_cluster:
                of_job = addresses.setdefault(task.job, [])
                index[task] = len(of_job)
                of_job.append(self.address(task))
        return SharedCluster(addresses, index, frozenset(self.members))

    @cached_property
    def order(self) -> tuple[TaskId, ...]:
        """The tasks that train together, the first of which coordinates the others."""
        return tuple(task for task in self.cluster.index if task.trains)

    @property
    def forms_cluster(self) -> bool:
        """True if the tasks form a cluster; tasks of a `plain` job and tuners train alone."""
        return self.plan.kind == "training"

    def has_tf_config(self, task: TaskId) -> bool:
        """Return whether `task` gets a TF_CONFIG; the tf.data service is in no cluster."""
        return self.forms_cluster and not task.serves_data


def build(attempt: Attempt, task: TaskId) -> dict[str, Any]:
    """Return the TF_CONFIG of `task` in this attempt, with dense indexes over its members.

    Raises KeyError if `task` is not a member of the attempt.
    """
    own = place_of(attempt, task)
    return {**own, "cluster": {**attempt.cluster.addresses, **own["cluster"]}}


def place_of(attempt: Attempt, task: TaskId) -> dict[str, Any]:
    """Return what only the TF_CONFIG of `task` has; the rest is `SharedCluster.addresses`.

    Raises KeyError if `task` is not a member of the attempt.
    """
    common = attempt.cluster
    if task not in common.members:
        raise KeyError(str(task))
    # An evaluator is only in its own TF_CONFIG.
    own = {} if task in common.index else {task.job: [attempt.address(task)]}
    return {"cluster": own, "task": {"type": task.job, "index": common.index.get(task, 0)}}


def fixed(plan: Plan) -> Attempt:
    """Return attempt 1 of a plan whose ports are all fixed in the spec.

    Raises ValueError if a task that others connect to has no fixed port.
    """
    if plan.without_port:
        raise ValueError(f"no port yet for {', '.join(map(str, plan.without_port))}")
    return _planned_attempt(plan)


def preview(plan: Plan, task: TaskId) -> tuple[EnvVar, ...]:
    """Return `environment` of a first attempt, with placeholders for what is chosen at start.

    The variables of trackers, which are the same in all attempts, are added.
    """
    variables = environment(
        _planned_attempt(plan),
        task,
        run_id="RUN",
        checkpoint_dir=f"RUN_FOLDER/tasks/{task.file_name}/checkpoints",
        tensorboard_dir=f"RUN_FOLDER/tensorboard/{task.file_name}",
        tuner_dir="RUN_FOLDER/tuner",
    )
    chosen = bool(plan.without_port)
    later = {
        "TFCLUSTER_RUN_ID": "RUN is chosen at start",
        "TFCLUSTER_CHECKPOINT_DIR": "" if plan.checkpoints.dir else _FOLDER_LATER,
        "TFCLUSTER_TENSORBOARD_DIR": _FOLDER_LATER,
        FOLDER: "RUN is chosen at start" if plan.checkpoints.dir else _FOLDER_LATER,
        **dict.fromkeys(
            (ORACLE_PORT, DATA_SERVICE, DATA_ADDRESS), "port 0 is chosen at start" if chosen else ""
        ),
        "TF_CONFIG": "ports 0 are chosen at start" if chosen else "",
        **dict.fromkeys(_WITH_PORTS, "port 0 is chosen at start" if chosen else ""),
    }
    of_trackers = trackers.environment(plan, task, run_id="RUN", group="RUN")
    return (
        *(
            replace(var, source=f"{SOURCE}, {later[var.name]}") if later.get(var.name) else var
            for var in variables
        ),
        *(replace(var, source=f"{var.source}, RUN is chosen at start") for var in of_trackers),
    )


def environment(
    attempt: Attempt,
    task: TaskId,
    *,
    run_id: str,
    checkpoint_dir: str,
    tensorboard_dir: str,
    tuner_dir: str,
    restored_step: int | None = None,
    holds_ports: bool = True,
    has_cluster: bool = True,
) -> tuple[EnvVar, ...]:
    """Return the variables of `task` that this attempt adds to its `Command.env`.

    `has_cluster`: False leaves out TF_CONFIG, which the agent then makes of `place_of`.

    `checkpoint_dir` is the task's folder; the spec's ``checkpoints.dir`` replaces it, and moves
    `tuner_dir`, which the tasks of a search share. `holds_ports`: the agent keeps a bound socket
    on the task's port while it runs, which TensorFlow shares only with SO_REUSEPORT
    (tensorflow#38705).
    """
    values = {
        "TFCLUSTER_RUN_ID": run_id,
        "TFCLUSTER_TASK": str(task),
        "TFCLUSTER_ATTEMPT": str(attempt.number),
        "TFCLUSTER_CHECKPOINT_DIR": attempt.plan.checkpoints.dir or checkpoint_dir,
        "TFCLUSTER_TENSORBOARD_DIR": tensorboard_dir,
    }
    if restored_step is not None:
        values["TFCLUSTER_RESTORED_STEP"] = str(restored_step)
    if attempt.forms_cluster:
        if has_cluster and attempt.has_tf_config(task):  # one line, as in all examples on the web
            values["TF_CONFIG"] = json.dumps(build(attempt, task))
        if holds_ports:
            values["TF_GRPC_REUSE_PORT"] = "1"
        given = {var.name for var in attempt.plan.task(task).command.env}
        of_library = _library_environment(attempt, task)
        values |= {name: text for name, text in of_library.items() if name not in given}
    dispatcher = TaskId("data_dispatcher", 0)
    if dispatcher in attempt.members or attempt.is_elsewhere(dispatcher):
        values[DATA_SERVICE] = f"grpc://{attempt.address(dispatcher)}"
    if task.serves_data:
        values[DATA_ADDRESS] = attempt.address(task)
        values["TFCLUSTER_CHECKPOINT_DIR"] = checkpoint_dir  # where the dispatcher has its journal
    if attempt.plan.kind == "tuner":
        values[FOLDER] = _tuner_folder(attempt.plan, run_id=run_id, default=tuner_dir)
        values |= _tuner_environment(attempt, task)
    return tuple(EnvVar(name, text, SOURCE, origin="tfcluster") for name, text in values.items())


def _planned_attempt(plan: Plan) -> Attempt:
    ports = {task.id: task.port for task in plan.tasks}
    return Attempt(plan, 1, tuple(ports), ports)


def _library_environment(attempt: Attempt, task: TaskId) -> dict[str, str]:
    """Return the variables by which the library of the plan's strategy finds the other tasks.

    The first task, whose checkpoints count, coordinates them at its address. Sources:
    keras/src/distribution/distribution_lib.py, which takes the coordinator's address for those of
    all; jax/_src/distributed.py, which reads the address only (the hooks pass JAX the other two);
    docs.pytorch.org, "Environment variable initialization"; tensorflow/dtensor/python/config.py.
    """
    strategy, ids = attempt.plan.strategy, attempt.order
    if task not in ids or strategy not in COORDINATED:
        return {}
    number, index = str(len(ids)), str(ids.index(task))
    if strategy == "dtensor":
        return {
            "DTENSOR_CLIENT_ID": index,
            "DTENSOR_NUM_CLIENTS": number,
            "DTENSOR_JOB_NAME": "worker",
            "DTENSOR_JOBS": ",".join(map(attempt.address, ids)),
        }
    coordinator = attempt.address(ids[0])
    values = {
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": coordinator,
        "KERAS_DISTRIBUTION_NUM_PROCESSES": number,
        "KERAS_DISTRIBUTION_PROCESS_ID": index,
    }
    if strategy == "jax":
        values |= {
            "JAX_COORDINATOR_ADDRESS": coordinator,
            "JAX_NUM_PROCESSES": number,
            "JAX_PROCESS_ID": index,
        }
        return values
    host, _, port = coordinator.rpartition(":")
    beside = [each for each in ids if attempt.plan.task(each).node == attempt.plan.task(task).node]
    # Scripts take LOCAL_RANK for the index of a GPU. A task that sees only its own GPUs, from 0
    # on, gets what `torchrun --virtual-local-rank` sets for it.
    local_rank = beside.index(task) if attempt.plan.resources.gpus == "all" else 0
    return values | {
        "MASTER_ADDR": host.strip("[]"),
        "MASTER_PORT": port,
        "RANK": index,
        "WORLD_SIZE": number,
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(len(beside)),
    }


def _tuner_environment(attempt: Attempt, task: TaskId) -> dict[str, str]:
    """Return KerasTuner's variables of `task`; a restarted task keeps its tuner id."""
    chief = attempt.plan.chief
    if chief.job != "chief":
        return {}
    host, _, port = attempt.address(chief).rpartition(":")
    return {ORACLE_IP: host, ORACLE_PORT: port, TUNER_ID: task.file_name}


def _tuner_folder(plan: Plan, *, run_id: str, default: str) -> str:
    """Return the folder of the search, which all its tasks share.

    `default` is below the run folder, on this machine; several hosts share ``checkpoints.dir``.
    Machines that join have a run each, and only the spec's name in common.
    """
    shared = plan.checkpoints.dir
    part = plan.name if plan.joins else run_id
    return f"{shared.rstrip('/')}/tuner/{part}" if shared else default
