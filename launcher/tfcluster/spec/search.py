"""What a KerasTuner search (``"kind": "tuner"``) asks of the rest of a spec."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfcluster.spec.fields import Finding

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec

SET_BY_US = ("KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT", "KERASTUNER_TUNER_ID")
_EXAMPLE = 'for example {"chief": 1, "worker": 2}'


def find_mistakes(spec: ClusterSpec) -> Iterator[Finding]:
    """Nothing where the job is no search: then KerasTuner's variables are the user's own."""
    if spec.job.kind == "tuner":
        yield from _about_cluster(spec)
        yield from _about_variables(spec)


def _about_cluster(spec: ClusterSpec) -> Iterator[Finding]:
    for job in ("ps", "evaluator"):
        if job in spec.cluster:
            message = f"a search has no use for {job}: its tasks are a chief and tuners"
            yield Finding(("cluster", job), message, f"leave it out, {_EXAMPLE}", on_key=True)
    if "worker" not in spec.cluster:
        yield Finding(("cluster",), "a search needs tuners: no worker", f"add them, {_EXAMPLE}")
    elif "chief" not in spec.cluster and spec.task_count > 1:
        message = "several tuners need a chief that hands out the trials"
        yield Finding(("cluster",), message, f"add one, {_EXAMPLE}")


def _about_variables(spec: ClusterSpec) -> Iterator[Finding]:
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
                yield Finding((*path, name), message, "leave it out", on_key=True)
