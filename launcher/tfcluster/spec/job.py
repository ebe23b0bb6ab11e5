"""The spec's `job`: what every task runs, and in which surroundings."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tfcluster.spec.fields import (
    Env,
    Keyed,
    Listed,
    Mistake,
    Name,
    RulesBroken,
    Section,
    documented,
    shorten,
    wrong,
)

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def _is_module(value: str) -> str:
    if not _MODULE.fullmatch(value):
        fix = "write it as for python -m: package.module, without .py"
        raise wrong(f"{shorten(value)} is not the name of a module", fix)
    return value


Text = Annotated[str, Field(min_length=1)]
Module = Annotated[str, AfterValidator(_is_module)]


def _starts_beside_the_first(given: Sequence[str]) -> Iterator[Mistake]:
    for name in given[1:]:
        message = f"both {given[0]} and {name} are given"
        yield Mistake((name,), message, f"keep one of {' and '.join(given)}", on_key=True)


class Step(Section):
    """Something to run: exactly one of `script`, `module`, `command`."""

    script: Text | None = documented(None, "Python script, relative to `job.workdir`.", "train.py")
    module: Module | None = documented(
        None, "Python module, run as `python -m` does.", "trainer.main"
    )
    command: Listed[Text] | None = documented(
        None, "Any program, as a list: name and arguments.", ["bash", "train.sh"], min_length=1
    )
    args: Listed[str] = documented(
        (), "Arguments after the script, module or command.", ["--epochs", "30"], shown_default=[]
    )

    @model_validator(mode="after")
    def _has_one_start(self) -> Self:
        RulesBroken.check(self._count_starts())
        return self

    def _count_starts(self) -> Iterator[Mistake]:
        given = [name for name in ("script", "module", "command") if getattr(self, name)]
        if not given:
            fix = 'add for example "script": "train.py"'
            yield Mistake((), "nothing to run: no script, module or command", fix)
        yield from _starts_beside_the_first(given)


class Prepare(Step):
    """Runs once per node before the gang, without TF_CONFIG; its failure ends the run."""


_TASK_KEY = re.compile(r"(chief|worker|ps|evaluator)(:(0|[1-9]\d{0,4}))?", re.ASCII)
_JOBS = ("chief", "worker", "ps", "evaluator")


def _is_task_key(value: str) -> str:
    if not _TASK_KEY.fullmatch(value):
        job, colon, index = value.partition(":")
        near = difflib.get_close_matches(job.lower(), _JOBS, n=1)
        if near and (index.isdecimal() or not colon):
            fix = f'did you mean "{near[0]}{colon}{index}"?'
        else:
            fix = f'write one of {", ".join(_JOBS)}, or one task of them: "worker:1"'
        raise wrong(f"{shorten(value)} names no job and no task", fix)
    return value


TaskKey = Annotated[str, AfterValidator(_is_task_key)]
"""All tasks of a job (``ps``), or one of them (``worker:1``)."""


class OwnStep(Section):
    """What some tasks run instead; their own program gets no `job.args` and no ARGS after `--`."""

    script: Text | None = documented(None, "Their own script, relative to `job.workdir`.", "ps.py")
    module: Module | None = documented(None, "Their own Python module.", "tfcluster_workers.server")
    command: Listed[Text] | None = documented(
        None, "Their own program, as a list.", ["bash", "serve.sh"], min_length=1
    )
    args: Listed[str] | None = documented(
        None,
        "Arguments instead of `job.args`; null: those of the job. ARGS after `--` on the command "
        "line follow them unless the entry has a program of its own.",
        ["serve", "--port", "0"],
    )

    @property
    def has_program(self) -> bool:
        return bool(self.script or self.module or self.command)

    @model_validator(mode="after")
    def _has_at_most_one_start(self) -> Self:
        given = [name for name in ("script", "module", "command") if getattr(self, name)]
        RulesBroken.check(_starts_beside_the_first(given))
        return self


class Job(Step):
    """What every task runs."""

    workdir: Text = documented(
        ".", "The code's folder, relative to the spec; every task starts there.", ".."
    )
    env: Env = documented(
        {},
        "Environment variables of all tasks; null takes the launcher's value.",
        {"RUN_GROUP": None, "SEED": "7"},
    )
    env_file: Text | None = documented(
        None, "File of NAME=VALUE lines, relative to the spec; `env` wins over it.", ".env"
    )
    secrets: Listed[Name] = documented(
        (),
        "Variables taken from the launcher's environment, never shown or stored.",
        ["WANDB_API_KEY"],
        shown_default=[],
    )
    not_secret: Listed[Name] = documented(
        (),
        "Variables that are shown although their names end in KEY, TOKEN, PASSWORD or the like.",
        ["PAD_TOKEN"],
        shown_default=[],
    )
    include: Listed[Text] = documented(
        (),
        "Globs of files that a remote copy of the workdir needs although git ignores them or they"
        " look like credentials.",
        ["data/*.csv"],
        shown_default=[],
    )
    kind: Literal["training", "tuner", "plain"] = documented(
        "training",
        "`training`: one gang. `tuner`: KerasTuner's chief and tuners. "
        "`plain`: the tasks form no cluster.",
        "plain",
    )
    hooks: Literal["auto", "off"] = documented(
        "auto", "`off` starts plain `python script`, without progress and error reports.", "off"
    )
    prepare: Prepare | None = documented(
        None,
        "Run once per node before the tasks, without TF_CONFIG, with its own log.",
        {"script": "prepare.py"},
    )
    per_task: Keyed[TaskKey, OwnStep] = documented(
        {},
        "What single jobs or tasks run instead: other arguments, or a program of their own. An "
        "entry for `worker:1` wins over one for `worker`.",
        {"ps": {"args": ["serve"]}, "worker:1": {"args": ["train", "--verbose"]}},
    )
