"""Options that users bring from other tools, or write in the wrong place: what to write instead."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

import click

from tfcluster.spec import PYTHON_ENDINGS

OTHER_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "-n": ("-n {}", "--set cluster.worker={}", "--tail {}"),
    **dict.fromkeys(
        ("-np", "--np", "--workers", "--num-workers", "--num_workers", "--nproc",
         "--nproc-per-node", "--nproc_per_node", "--num-processes", "--num_processes"),
        ("-n {}", "--set cluster.worker={}"),
    ),
    **dict.fromkeys(("--gpus", "--gpu", "--num-gpus"), ("--set resources.gpus={}",)),
    **dict.fromkeys(("--cpus", "--cpus-per-task"), ("--set resources.cpus={}",)),
    "--memory": ("--set resources.memory={}",),
    "--image": ("--set runtime.image={}",),
    "--network": ("--set runtime.network={}",),
    **dict.fromkeys(("-e", "--env", "--environment"), ("--set job.env.{}",)),
    **dict.fromkeys(("--workdir", "--working-dir", "--cwd", "-w"), ("--set job.workdir={}",)),
    **dict.fromkeys(("--partition", "-p"), ("--set runtime.slurm.partition={}",)),
    **dict.fromkeys(("--account", "-A"), ("--set runtime.slurm.account={}",)),
    "--qos": ("--set runtime.slurm.qos={}",),
    "--namespace": ("--set runtime.kubernetes.namespace={}",),
    "--context": ("--set runtime.kubernetes.context={}",),
    **dict.fromkeys(("--max-restarts", "--retries"), ("--set supervision.max_restarts={}",)),
    "--timeout": ("--set supervision.run_deadline_s={}",),
    "--strategy": ("--set strategy.name={}",),
    "--precision": ("--set keras.precision={}",),
    **dict.fromkeys(("--detached", "--background"), ("-d",)),
    **dict.fromkeys(("-f", "--file"), ("{}",)),
}  # fmt: skip
"""An option of torchrun, mpirun, docker, sbatch, kubectl … → what does the same here.

The first that the command has is meant; ``{}`` is the option's value.
"""


def options_of(command: click.Command) -> dict[str, click.Option]:
    """Return name → option of a command."""
    options = (each for each in command.params if isinstance(each, click.Option))
    return {name: option for option in options for name in option.opts}


def rewrite(args: Sequence[str], command: click.Command) -> str | None:
    """Return the command line `args` with the first option of another tool as it is written here.

    None without such an option. What follows ``--`` or a script is not ours.
    """
    known = options_of(command)
    for index, word in enumerate(args):
        if word == "--" or word.endswith(PYTHON_ENDINGS):
            return None
        name, equals, value = word.partition("=")
        forms = () if name in known else OTHER_OPTIONS.get(name, ())
        for form in (form.split() for form in forms):
            if form[0].startswith("-") and form[0] not in known:
                continue
            takes_next = "{}" in form[-1] and not equals
            if takes_next:
                value = args[index + 1] if index + 1 < len(args) else "VALUE"
            meant = [*form[:-1], form[-1].format(value)]
            return shlex.join(["tfcluster", *args[:index], *meant, *args[index + 1 + takes_next :]])
    return None


def misplaced(
    args: Sequence[str], command: click.Command, code: str
) -> tuple[list[str], list[str]]:
    """Split a script's arguments into options of `command` that its code lacks, and the rest."""
    known, ours, rest = options_of(command), list[str](), list[str]()
    words = iter(args)
    for word in words:
        name, equals, _ = word.partition("=")
        option = known.get(name)
        if option is None or _mentions(code, name):
            rest.append(word)
            continue
        ours.append(word)
        if not (option.is_flag or equals):
            ours += [value for value in [next(words, None)] if value is not None]
    return ours, rest


def _mentions(code: str, option: str) -> bool:
    """Return whether Python code may read an option: ``"-n"``, or a word ``hosts``."""
    bare = option.lstrip("-")
    if len(bare) == 1:
        return re.search(rf"""['"]-?{bare}['"]""", code) is not None
    return re.search(rf"\b{bare.replace('-', '[-_]')}\b", code) is not None
