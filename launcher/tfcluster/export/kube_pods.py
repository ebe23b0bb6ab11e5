"""The format `kubernetes`: the objects that `up --backend kubernetes` creates, as YAML.

Only what a run chooses for itself is missing: its id (here the spec's name), its token, the code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import yaml

from tfcluster import __version__
from tfcluster.backends.kubernetes import run_objects, run_pods
from tfcluster.backends.kubernetes.run_objects import PodRun
from tfcluster.export.request import Exported, Request, Subject, bullets, secret_names

BACKEND: Final = "kubernetes"


def render(subject: Subject, request: Request) -> Exported:
    """Return the objects of a plan for Kubernetes."""
    run = PodRun(subject.plan.name, subject.plan, subject.spec.runtime)
    needs = tuple(_needs(run))
    lines = [
        f"# {run.run_id}: the objects of `tfcluster up --backend kubernetes`, to read or compare:",
        "#",
        f"#   kubectl diff -f {request.file_word('run.yaml')}",
        "#",
        f"# Written by `tfcluster export --format kubernetes` (tfcluster {__version__}). It needs:",
        *bullets(needs),
        "# `up` makes them in this order, as parts of the Job, with a run id of its own.",
    ]
    documents = yaml.dump_all(_objects(run), Dumper=_Dumper, sort_keys=False, explicit_start=True)
    return Exported("\n".join([*lines, documents]), needs)


def _objects(run: PodRun) -> list[dict[str, Any]]:
    """Return the objects of a run, without its Secrets."""
    template = run_pods.coordinator_template(run, secrets=secret_names(run.plan))
    group = run_objects.pod_group(run)
    objects = [
        *run_objects.account_objects(),
        run_objects.coordinator_job(run, template),
        run_objects.service(run),
        run_objects.network_policy(run),
        *([group] if group else []),
        *map(_with_pods, run_pods.stateful_sets(run)),
    ]
    if (namespace := run.settings.namespace) is not None:
        for manifest in objects:
            manifest["metadata"] = {**manifest["metadata"], "namespace": namespace}
    return objects


def _with_pods(stateful_set: dict[str, Any]) -> dict[str, Any]:
    """Return a StatefulSet with the number of pods that the coordinator gives it."""
    replicas = int(stateful_set["metadata"]["annotations"][run_objects.TASKS])
    return {**stateful_set, "spec": {**stateful_set["spec"], "replicas": replicas}}


def _needs(run: PodRun) -> Iterator[str]:
    keys = [f"{run_objects.ENV_KEY}{name}" for name in secret_names(run.plan)]
    fixed = [run_objects.TOKEN, run_objects.COORDINATOR_TOKEN, run_objects.EXEC_SERVER]
    listed = ", ".join([*fixed, *keys])
    yield f"the Secret {run.name} with the keys {listed}, which `up` makes"
    package = run_objects.package_name(run, 0)
    yield f"the Secret {package} with spec and code, which `up` makes, and more for much code"
    for image in dict.fromkeys([*run.plan.images, run.coordinator_image]):
        yield f"the image {image}, which the nodes can pull or already have"


class _Dumper(yaml.SafeDumper):
    """Writes equal values in full, not as references to the first."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
