"""The seam of all formats: what is exported, how it is planned, and what a format returns."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfcluster.discovery import planning
from tfcluster.errors import UsageError
from tfcluster.export import FORMATS
from tfcluster.kinds import ALLOCATIONS
from tfcluster.plans.build import make_plan
from tfcluster.plans.secrets import find_values, is_secret
from tfcluster.preflight import rules

if TYPE_CHECKING:
    from tfcluster.plans.context import PlanContext
    from tfcluster.plans.plan import Plan
    from tfcluster.spec import PlanOptions
    from tfcluster.spec.model import ClusterSpec

WORKERS = "/opt/tfcluster"
"""The folder above `workers/tfcluster_workers` where tfcluster does not send it: in the image that
`tfcluster build --join` makes."""


@dataclass(frozen=True, slots=True)
class Request:
    """A command line of `tfcluster export`, and who typed it where."""

    spec: str | None
    options: PlanOptions
    file: str
    """The name of the file to write; empty for stdout."""
    folder: str
    """The folder of the file, absolute, to which the paths in it may be relative."""
    user: str
    """The caller's ``UID:GID``."""
    tfcluster: tuple[str, ...]
    """The command that starts this tfcluster in any folder."""
    environ: Mapping[str, str]

    def file_word(self, default: str) -> str:
        """Return the file's name for a shell, or what stands for one that a comment cannot hold."""
        name = self.file or default
        return shlex.quote(name) if name.isprintable() else "FILE"


@dataclass(frozen=True, slots=True)
class Subject:
    """The plan to export, with the spec and the facts that it was made from."""

    spec: ClusterSpec
    plan: Plan
    context: PlanContext
    path: Path | None
    """The file of the spec; None: standard input."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The text of a file, and what its user must provide, in sentences."""

    text: str
    needs: tuple[str, ...]


def export(name: str, request: Request) -> Exported:
    """Return the spec in the format `name`.

    Raises UsageError, with SpecError, if the spec does not fit the format's backend, and
    SetupError for a plan that `up` would refuse as well.
    """
    module: Any = import_module(FORMATS[name])
    subject = _plan(module.BACKEND, f"--format {name}", request)
    exported: Exported = module.render(subject, request)
    for value in find_values(subject.plan):
        if value in exported.text:
            message = "the value of a secret is also in an argument or a variable that is no secret"
            raise UsageError(message, fix="pass it in a variable that job.secrets lists")
    return exported


def _plan(backend: str, option: str, request: Request) -> Subject:
    """Plan for the backend on a machine of which nothing is known: neither cores nor GPUs."""
    fields = {option: ("runtime.backend", backend)}
    loaded = planning.load(request.spec, replace(request.options, fields=fields))
    job = loaded.spec.job
    secrets = {*job.secrets} | {
        name
        for name, value in job.env.items()
        if value is None and is_secret(name, named=job.secrets, shown=job.not_secret)
    }
    # Nobody needs secrets for the export, and an allocation around this process is not the file's.
    environ = dict.fromkeys(secrets, "") | dict(request.environ)
    for name in ALLOCATIONS:
        environ.pop(name, None)
    planned = planning.plan(loaded, request.options, environ=environ)
    # The nodes are known now: plan again with the package's folder on each, and no machine's cores.
    bundles = dict.fromkeys((node.name for node in planned.plan.nodes), WORKERS)
    context = replace(planned.context, backends_here=frozenset(), bundles=bundles)
    spec, path = planned.spec, planned.plan.spec_path
    args, sets = request.options.args, loaded.set_paths
    plan = make_plan(spec, context, spec_path=path, args=args, set_paths=sets)
    rules.require_plan(replace(planned, plan=plan, context=context))
    return Subject(spec, plan, context, loaded.path)


def secret_names(plan: Plan) -> list[str]:
    """Return the names of the secrets that tasks or prepare steps need."""
    commands = (*(task.command for task in plan.tasks), *plan.prepare.values())
    return sorted({var.name for command in commands for var in command.env if var.secret})


def bullets(sentences: Iterable[str]) -> Iterator[str]:
    """Yield the sentences as a list in comments; one line may be longer for a path."""
    for sentence in sentences:
        yield from textwrap.wrap(
            sentence,
            96,
            initial_indent="# - ",
            subsequent_indent="#   ",
            break_long_words=False,
            break_on_hyphens=False,
        )
