"""The spec as a value: `ClusterSpec`, the top level, and the rules between its sections."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import model_validator

from tfcluster import kinds
from tfcluster.errors import join_first
from tfcluster.kinds import AUTO
from tfcluster.spec import (
    COORDINATED,
    DATA_JOBS,
    JOBS,
    TUNER_VARIABLES,
    FieldPath,
    file_name_of,
    published_schema,
    shorten,
)
from tfcluster.spec.cluster import Cluster, count, iter_entries, parse, task_counts, task_names
from tfcluster.spec.fields import Mistake, RulesBroken, Section, documented, matching, required
from tfcluster.spec.job import Job
from tfcluster.spec.sections import (
    Checkpoints,
    Keras,
    Resources,
    Runtime,
    Strategy,
    Supervision,
)

VERSION = 1
_SEARCH_EXAMPLE = 'for example {"chief": 1, "worker": 2}'
_THIS_MACHINE = "local"
"""The name of the node on this machine."""
_NAME = matching(
    re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII),
    "a valid run name",
    "use 1 to 63 letters, digits, '.', '_' or '-', beginning with a letter or digit",
)


class ClusterSpec(Section):
    """One cluster of TensorFlow tasks and the job they run together."""

    schema_file: str | None = documented(
        None,
        "The schema for editors; tfcluster does not read it. `tfcluster init` writes it next to "
        "the spec.",
        f".tfcluster/{published_schema.SCHEMA_FILE}",
        alias="$schema",
    )
    version: Literal[1] = documented(VERSION, "Version of the spec format.", VERSION)
    name: Annotated[str, _NAME] = documented(
        "tfcluster",
        "Name of the runs; default: the name of the file without its extension.",
        "resnet-4gpu",
        shown_default=None,
    )
    cluster: Cluster = required(
        "Required. The tasks of each job: a number, or a list of addresses.", {"worker": 2}
    )
    job: Job = required("Required. The program that every task runs.", {"script": "train.py"})
    # The defaults are constructed, not validated: the validators are not built yet.
    strategy: Strategy = documented(
        Strategy.model_construct(), "The distribution strategy.", {"communication": "RING"}
    )
    keras: Keras = documented(
        Keras.model_construct(), "Keras settings.", {"precision": "mixed_bfloat16"}
    )
    runtime: Runtime = documented(
        Runtime.model_construct(), "Backend, Python, network and hosts.", {"backend": "local"}
    )
    resources: Resources = documented(
        Resources.model_construct(), "The resources of each task.", {"gpus": 1}
    )
    supervision: Supervision = documented(
        Supervision.model_construct(), "Deadlines and restarts.", {"run_deadline_s": "12h"}
    )
    checkpoints: Checkpoints = documented(
        Checkpoints.model_construct(),
        "Gathering of the chief's checkpoints and outputs.",
        {"keep": 5},
    )

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        RulesBroken.check(
            (
                *self._check_hosts(),
                *self._check_addresses(),
                *self._check_strategy(),
                *self._check_secrets(),
                *self._check_counts(),
                *self._check_task_steps(),
                *self._check_roles(),
                *self._check_network(),
                *self._check_data_service(),
                *(_check_search_cluster(self) if self.job.kind == "tuner" else ()),
                *(_check_search_variables(self) if self.job.kind == "tuner" else ()),
                *self._check_backend(),
            )
        )
        return self

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host parts of the listed addresses, each once, in order."""
        return tuple(dict.fromkeys(entry.host for _, entry in iter_entries(self.cluster)))

    @property
    def task_count(self) -> int:
        """The number of tasks, including those that do not train."""
        return sum(count(self.cluster, job) for job in JOBS)

    @property
    def trainer_count(self) -> int:
        """The number of chiefs and workers."""
        return count(self.cluster, "chief") + count(self.cluster, "worker")

    def _check_addresses(self) -> Iterator[Mistake]:
        for (job, index), entry in iter_entries(self.cluster):
            if entry.host == _THIS_MACHINE:
                fix = 'write its IP address, or "localhost" for this machine'
                message = f"tfcluster calls this machine {_THIS_MACHINE!r}, so no host can be"
                yield Mistake(("cluster", job, index), message, fix)
        if not self._made_nodes():
            return
        reason = kinds.get(self.runtime.backend).why_no_addresses
        for (job, index), entry in iter_entries(self.cluster):
            if not (at := parse(entry.address)).is_loopback:
                message = f"{at} is another machine's address; {reason}"
                fix = f'write a number: "{job}": {index + 1}, or choose another backend'
                yield Mistake(("cluster", job, index), message, fix)

    def _made_nodes(self) -> tuple[str, ...]:
        """Return the nodes that the backend makes for the run; empty if it makes none."""
        backend = self.runtime.backend
        if backend == AUTO or not (kind := kinds.get(backend)).capabilities.makes_nodes:
            return ()
        numbers, nodes = kinds.Numbers(task_counts(self.cluster), self.runtime), list[str]()
        for task in task_names(self.cluster):
            number = numbers.next(kind, task.partition(":")[0])
            nodes.append(kind.place(file_name_of(task), number, "127.0.0.1", self.runtime)[0])
        return tuple(dict.fromkeys(nodes))

    @property
    def known_hosts(self) -> tuple[str, ...]:
        """The hosts, or nodes that the backend makes, that may have settings of their own."""
        if made := self._made_nodes():
            return made
        has_numbers = any(isinstance(tasks, int) for tasks in self.cluster.values())
        return (*self.hosts, *(("127.0.0.1",) if has_numbers else ()))

    def _check_hosts(self) -> Iterator[Mistake]:
        names = self.known_hosts
        for key in self.runtime.hosts:
            if key != "*" and key not in names:
                choices = f"one of {', '.join(names)}, or" if len(names) > 1 else f"{names[0]}, or"
                message = f"no address of the cluster has the host {shorten(key)}"
                fix = f'use {choices} "*"'
                yield Mistake(("runtime", "hosts", key), message, fix, on_key=True)

    def _check_strategy(self) -> Iterator[Mistake]:
        name, has_ps = self.strategy.name, "ps" in self.cluster
        if name == "parameter_server" and not has_ps:
            fix = 'add "ps" and "chief" to the cluster, or choose another strategy'
            yield Mistake(("strategy", "name"), "parameter_server needs ps tasks", fix)
        if name in ("multi_worker_mirrored", "mirrored", "tpu", *COORDINATED) and has_ps:
            fix = 'leave the name out (parameter_server is the default with ps), or remove "ps"'
            yield Mistake(("strategy", "name"), f"{name} does not use ps tasks", fix)
        if has_ps:
            yield from self._check_parameter_servers()
        if name == "tpu" and self.trainer_count > 1:
            fix = 'write "cluster": {"worker": 1}: one process drives all cores of a TPU'
            yield Mistake(("strategy", "name"), "tpu runs with one worker only", fix)

    def _check_parameter_servers(self) -> Iterator[Mistake]:
        """Require a chief, which hands out the steps; in TensorFlow 1 scripts it is worker:0."""
        missing = [job for job in ("chief", "worker") if job not in self.cluster]
        if missing == ["chief"] and self.strategy.name == "default":
            return
        if missing:
            names = " and ".join(missing)
            fix = f'add {names}, for example {{"chief": 1, "worker": 2, "ps": 1}}'
            if missing == ["chief"]:
                fix += '; for a script whose chief is worker:0, "strategy": {"name": "default"}'
            message = f"parameter servers need a chief and workers: no {names}"
            yield Mistake(("cluster", "ps"), message, fix)

    def _check_data_service(self) -> Iterator[Mistake]:
        """Refuse a tf.data service beside tasks that form no cluster."""
        if self.job.kind != "training" and "data_worker" in self.cluster:
            message = f"tasks of the kind {self.job.kind} get no tf.data service"
            fix = f"leave {' and '.join(DATA_JOBS)} out"
            yield Mistake(("cluster", "data_worker"), message, fix, on_key=True)

    def _check_secrets(self) -> Iterator[Mistake]:
        for index, name in enumerate(self.job.secrets):
            if self.job.env.get(name) is not None:
                fix = "remove it from job.env, and export it in the shell that starts tfcluster"
                message = f"the value of the secret {name} is written in job.env"
                yield Mistake(("job", "secrets", index), message, fix)

    def _check_task_steps(self) -> Iterator[Mistake]:
        tasks = [task for task in task_names(self.cluster) if not task.startswith(DATA_JOBS)]
        known = (*dict.fromkeys(task.partition(":")[0] for task in tasks), *tasks)
        for key in self.job.per_task:
            if key not in known:
                message, fix = f"the cluster has no {key}", f"it has {join_first(known)}"
                yield Mistake(("job", "per_task", key), message, fix, on_key=True)

    def _check_roles(self) -> Iterator[Mistake]:
        for job in self.runtime.roles:
            if not count(self.cluster, job):
                jobs = [each for each in JOBS if count(self.cluster, each)]
                message, fix = f"the cluster has no {job}", f"it has {join_first(jobs)}"
                yield Mistake(("runtime", "roles", job), message, fix, on_key=True)

    def _check_network(self) -> Iterator[Mistake]:
        network, backend = self.runtime.network, self.runtime.backend
        if isinstance(network, str):
            return
        if not kinds.get(backend).capabilities.simulates_network:
            message = f"{backend} has its own network: only one on this machine is simulated"
            fix = "leave the backend out, or the rate, delay, jitter, loss and links"
            yield Mistake(("runtime", "network"), message, fix)
        for mistake in network.find_mistakes(self.cluster):
            yield mistake.below("runtime", "network")

    def _check_backend(self) -> Iterator[Mistake]:
        """Yield the mistakes that only the spec's backend knows."""
        if self.runtime.backend != AUTO:
            yield from kinds.get(self.runtime.backend).find_mistakes(self)

    def _check_counts(self) -> Iterator[Mistake]:
        least, trainers = self.supervision.min_workers, self.trainer_count
        if least is not None and least > trainers:
            fix = f"write 1 to {trainers}"
            message = f"min_workers is {least}, but the cluster has {trainers}"
            yield Mistake(("supervision", "min_workers"), message, fix)
        lists: list[tuple[FieldPath, object]] = [(("resources", "gpus"), self.resources.gpus)]
        for task, entry in iter_entries(self.cluster):
            lists.append((("cluster", *task, "gpus"), entry.gpus))
        for path, listed in lists:
            if isinstance(listed, tuple) and len(set(listed)) < len(listed):
                yield Mistake(path, "a GPU is listed twice", "list each index once")


def _check_search_cluster(spec: ClusterSpec) -> Iterator[Mistake]:
    for job in ("ps", "evaluator"):
        if job in spec.cluster:
            message = f"a search has no {job}: its tasks are a chief and tuners"
            fix = f"leave it out, {_SEARCH_EXAMPLE}"
            yield Mistake(("cluster", job), message, fix, on_key=True)
    if "worker" not in spec.cluster:
        fix = f"add workers, {_SEARCH_EXAMPLE}"
        yield Mistake(("cluster",), "a search needs tuners: no worker", fix)
    elif "chief" not in spec.cluster and spec.task_count > 1:
        message = "several tuners need a chief that hands out the trials"
        yield Mistake(("cluster",), message, f"add one, {_SEARCH_EXAMPLE}")


def _check_search_variables(spec: ClusterSpec) -> Iterator[Mistake]:
    places: list[tuple[FieldPath, object]] = [(("job", "env"), spec.job.env)]
    for host, settings in spec.runtime.hosts.items():
        places.append((("runtime", "hosts", host, "env"), settings.env))
    for task, entry in iter_entries(spec.cluster):
        places.append((("cluster", *task, "env"), entry.env))
    for path, env in places:
        for name in TUNER_VARIABLES:
            if isinstance(env, dict) and name in env:
                message = f"{name} is set by tfcluster for each task of a search"
                yield Mistake((*path, name), message, "leave it out", on_key=True)


def _build_validators() -> None:
    """Build the validators of all sections at once: each alone would build its parts again.

    Pydantic plugins are disabled: one that is installed in the same environment (logfire) would
    be imported by every command that reads a spec.
    """
    name = "PYDANTIC_DISABLE_PLUGINS"
    before = os.environ.get(name)
    os.environ[name] = "__all__"
    try:
        ClusterSpec.model_rebuild()
    finally:  # tasks inherit the environment
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


_build_validators()
