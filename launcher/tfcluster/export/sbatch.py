"""The format `sbatch`: the script of a Slurm job, to be read and submitted by hand.

It asks for the nodes that `up --backend slurm` asks for; in the job, `up` finds and uses them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tfcluster import __version__
from tfcluster.backends.jobs import Submission, submission_of
from tfcluster.backends.slurm.batch_script import (
    NEXT_LINE,
    field_of,
    first_line,
    format_setup,
    named_options,
    parts,
)
from tfcluster.errors import UsageError
from tfcluster.export.request import Exported, Request, Subject, bullets, secret_names

BACKEND: Final = "slurm"
_WHY: Final = {
    "nodes": "as many as the tasks need",
    "ntasks-per-node": "the most tasks on one node; tfcluster starts them, with one srun per node",
    "requeue": "after a preemption or the failure of this node the job is queued again",
    "open-mode": "a requeued job appends to its log",
    "signal": "Slurm announces the end of the job's time; tfcluster then saves and stops",
    "no-kill": "a failed node does not end the job: supervision.min_workers lets the rest go on",
}
"""Option → why the script has it, if it is no field of the spec."""
_BODY: Final = """\
# Slurm's warning of the end of the job's time may come before up can handle it.
trap '' USR1
# In a job that was queued again, up goes on in the run of the first start.
exec {tfcluster} up {spec} \\
    {options} \\
    --name {name}-$SLURM_JOB_ID{args}
"""


def render(subject: Subject, request: Request) -> Exported:
    """Return the script of a plan for Slurm; raises UsageError for a spec from stdin."""
    if subject.path is None:
        fix = "save the spec, and name its file instead of -"
        raise UsageError("in the job, `up` reads the spec from its file", fix=fix)
    name, needs = subject.plan.name, tuple(_needs(subject, subject.path, request))
    lines = [
        first_line(subject.spec.runtime.slurm),
        f"# {name}: the job of `tfcluster up --backend slurm`, to be submitted by hand:",
        "#",
        f"#   sbatch {request.file_word(f'{name}.sbatch')}",
        "#",
        f"# Written by `tfcluster export --format sbatch` (tfcluster {__version__}). It needs:",
        *bullets(needs),
        "",
        *_options(subject),
        "",
        "".join(format_setup(subject.spec.runtime.slurm)) + _body(subject.path, request, name),
    ]
    return Exported("\n".join(lines), needs)


def _needs(subject: Subject, path: Path, request: Request) -> Iterator[str]:
    """Yield what the script's user must provide."""
    paths = f"{request.tfcluster[0]}, {path} and {subject.plan.workdir}"
    yield f"tfcluster, the spec and the code at the same paths on the nodes: {paths}"
    home = request.environ.get("TFCLUSTER_HOME", "~/.local/state/tfcluster")
    yield f"a folder for runs that the nodes share: {home} (TFCLUSTER_HOME)"
    for name in secret_names(subject.plan):
        yield f"the variable {name}, a secret, set where sbatch runs, which passes it on"


def _options(subject: Subject) -> Iterator[str]:
    """Yield a line for each option of sbatch, below one that says why it is there."""
    plan = subject.plan
    yield "# the job's name and log; %j is its id"
    yield f"#SBATCH --job-name={plan.name}"
    yield f"#SBATCH --output={plan.name}-%j.log"
    job = submission_of(plan, subject.spec.runtime, Path(plan.name))
    for number, part in enumerate(parts(job)):
        if number:
            yield f"# the nodes of {job.components[number].group or 'all other roles'}"
            yield f"#SBATCH {NEXT_LINE}"
        extra = (("extra", option) for option in part.runtime.slurm.extra)
        for name, option in (*named_options(part).items(), *extra):
            if not number or name not in ("signal", "open-mode"):
                yield f"# {_explain(part, name)}"
                yield f"#SBATCH {shlex.quote(option)}"


def _explain(part: Submission, name: str) -> str:
    if name == "gpus-per-node":
        return f"{field_of(part, 'gpus_per_task')} for each of them"
    return _WHY.get(name) or field_of(part, name.replace("-", "_"))


def _body(path: Path, request: Request, name: str) -> str:
    sets = [word for text in request.options.sets for word in ("--set", text)]
    python = ["--python", python] if (python := request.options.python) else []
    home = request.environ.get("TFCLUSTER_HOME")
    exported = f"export TFCLUSTER_HOME={shlex.quote(home)}\n" if home else ""
    return exported + _BODY.format(
        name=name[:50],
        tfcluster=shlex.join(request.tfcluster),
        spec=shlex.quote(str(path)),
        options=shlex.join(["--backend", BACKEND, *sets, *python]),
        args=f" -- {shlex.join(request.options.args)}" if request.options.args else "",
    )
