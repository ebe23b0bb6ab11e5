"""The spec: the user's file, checked against a model and returned as a `ClusterSpec`.

The values below are light: start-up imports them without pydantic.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

FieldPath = tuple[str | int, ...]
"""The path of a value in a spec: ``("cluster", "worker", 0)``."""
JobName = Literal["chief", "worker", "ps", "data_worker", "data_dispatcher", "evaluator"]
DATA_JOBS: tuple[JobName, ...] = ("data_worker", "data_dispatcher")
"""The jobs of the tf.data service, whose program is tfcluster's own."""
JOBS: tuple[JobName, ...] = ("chief", "worker", "ps", *DATA_JOBS, "evaluator")
"""The job names, in the order of tables and logs."""
COMPANIONS: tuple[JobName, ...] = ("data_dispatcher", "evaluator")
"""The jobs whose task needs no node of its own: with other tasks it rides on the first one's."""
SPEC_NAMES = ("tfcluster.json", "tfcluster.jsonc", "tfcluster.yaml", "tfcluster.yml")
"""The files that a command without SPEC looks for; their endings are those of the formats."""
NOTEBOOK = ".ipynb"
PYTHON_ENDINGS = (".py", NOTEBOOK)
"""The endings of what runs as ``job.script``: a script, a notebook."""

TUNER_VARIABLES = ("KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT", "KERASTUNER_TUNER_ID")
"""The variables that KerasTuner reads; tfcluster sets them."""
COORDINATED = ("jax", "torch", "dtensor")
"""The strategies whose libraries take the other tasks from variables of their own, not TF_CONFIG.
"""


def file_name_of(task: str) -> str:
    """Return a task's name as files and hosts have it: ``worker-1``, ``data-worker-0``."""
    return task.replace(":", "-").replace("_", "-")


def shorten(value: object) -> str:
    """Return `repr(value)` for a message, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def mask_webhook(on_end: str) -> str:
    """Return `supervision.on_end` as it is shown: the path of a chat's webhook is its password."""
    url = re.match(r"https://(?:[^/?#]*@)?([^/?#]*)", on_end)
    return on_end if url is None else f"https://{url[1]}/…"


def run_name(stem: str, default: str = "tfcluster") -> str:
    """Return the name of a file or a module, made fit for a run and its folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:63] or default


@dataclass(frozen=True, slots=True)
class HostChoice:
    """The unparsed host options: hosts that replace the spec's, and those to include or exclude."""

    hosts: str | None = None
    """``--hosts``: ``gpu1,anna@gpu2:2``, or a file name."""
    hostfile: str | None = None
    """``--hostfile``: a file name."""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    workers: int | None = None
    """``run -n``: the number of slots to use; None: all."""


NO_CHOICE = HostChoice()


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The user's changes to a spec, and choices about its plan."""

    sets: tuple[str, ...] = ()
    """The ``a.b=c`` of ``--set``."""
    fields: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    """Another option → the dotted field that it sets, and the value; None: not given."""
    hosts: HostChoice = NO_CHOICE
    python: str | None = None
    """The Python of the tasks; None: the spec's, else the one that is found."""
    args: tuple[str, ...] = ()
    """Appended to ``job.args``."""
    env: Mapping[str, str | None] = field(default_factory=dict)
    """Variables of ``-e``; None: the value in the launcher's environment."""
    profile: str | None = None
    """The profile of the user's defaults to use besides `default`."""

    @property
    def touches_spec(self) -> bool:
        """True if something of the spec is changed."""
        values = (value for _, value in self.fields.values() if value is not None)
        is_changed = bool(self.sets or self.env) or self.profile is not None
        return is_changed or self.hosts != NO_CHOICE or any(values)


UNCHANGED = PlanOptions()


@dataclass(frozen=True, slots=True)
class UserDefault:
    """A field that the user's defaults set because the spec does not."""

    field: str
    """The dotted path."""
    value: str | None
    """The value as text; None for a variable, which may be secret."""
    profile: str
    file: str
    """The file with the profile, as messages show it."""


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """The user's choices about a run that are not in its spec."""

    detach: bool = False
    """The run continues without the process that starts it."""
    gathers: bool = True
    """False with ``--no-gather``."""
    keeps_files: bool = True
    """False if nobody needs what the tasks save: the runs of a scaling study."""
    prepares: bool = True
    """False with ``--no-prepare``."""
    runs_preflight: bool = True
    """False with ``--no-preflight``."""
    warm: bool = False
    """A process on this machine keeps the tasks' imports for the next run."""
    tensorboard: bool = False
    """TensorBoard serves the run's curves while the run lives."""
    metrics_file: str | None = None
    """The absolute path of a file that gets the run's state as metrics for Prometheus."""
    chaos: tuple[str, ...] = ()
    """The faults of ``--chaos``, as typed."""
