"""The format `kubernetes`: the objects that `up --backend kubernetes` creates, as YAML.

Only what a run chooses for itself is missing: its id (here the spec's name), its token, the code.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import yaml

from tfcluster import __version__
from tfcluster.backends.kubernetes import early_start, run_objects, run_pods
from tfcluster.backends.kubernetes.run_objects import PodRun
from tfcluster.export.request import Exported, Request, Subject, bullets, secret_names
from tfcluster.plans.plan import Plan

BACKEND: Final = "kubernetes"


def render(subject: Subject, request: Request) -> Exported:
    """Return the objects of a plan for Kubernetes."""
    run = run_of(subject)
    needs = tuple(_needs(run))
    lines = [
        f"# {run.run_id}: the objects of `tfcluster up --backend kubernetes`, to read or compare:",
        "#",
        f"#   kubectl diff -f {quoted_file(request, 'run.yaml')}",
        "#",
        *written_by("kubernetes", needs),
        "# `up` makes them in this order, as parts of the Job, with a run id of its own.",
    ]
    return Exported(yaml_text(lines, all_objects(run)), needs)


def run_of(subject: Subject) -> PodRun:
    """Return the run to export; its id is the name of the spec."""
    return PodRun(subject.plan.name, subject.plan, subject.spec.runtime)


def all_objects(run: PodRun) -> list[dict[str, Any]]:
    """Return the objects of a run, without its Secrets."""
    template = run_pods.coordinator_template(run, secrets=secret_names(run.plan))
    group = run_objects.pod_group(run)
    objects = [
        *run_objects.account_objects(),
        run_objects.coordinator_job(run, template),
        run_objects.service(run),
        run_objects.network_policy(run),
        *([group] if group else []),
        *(run_pods.task_pod(run, node.name, 1) for node in run.plan.nodes),
    ]
    if (namespace := run.settings.namespace) is not None:
        for each in objects:
            each["metadata"] = {**each["metadata"], "namespace": namespace}
    return objects


def yaml_text(comment: Iterable[str], objects: Sequence[dict[str, Any]]) -> str:
    """Return a file of YAML with a comment at its top."""
    documents = yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, explicit_start=True)
    return "\n".join([*comment, documents])


def quoted_file(request: Request, default: str) -> str:
    """Return the file's name for a command line."""
    name = request.file or default
    return shlex.quote(name) if name.isprintable() else "FILE"


def written_by(name: str, needs: Sequence[str]) -> Iterator[str]:
    """Yield the lines that say which command wrote the file, and what it needs."""
    yield f"# Written by `tfcluster export --format {name}` (tfcluster {__version__}). It needs:"
    yield from bullets(needs)


def image_needs(images: Iterable[str]) -> Iterator[str]:
    """Yield where the images must be."""
    for image in dict.fromkeys(images):
        yield f"the image {image}, which the nodes can pull or already have"


def _needs(run: PodRun) -> Iterator[str]:
    keys = [f"{run_objects.ENV_KEY}{name}" for name in secret_names(run.plan)]
    fixed = [run_objects.TOKEN, run_objects.COORDINATOR_TOKEN, run_objects.SEAT]
    fixed += early_start.FILES if early_start.is_used(run) else ()
    listed = ", ".join([*fixed, *keys])
    yield f"the Secret {run.name} with the keys {listed}, which `up` makes"
    package = run_objects.package_name(run, 0)
    yield f"the Secret {package} with spec and code, which `up` makes, and more for much code"
    yield from image_needs(_images(run.plan, run.settings.coordinator.image))


def _images(plan: Plan, coordinator: str | None) -> Iterator[str]:
    yield from plan.images
    if coordinator is not None:
        yield coordinator


class _Dumper(yaml.SafeDumper):
    """Writes equal values in full, not as references to the first."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
