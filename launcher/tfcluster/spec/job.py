"""The spec's `job`: the program of each task, its arguments and its environment."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tfcluster.spec import DATA_JOBS, JOBS, shorten
from tfcluster.spec.fields import (
    Env,
    Keyed,
    Listed,
    Mistake,
    Name,
    RulesBroken,
    Section,
    documented,
    field_error,
    matching,
)

UNKNOWN_PROGRAM = "REPLACE-WITH-THE-ENTRYPOINT-OF-THE-IMAGE"
"""The command that `tfcluster import` writes where only the image knows the program."""
Text = Annotated[str, Field(min_length=1)]
Module = Annotated[
    str,
    matching(
        re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*"),
        "a module name",
        "write it as for `python -m`: package.module, without .py",
    ),
]


def _check_programs(step: Section, *, needs_one: bool) -> Iterator[Mistake]:
    given = [name for name in ("script", "module", "command") if getattr(step, name)]
    if needs_one and not given:
        fix = 'add one, for example "script": "train.py"'
        yield Mistake((), "nothing to run: no script, module or command", fix)
    for name in given[1:]:
        message = f"both {given[0]} and {name} are given"
        yield Mistake((name,), message, f"keep one of {' and '.join(given)}", on_key=True)


class Step(Section):
    """A program to run: exactly one of `script`, `module`, `command`."""

    script: Text | None = documented(
        None,
        "Python script, or for tasks a notebook (`.ipynb`), relative to `job.workdir`.",
        "train.py",
    )
    module: Module | None = documented(
        None, "Python module, run as `python -m` does.", "trainer.main"
    )
    command: Listed[Text] | None = documented(
        None, "Any program, as a list: name, then arguments.", ["bash", "train.sh"], min_length=1
    )
    args: Listed[str] = documented(
        (), "Arguments after the script, module or command.", ["--epochs", "30"]
    )

    @model_validator(mode="after")
    def _check_program(self) -> Self:
        RulesBroken.check(_check_programs(self, needs_one=True))
        return self


class Prepare(Step):
    """A step run once per node before the gang, without TF_CONFIG; its failure ends the run."""


_SCRIPTED = tuple(job for job in JOBS if job not in DATA_JOBS)
"""The jobs that run the user's program."""
_TASK_KEY = re.compile(rf"({'|'.join(_SCRIPTED)})(:(0|[1-9]\d{{0,4}}))?", re.ASCII)


def _check_task_key(value: str) -> str:
    if not _TASK_KEY.fullmatch(value):
        job, colon, index = value.partition(":")
        near = difflib.get_close_matches(job.lower(), _SCRIPTED, n=1)
        if near and (index.isdecimal() or not colon):
            fix = f'did you mean "{near[0]}{colon}{index}"?'
        else:
            fix = f'write one of {", ".join(_SCRIPTED)}, or a task such as "worker:1"'
        raise field_error(f"{shorten(value)} is neither a job nor a task", fix)
    return value


TaskKey = Annotated[str, AfterValidator(_check_task_key)]
"""The key of all tasks of a job (``ps``), or of one task (``worker:1``)."""


class TaskStep(Section):
    """Another program or other arguments for some tasks.

    A program of this entry gets neither `job.args` nor the ARGS after `--`.
    """

    script: Text | None = documented(
        None, "Another Python script or notebook, relative to `job.workdir`.", "ps.py"
    )
    module: Module | None = documented(None, "Another Python module.", "tfcluster_workers.server")
    command: Listed[Text] | None = documented(
        None, "Another program, as a list.", ["bash", "serve.sh"], min_length=1
    )
    args: Listed[str] | None = documented(
        None,
        "Arguments that replace `job.args`; null: `job.args`. ARGS after `--` on the command line "
        "are appended, unless the entry has its own program.",
        ["serve", "--port", "0"],
    )

    @property
    def has_program(self) -> bool:
        return bool(self.script or self.module or self.command)

    @model_validator(mode="after")
    def _check_program(self) -> Self:
        RulesBroken.check(_check_programs(self, needs_one=False))
        return self


class Job(Step):
    """The program that every task runs, its files and its environment."""

    workdir: Text = documented(
        ".", "Folder of the code, relative to the spec; every task starts in it.", ".."
    )
    env: Env = documented(
        {},
        "Environment variables of all tasks; null takes the value from the launcher's environment.",
        {"RUN_GROUP": None, "SEED": "7"},
    )
    env_file: Text | None = documented(
        None, "File of NAME=VALUE lines, relative to the spec; `env` overrides it.", ".env"
    )
    secrets: Listed[Name] = documented(
        (),
        "Variables taken from the launcher's environment, never shown or stored.",
        ["WANDB_API_KEY"],
    )
    not_secret: Listed[Name] = documented(
        (),
        "Variables that are not secret although their names end in KEY, TOKEN, PASSWORD and so on.",
        ["PAD_TOKEN"],
    )
    include: Listed[Text] = documented(
        (),
        "Globs of files to copy to remote hosts although git ignores them or they look like"
        " credentials.",
        ["data/*.csv"],
    )
    kind: Literal["training", "tuner", "plain"] = documented(
        "training",
        "`training`: one gang. `tuner`: KerasTuner's chief and tuners. "
        "`plain`: independent tasks without TF_CONFIG.",
        "plain",
    )
    hooks: Literal["auto", "off"] = documented(
        "auto", "`off`: run plain `python script`, without progress and error reports.", "off"
    )
    trackers: Literal["auto", "off"] = documented(
        "auto",
        "`auto`: where wandb or mlflow is installed, tasks get the variables by which a run is one "
        "group there, and a restarted task goes on with its entry, unless you set them. `off`: "
        "they get none.",
        "off",
    )
    prepare: Prepare | None = documented(
        None,
        "A program that runs once per node before the tasks, without TF_CONFIG, with its own log.",
        {"script": "prepare.py"},
    )
    per_task: Keyed[TaskKey, TaskStep] = documented(
        {},
        "Other arguments or another program for single jobs or tasks. An entry for `worker:1` "
        "overrides one for `worker`.",
        {"ps": {"args": ["serve"]}, "worker:1": {"args": ["train", "--verbose"]}},
    )
