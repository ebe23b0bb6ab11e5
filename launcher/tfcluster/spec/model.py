"""The spec as a value: `ClusterSpec`, the top level, and the rules between its sections."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, model_validator

from tfcluster.spec import published_schema
from tfcluster.spec.cluster import (
    JOBS,
    Cluster,
    Gpus,
    JobName,
    TaskEntry,
    count,
    count_tasks,
    count_trainers,
    placed,
)
from tfcluster.spec.fields import (
    Mistake,
    Path,
    RulesBroken,
    Section,
    documented,
    required,
    shorten,
    wrong,
)
from tfcluster.spec.job import Job, OwnStep, Prepare, Step
from tfcluster.spec.sections import (
    Checkpoints,
    Host,
    Keras,
    Resources,
    Runtime,
    Strategy,
    Supervision,
)

if TYPE_CHECKING:
    pass


SET_BY_US = ("KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT", "KERASTUNER_TUNER_ID")
_EXAMPLE = 'for example {"chief": 1, "worker": 2}'


def find_mistakes(spec: ClusterSpec) -> Iterator[Mistake]:
    """Nothing where the job is no search: then KerasTuner's variables are the user's own."""
    if spec.job.kind == "tuner":
        yield from _about_cluster(spec)
        yield from _about_variables(spec)


def _about_cluster(spec: ClusterSpec) -> Iterator[Mistake]:
    for job in ("ps", "evaluator"):
        if job in spec.cluster:
            message = f"a search has no use for {job}: its tasks are a chief and tuners"
            yield Mistake(("cluster", job), message, f"leave it out, {_EXAMPLE}", on_key=True)
    if "worker" not in spec.cluster:
        yield Mistake(("cluster",), "a search needs tuners: no worker", f"add them, {_EXAMPLE}")
    elif "chief" not in spec.cluster and spec.task_count > 1:
        message = "several tuners need a chief that hands out the trials"
        yield Mistake(("cluster",), message, f"add one, {_EXAMPLE}")


def _about_variables(spec: ClusterSpec) -> Iterator[Mistake]:
    places: list[tuple[tuple[str | int, ...], object]] = [(("job", "env"), spec.job.env)]
    for host, settings in spec.runtime.hosts.items():
        places.append((("runtime", "hosts", host, "env"), settings.env))
    for job, tasks in spec.cluster.items():
        for index, entry in enumerate(() if isinstance(tasks, int) else tasks):
            places.append((("cluster", job, index, "env"), entry.env))
    for path, env in places:
        for name in SET_BY_US:
            if isinstance(env, dict) and name in env:
                message = f"{name} is set by tfcluster for each task of a search"
                yield Mistake((*path, name), message, "leave it out", on_key=True)


__all__ = [
    "JOBS",
    "VERSION",
    "Checkpoints",
    "ClusterSpec",
    "Gpus",
    "Host",
    "Job",
    "JobName",
    "Keras",
    "OwnStep",
    "Prepare",
    "Resources",
    "Runtime",
    "Step",
    "Strategy",
    "Supervision",
    "TaskEntry",
]

VERSION = 1
_NAMED = 8
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)


def _is_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        fix = "write 1 to 63 letters, digits, '.', '_' or '-', beginning with a letter or digit"
        raise wrong(f"{shorten(value)} cannot be the name of a run", fix)
    return value


class ClusterSpec(Section):
    """One cluster of TensorFlow tasks and the job they run together."""

    schema_file: str | None = documented(
        None,
        "The schema for editors; never fetched. `tfcluster init` writes it beside the spec.",
        f".tfcluster/{published_schema.SCHEMA_FILE}",
        alias="$schema",
    )
    version: Literal[1] = documented(VERSION, "Version of the spec's form.", VERSION)
    name: Annotated[str, AfterValidator(_is_name)] = documented(
        "tfcluster",
        "Name of the runs; default: the file's name without its ending.",
        "resnet-4gpu",
        shown_default=None,
    )
    cluster: Cluster = required(
        "Required. The tasks of each job: how many, or where each is.", {"worker": 2}
    )
    job: Job = required("Required. What every task runs.", {"script": "train.py"})
    # The defaults are constructed, not validated: nothing is built yet.
    strategy: Strategy = documented(
        Strategy.model_construct(), "How replicas are kept equal.", {"communication": "RING"}
    )
    keras: Keras = documented(
        Keras.model_construct(), "Keras settings.", {"precision": "mixed_bfloat16"}
    )
    runtime: Runtime = documented(
        Runtime.model_construct(), "Where and with what tasks run.", {"backend": "local"}
    )
    resources: Resources = documented(
        Resources.model_construct(), "What each task may use of its node.", {"gpus": 1}
    )
    supervision: Supervision = documented(
        Supervision.model_construct(), "Deadlines and restarts.", {"run_deadline_s": "12h"}
    )
    checkpoints: Checkpoints = documented(
        Checkpoints.model_construct(), "What is gathered, and where it goes.", {"keep": 5}
    )

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        RulesBroken.check(
            (
                *self._about_hosts(),
                *self._about_containers(),
                *self._about_strategy(),
                *self._about_secrets(),
                *self._about_counts(),
                *self._about_own_steps(),
                *find_mistakes(self),
            )
        )
        return self

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host parts of the written addresses, each once, in order."""
        tasks = (self.cluster.get(job, ()) for job in JOBS)
        entries = (entry for listed in tasks if not isinstance(listed, int) for entry in listed)
        return tuple(dict.fromkeys(entry.host for entry in entries))

    def _about_containers(self) -> Iterator[Mistake]:
        if self.runtime.backend != "docker":
            return
        for (job, index), at in placed(self.cluster):
            if not at.is_loopback:
                message = f"{at} is another machine's address, and docker starts all tasks itself"
                fix = f'write how many: "{job}": {index + 1}, or another backend'
                yield Mistake(("cluster", job, index), message, fix)

    def _about_hosts(self) -> Iterator[Mistake]:
        if self.runtime.backend == "docker":
            names = tuple(f"{job}-{n}" for job in JOBS for n in range(count(self.cluster, job)))
            known = {*names, "*"}
        else:
            names = self.hosts
            known = {*names, "*"}
            if any(isinstance(tasks, int) for tasks in self.cluster.values()):
                known.add("127.0.0.1")
        for key in self.runtime.hosts:
            if key not in known:
                where = f"one of {', '.join(names)}, or" if names else "127.0.0.1, or"
                message = f"no address of the cluster has the host {shorten(key)}"
                yield Mistake(("runtime", "hosts", key), message, f'write {where} "*"', on_key=True)

    def _about_strategy(self) -> Iterator[Mistake]:
        name, has_ps = self.strategy.name, "ps" in self.cluster
        if name == "parameter_server" and not has_ps:
            fix = 'add "ps" and "chief" to the cluster, or choose another strategy'
            yield Mistake(("strategy", "name"), "parameter_server needs ps tasks", fix)
        if name in ("multi_worker_mirrored", "mirrored", "tpu") and has_ps:
            fix = 'leave the name out (parameter_server is the default with ps), or remove "ps"'
            yield Mistake(("strategy", "name"), f"{name} has no use for ps tasks", fix)
        if has_ps:
            yield from self._about_parameter_servers()
        if name == "tpu" and count_trainers(self.cluster) > 1:
            fix = 'write "cluster": {"worker": 1}: one process drives all cores of a TPU'
            yield Mistake(("strategy", "name"), "tpu has no use for several workers", fix)

    def _about_parameter_servers(self) -> Iterator[Mistake]:
        """A chief hands out the steps; in scripts of TensorFlow 1 worker:0 is the chief."""
        has_own = self.strategy.name == "default"
        missing = [job for job in ("chief", "worker") if job not in self.cluster]
        if missing == ["chief"] and has_own:
            return
        if missing:
            names = " and ".join(missing)
            fix = f'add {names}, for example {{"chief": 1, "worker": 2, "ps": 1}}'
            if missing == ["chief"]:
                fix += '; for a script whose chief is worker:0, "strategy": {"name": "default"}'
            message = f"parameter servers need a chief and workers: no {names}"
            yield Mistake(("cluster", "ps"), message, fix)

    def _about_secrets(self) -> Iterator[Mistake]:
        for index, name in enumerate(self.job.secrets):
            if self.job.env.get(name) is not None:
                fix = "leave it out of job.env, and set it where tfcluster is started"
                message = f"the value of the secret {name} is written in job.env"
                yield Mistake(("job", "secrets", index), message, fix)

    def _about_own_steps(self) -> Iterator[Mistake]:
        tasks = [f"{job}:{n}" for job in JOBS for n in range(count(self.cluster, job))]
        jobs = dict.fromkeys(task.partition(":")[0] for task in tasks)
        for key in self.job.per_task:
            if key not in jobs and key not in tasks:
                some = ", ".join([*jobs, *tasks][:_NAMED])
                message = f"the cluster has no {key}"
                yield Mistake(("job", "per_task", key), message, f"it has {some}", on_key=True)

    def _about_counts(self) -> Iterator[Mistake]:
        least, trainers = self.supervision.min_workers, count_trainers(self.cluster)
        if least is not None and least > trainers:
            fix = f"write 1 to {trainers}"
            message = f"min_workers is {least}, the cluster has {trainers}"
            yield Mistake(("supervision", "min_workers"), message, fix)
        lists: list[tuple[Path, object]] = [(("resources", "gpus"), self.resources.gpus)]
        for job, tasks in self.cluster.items():
            entries = () if isinstance(tasks, int) else tasks
            lists += (
                (("cluster", job, index, "gpus"), entry.gpus) for index, entry in enumerate(entries)
            )
        for path, listed in lists:
            if isinstance(listed, tuple) and len(set(listed)) < len(listed):
                yield Mistake(path, "a GPU is listed twice", "list each index once")

    @property
    def task_count(self) -> int:
        """All processes, the evaluator included."""
        return count_tasks(self.cluster)


def _build() -> None:
    """The validators of all sections at once: each alone would build its own part again.

    Without plugins of pydantic: one that lies in the same environment (logfire) would be imported
    by every command that reads a spec, and has nothing to say about it.
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


_build()
