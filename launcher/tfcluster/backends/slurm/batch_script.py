"""The batch script of a run: what `up --backend slurm` submits and `export` prints (pure)."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tfcluster.backends.jobs import Submission
from tfcluster.rundir.paths import RunPaths

if TYPE_CHECKING:
    from tfcluster.spec.sections import Slurm

COMMENT = "tfcluster:"
"""The beginning of the comment of a run's job; the run folder follows."""
NEXT, NEXT_LINE = ":", "hetjob"
"""The word between the options of two components of a job, on a command line and in a script
(slurm.schedmd.com/heterogeneous_jobs.html)."""
NOT_SHARED = SETUP_FAILED = 3
_CORES = re.compile(r"--(?:exclusive|cpus-per-|cores-per-|mincpus)|-c")
"""The options with which a task gets more than one core."""
_SAVING_SHARE = 4
"""A short job has at least three parts of four of its time to train."""
_BODY = """\
if ! [ -f {state} ]; then
    echo "tfcluster: $(hostname) does not see" {folder}": it must be on a file system" \\
        "that login node and nodes share (TFCLUSTER_HOME)" >&2
    exit {code}
fi
rm -f {failure}
trap '' USR1  # Slurm's warning of the end, which may come before the coordinator can handle it
exec {command}
"""


def format_script(job: Submission) -> str:
    """Return the script that runs the coordinator of a submitted run."""
    settings, paths = job.runtime.slurm, RunPaths(job.folder)
    body = _BODY.format(
        state=shlex.quote(str(paths.state)),
        failure=shlex.quote(str(paths.script_failure)),
        folder=shlex.quote(str(job.folder)),
        code=NOT_SHARED,
        command=shlex.join([os.path.expanduser(settings.python or job.argv[0]), *job.argv[1:]]),
    )
    # What is not printable, such as a line break in a path, is on sbatch's command line only.
    options = (option for option in job_options(job) if option.isprintable())
    lines = (NEXT_LINE if option == NEXT else shlex.quote(option) for option in options)
    return "".join(
        [
            f"{first_line(settings)}\n",
            *(f"#SBATCH {line}\n" for line in lines),
            *format_setup(settings, failure=paths.script_failure),
            body,
        ]
    )


def first_line(settings: Slurm) -> str:
    """Return the script's shell: with lines of the user's a login shell, which knows modules."""
    return "#!/bin/bash -l" if settings.setup else "#!/bin/sh"


def format_setup(settings: Slurm, *, failure: Path | None = None) -> Iterator[str]:
    """Yield the user's lines; one that fails ends the script with a message that names it.

    `failure`: a file that gets the message, too.
    """
    for line in settings.setup:
        say = f"echo {shlex.quote(f'tfcluster: runtime.slurm.setup fails: {line}')}"
        note = f"{say} >{shlex.quote(str(failure))}; " if failure else ""
        yield f"{line}\n[ $? = 0 ] || {{ {say} >&2; {note}exit {SETUP_FAILED}; }}\n"


def job_options(job: Submission) -> list[str]:
    """Return all options of sbatch for a submitted run; its own come last, where they count.

    `NEXT` is between those of two components.
    """
    log = str(job.folder).replace("%", "%%")
    first, *others = parts(job)
    options = [
        *sbatch_options(first),
        f"--job-name={job.run_id}",
        f"--comment={COMMENT}{job.folder}",
        f"--output={log}/coordinator.log",
        "--chdir=/",
    ]
    for part, component in zip(others, job.components[1:], strict=False):
        # Its name is no run's: of all components, only the first one has the run's script.
        name = f"--job-name={job.run_id}+{component.group or 'rest'}"
        options += [NEXT, *sbatch_options(part, is_first=False), name]
    return options


def parts(job: Submission) -> list[Submission]:
    """Return the components of a heterogeneous job, each as a job of its own; else `job`."""
    return [
        replace(
            job,
            runtime=job.runtime.of_role(component.group),
            nodes=component.nodes,
            tasks_per_node=component.tasks_per_node,
            without_gpu=component.without_gpu,
            components=(component,),
        )
        for component in job.components
    ] or [job]


def section_of(part: Submission) -> str:
    """Return the section of the spec with the settings of a part of a job."""
    role = part.components[0].group if part.components else ""
    return f"runtime.roles.{role.replace('-', '_')}.slurm" if role else "runtime.slurm"


def field_of(part: Submission, name: str) -> str:
    """Return the field of the spec with the setting `name` of a part of a job."""
    group = part.components[0].group if part.components else ""
    has_own = part.runtime.has_own("slurm", group, name)
    return f"{section_of(part) if has_own else 'runtime.slurm'}.{name}"


def sbatch_options(job: Submission, *, is_first: bool = True) -> list[str]:
    """Return the options of sbatch for the nodes of a run, and for the ends it can live with.

    `is_first`: for the component with the script, which is signalled.
    """
    named = named_options(job)
    if not is_first:
        del named["signal"], named["open-mode"]
    return [*named.values(), *job.runtime.slurm.extra]


def named_options(job: Submission) -> dict[str, str]:
    """Return name → option of sbatch, without those of `runtime.slurm.extra`."""
    return _resources(job) | _ends(job)


def resource_options(job: Submission) -> list[str]:
    """Return the options of salloc for nodes like those of a run."""
    options: list[str] = []
    for part in parts(job):
        options += [NEXT, *_resources(part).values(), *part.runtime.slurm.extra]
    return options[1:]


def _resources(job: Submission) -> dict[str, str]:
    settings, each = job.runtime.slurm, job.tasks_per_node
    wanted: Sequence[tuple[str, object]] = (
        ("partition", settings.partition),
        ("account", settings.account),
        ("qos", settings.qos),
        ("time", _minutes(settings)),
        ("nodes", job.nodes),
        ("ntasks-per-node", each),
        ("gpus-per-node", settings.gpus_per_task and gpus_per_node(job)),
        ("cpus-per-task", settings.cpus_per_task),
        ("mem", settings.mem),
        ("constraint", settings.constraint),
        ("reservation", settings.reservation),
    )
    return {name: f"--{name}={value}" for name, value in wanted if value is not None}


def gpus_per_node(job: Submission) -> int:
    """Return the number of GPUs that the tasks of a node need together."""
    return (job.runtime.slurm.gpus_per_task or 0) * (job.tasks_per_node - job.without_gpu)


def explain_cores(job: Submission) -> str:
    """Return a sentence about the cores of each task where the spec leaves them to Slurm, or ""."""
    settings = job.runtime.slurm
    if settings.cpus_per_task is not None or any(map(_CORES.match, settings.extra)):
        return ""
    return (
        "runtime.slurm.cpus_per_task is not set: each task gets one core, unless the partition has"
        " another default"
    )


def _ends(job: Submission) -> dict[str, str]:
    limit_s = job.runtime.slurm.time or math.inf
    save_s = min(job.save_s, limit_s / _SAVING_SHARE)
    options = {
        "requeue": "--requeue",  # a preempted run goes on in the same folder
        "open-mode": "--open-mode=append",
        "signal": f"--signal=B:USR1@{save_s:.0f}",  # the coordinator saves before the time limit
    }
    if job.may_shrink:
        # The rest of the job goes on without a lost node. A job that loses its first node then
        # runs on without its script, so all others leave the requeue to Slurm.
        options["no-kill"] = "--no-kill"
    return options


def _minutes(settings: Slurm) -> int | None:
    return None if settings.time is None else max(1, -(-int(settings.time) // 60))
