"""The spec's smaller sections: strategy, keras, runtime, resources, supervision, checkpoints."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticKnownError

from tfcluster import kinds
from tfcluster.kinds import AUTO, REGISTRY
from tfcluster.spec import JobName, file_name_of, shorten
from tfcluster.spec.cluster import Gpus
from tfcluster.spec.fields import (
    Deadline,
    Env,
    Keyed,
    Listed,
    Seconds,
    Section,
    documented,
    drop_x_keys,
    field_error,
    matching,
)
from tfcluster.spec.job import Text
from tfcluster.spec.kubernetes import Kubernetes, RolePods
from tfcluster.spec.network import Network, NetworkChoice

DEFAULT_IMAGE: Final = "tfcluster-worker:latest"
"""The image that `tfcluster build` makes and that containers use if the spec names none."""


Count = Annotated[int, Field(ge=1, le=1_000_000)]
_USER = matching(
    re.compile(r"[A-Za-z0-9_][\w.-]*(:[A-Za-z0-9_][\w.-]*)?", re.ASCII),
    "a user",
    'write for example "root" or "1000:1000"',
)
_SSH_DESTINATION = matching(
    re.compile("[^-].*", re.DOTALL),  # ssh would read an option: -oProxyCommand=… runs a program
    "a host",
    'write "host" or "user@host"',
)
_INTERFACE = re.compile(r"[\w.:@-]{1,15}", re.ASCII)
_HOST_PATTERN = re.compile(r"[A-Za-z\d]([\w.-]*[A-Za-z\d])?", re.ASCII)
_PORTS = re.compile(r"(\d{1,5})-(\d{1,5})", re.ASCII)
_NODE_MEMORY = matching(
    re.compile(r"\d{1,15}[kmgt]?", re.ASCII | re.IGNORECASE),
    "an amount of memory",
    'write for example "512m" or "64g"; "0" is all memory of a node',
)
"""The value of sbatch's --mem; 0 is all memory of a node."""
_MEMORY = matching(
    re.compile(r"[1-9]\d{0,15}[bkmg]?", re.ASCII | re.IGNORECASE),
    "an amount of memory",
    'write for example "512m" or "8g"',
)
"""A docker memory limit (docs.docker.com, resource constraints)."""


class Strategy(Section):
    """The distribution strategy: the library by which the tasks train together."""

    name: (
        Literal[
            "multi_worker_mirrored",
            "parameter_server",
            "mirrored",
            "tpu",
            "default",
            "jax",
            "torch",
            "dtensor",
        ]
        | None
    ) = documented(
        None,
        "Distribution strategy; null: `parameter_server` if the cluster has ps, `jax`, `torch` or "
        "`dtensor` if the script's imports and KERAS_BACKEND show it, else "
        "`multi_worker_mirrored`. With these three, tasks also get the variables of JAX and "
        "`keras.distribution`, of torch.distributed, or of DTensor.",
        "multi_worker_mirrored",
    )
    communication: Literal["AUTO", "RING", "NCCL"] = documented(
        "AUTO", "Algorithm that sums the gradients. NCCL needs GPUs; AUTO uses RING.", "NCCL"
    )
    bytes_per_pack: Annotated[int, Field(ge=0, le=2**40)] = documented(
        0, "Gradients are packed up to this size in bytes; 0 = TensorFlow decides.", 33554432
    )
    collective_timeout_s: Deadline | None = documented(
        None, "Timeout of one collective operation; null: none.", "10m"
    )


class Keras(Section):
    """Keras settings, for tasks that use `tfcluster_workers`."""

    version: Literal["auto", "2", "3"] = documented(
        "auto",
        "Keras version; `auto`: Keras 3 if tfcluster can patch it for several workers, else 2.",
        "2",
    )
    precision: Literal["float32", "float64", "mixed_float16", "mixed_bfloat16"] | None = documented(
        None, "Global dtype policy; null: the job decides.", "mixed_bfloat16"
    )
    steps_per_execution: Count | None = documented(
        None, "Batches per compiled call of `fit`; null: the job decides.", 16
    )


class Host(Section):
    """Settings of one host."""

    python: Text | None = documented(None, "Python of this host's tasks.", "/opt/tf/bin/python")
    data_dir: Text | None = documented(
        None, "Folder of the data sets (TFDS_DATA_DIR).", "/mnt/nfs/tfds"
    )
    ssh: Annotated[Text, _SSH_DESTINATION] | None = documented(
        None, "Destination for ssh; null: the host part of the address.", "anna@gpu1"
    )
    env: Env = documented(
        {}, "Environment variables of this host's tasks.", {"NCCL_SOCKET_IFNAME": "eth0"}
    )
    workdir: Text | None = documented(
        None, "Folder for each run's copy of the code; null: the cache folder.", "/scratch/anna"
    )


def _check_option(value: str) -> str:
    if not value.startswith("-"):
        fix = 'write it as on the command line of sbatch, for example "--exclusive"'
        raise field_error(f"{shorten(value)} is not an option of sbatch", fix)
    name = value.partition("=")[0]
    if value.startswith("-a") or (len(name) > 3 and "--array".startswith(name)):
        fix = "start one run for each value: docs/guides/slurm.md has a script"
        raise field_error("the job of a run cannot be an array", fix)
    if value.startswith("-W") or name in ("--wrap", "--test-only", "--wait"):
        raise field_error(f"{name} would not start the run's job", "leave it out")
    return value


def _check_line(value: str) -> str:
    if not value.isprintable():
        raise field_error(f"{shorten(value)} is not one printable line", "leave the rest out")
    return value


_Line = Annotated[Text, AfterValidator(_check_line)]


class Slurm(Section):
    """Options of the job of a run at Slurm; null leaves them to the cluster's own default."""

    partition: _Line | None = documented(None, "Partition, or several with commas.", "gpu")
    account: _Line | None = documented(None, "Account that the job is charged to.", "vision")
    qos: _Line | None = documented(None, "Quality of service.", "high")
    time: Deadline | None = documented(
        None, "Time limit of the job; null: the partition's default.", "12h"
    )
    nodes: Count | None = documented(None, "Nodes of the job; null: as many as the tasks need.", 8)
    tasks_per_node: Count | None = documented(
        None,
        "Tasks on each node; null: 1, or an even share of the nodes where `nodes` is given and in "
        "an allocation that exists already. An evaluator and a data_dispatcher ride with the first "
        "task.",
        2,
    )
    gpus_per_task: Annotated[int, Field(ge=0, le=1_000_000)] | None = documented(
        None, "GPUs for each task; a node gets as many as its tasks need.", 4
    )
    cpus_per_task: Count | None = documented(
        None, "Cores for each task; a node gets as many as its tasks need.", 16
    )
    mem: Annotated[Text, _NODE_MEMORY, AfterValidator(str.lower)] | None = documented(
        None, "Memory of each node: MB, or with a unit; 0: all of it.", "64g"
    )
    constraint: _Line | None = documented(None, "Features that the nodes must have.", "a100")
    reservation: _Line | None = documented(None, "Reservation to take the nodes from.", "course")
    setup: Listed[_Line] = documented(
        (),
        "Lines of bash at the start of the job's script, before the coordinator: modules, "
        "environments. Its tasks inherit what they set.",
        ["module load cuda/12.4", "source ~/tf/bin/activate"],
    )
    python: _Line | None = documented(
        None,
        "Python of the coordinator on the job's first node, which must have tfcluster; null: the "
        "one of `up`.",
        "/shared/tf/bin/python",
    )
    extra: Listed[Annotated[_Line, AfterValidator(_check_option)]] = documented(
        (), "More options of sbatch, one word each.", ["--exclusive"]
    )


class RoleNodes(Section):
    """The nodes of one role; null: as all others, from `runtime.slurm`."""

    partition: _Line | None = documented(None, "Partition of its nodes.", "cpu")
    tasks_per_node: Count | None = documented(None, "Tasks on each of its nodes.", 2)
    gpus_per_task: Annotated[int, Field(ge=0, le=1_000_000)] | None = documented(
        None, "GPUs for each of its tasks; 0: none.", 0
    )
    cpus_per_task: Count | None = documented(None, "Cores for each of its tasks.", 8)
    mem: Annotated[Text, _NODE_MEMORY, AfterValidator(str.lower)] | None = documented(
        None, "Memory of each of its nodes.", "128g"
    )
    constraint: _Line | None = documented(None, "Features that its nodes must have.", "highmem")
    extra: Listed[Annotated[_Line, AfterValidator(_check_option)]] | None = documented(
        None, "More options of sbatch for its nodes, one word each.", ["--gres=gpu:a100:4"]
    )


class Role(Section):
    """Settings of the nodes or pods of one role, instead of those of all."""

    kubernetes: RolePods = documented(
        RolePods.model_construct(),
        "The pods of `--backend kubernetes`.",
        {"node_selector": {"pool": "cpu"}, "resources": {"requests": {"cpu": "2"}}},
    )
    slurm: RoleNodes = documented(
        RoleNodes.model_construct(),
        "The nodes of `--backend slurm`, a component of a heterogeneous job.",
        {"partition": "cpu", "gpus_per_task": 0},
    )


def _check_interface(value: str) -> str:
    fix = 'write for example "ib0", "10.20.0.0/16" or "{node}-ib"'
    if "{node}" in value:
        if not _HOST_PATTERN.fullmatch(value.replace("{node}", "n", 1)):
            raise field_error(f"{shorten(value)} is not a pattern of host names", fix)
    elif "/" in value:
        try:
            ipaddress.ip_network(value, strict=False)
        except ValueError:
            raise field_error(f"{shorten(value)} is not a subnet", fix) from None
    elif not _INTERFACE.fullmatch(value):
        raise field_error(f"{shorten(value)} is not the name of an interface", fix)
    return value


def _check_ports(value: str) -> str:
    ends = _PORTS.fullmatch(value)
    if ends is None or not 1 <= int(ends[1]) < int(ends[2]) < 65536:
        fix = 'write the first and the last port, for example "60001-63000"'
        raise field_error(f"{shorten(value)} is not a range of ports", fix)
    return value


def _check_backend(value: Any) -> Any:
    """Raise the error of a `Literal`, whose serializer would refuse backends of other packages."""
    names = (AUTO, *REGISTRY)
    if value in names or (isinstance(value, str) and kinds.is_known(value)):
        return value
    expected = f"{', '.join(map(repr, names[:-1]))} or {names[-1]!r}"
    raise PydanticKnownError("literal_error", {"expected": expected})


_BACKEND = BeforeValidator(_check_backend)
_BACKENDS = WithJsonSchema({"enum": [AUTO, *REGISTRY], "type": "string"})


@dataclass(frozen=True, slots=True)
class _Extra:
    """A member of `Runtime` that is none of its fields."""

    key: str
    value: Any


def _read_extra(extra: _Extra) -> Any:
    """Return the section of a backend of another package, validated by that package's model."""
    if (model := kinds.section_model(extra.key)) is None:
        raise PydanticKnownError("extra_forbidden")
    return model.model_validate(extra.value)


def _values(section: Section) -> dict[str, Any]:
    """Return the values of the fields that a section of the spec sets."""
    values = {name: getattr(section, name) for name in section.model_fields_set}
    return {name: value for name, value in values.items() if value is not None}


class Runtime(Section):
    """The backend, Python and network of the tasks, and settings per host."""

    # Members that are none of its fields are sections of backends of other packages.
    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={"additionalProperties": False, "patternProperties": {"^x-": {}}},
    )
    # `init=False` tells type checkers that this is no field.
    __pydantic_extra__: dict[str, Annotated[Any, PlainValidator(_read_extra)]] = Field(init=False)

    backend: Annotated[str, _BACKEND, _BACKENDS] = documented(
        AUTO,
        "`auto`: tasks at this machine's addresses run locally, others through ssh; `docker`: each "
        "task runs in its own container; `slurm`: a job of Slurm; `kubernetes`: each task runs in "
        "its own pod; `simulated`: each task runs on this machine, behind a network card of its "
        "own. Inside an allocation of Slurm, `auto` runs numbers of tasks on its nodes.",
        "local",
    )
    image: Text | None = documented(
        None,
        f"Image of the containers; null: {DEFAULT_IMAGE}, which `tfcluster build` makes.",
        "tensorflow/tensorflow:2.15.0",
    )
    python: Text | None = documented(
        None,
        "Python of the tasks; null: the first of the active environment, `.venv` in or above the "
        "workdir, python3.",
        "/opt/tf/bin/python",
    )
    wrap: Listed[Text] = documented(
        (),
        "Words before the Python on each host or node of a job, such as a container of Apptainer "
        "or options of srun: everything of the run there runs in it.",
        ["apptainer", "exec", "--nv", "tf.sif"],
    )
    user: Annotated[Text, _USER] | None = documented(
        None,
        "User of the containers. Docker: a name or UID[:GID]; null: the image's user, else "
        "`nobody`. Kubernetes: UID[:GID]; null: 1000:1000.",
        "root",
    )
    network: NetworkChoice = documented(
        "host",
        "`private`: other users cannot reach TensorFlow's ports, which ask for no password. An "
        "object: a simulated network on this machine, with a node for each task and links of "
        "this rate and delay.",
        "private",
    )
    interface: Annotated[Text, AfterValidator(_check_interface)] | None = documented(
        None,
        "Network by which tasks of several hosts reach each other: an interface, a subnet, or a "
        "pattern of host names such as `{node}-ib`; null: the address in the spec, or Slurm's.",
        "ib0",
    )
    ports: Annotated[Text, AfterValidator(_check_ports)] | None = documented(
        None,
        "First and last port that may be chosen where the spec does not write one; null: any.",
        "60001-63000",
    )
    preload: Literal["auto", "on", "off"] = documented(
        "auto",
        "Import TensorFlow once for all tasks of a node and their restarts (Linux, not in "
        "containers). `auto`: if the job imports TensorFlow; `on`: also if it imports only other "
        "large modules, such as NumPy.",
        "off",
    )
    warm_s: Deadline = documented(
        600.0, "How long imported modules are kept for the next run after `up --warm`.", "30m"
    )
    hosts: Keyed[Text, Host] = documented(
        {},
        'Settings per host: the key is the host part of an address, or "*" for all hosts.',
        {"*": {"python": "/opt/tf/bin/python"}, "10.0.0.1": {"ssh": "anna@gpu1"}},
    )
    slurm: Slurm = documented(
        Slurm.model_construct(), "The job of `--backend slurm`.", {"partition": "gpu"}
    )
    kubernetes: Kubernetes = documented(
        Kubernetes.model_construct(), "The pods of `--backend kubernetes`.", {"namespace": "vision"}
    )

    roles: Keyed[JobName, Role] = documented(
        {},
        "Settings of the nodes or pods of single roles, instead of those of `slurm` and "
        "`kubernetes`.",
        {"ps": {"slurm": {"partition": "cpu"}}},
    )

    @model_validator(mode="before")
    @classmethod
    def _name_extras(cls, value: Any) -> Any:
        """Give `_read_extra`, which gets no more than a value, the key too."""
        if not isinstance(value, Mapping):
            return value
        fields = cls.model_fields
        return {
            key: each if key in fields else _Extra(key, each)
            for key, each in drop_x_keys(value).items()
        }

    @model_validator(mode="after")
    def _choose_simulated(self) -> Self:
        """A simulated network is made on this machine, with a node for each task."""
        is_simulated = isinstance(self.network, Network)
        backend = kinds.with_network(self.backend, is_simulated=is_simulated)
        return self.model_copy(update={"backend": backend}) if backend != self.backend else self

    def section(self, backend: str) -> Any:
        """Return the section of a backend of another package, with defaults if it is left out."""
        written = (self.model_extra or {}).get(backend)
        return kinds.section_model(backend)() if written is None else written

    def without_roles(self, section: str) -> Self:
        """Return the settings without those of single roles for the backend `section`."""
        left_out = {section: Role.model_fields[section].get_default()}
        roles = {job: role.model_copy(update=left_out) for job, role in self.roles.items()}
        return self.model_copy(update={"roles": roles})

    def has_own(self, section: str, job: str, name: str | None = None) -> bool:
        """Return whether the role `job` has settings of its own for the backend `section`.

        `name`: only this one counts.
        """
        own = self._role(job)
        values = {} if own is None else _values(getattr(own, section))
        return bool(values) if name is None else name in values

    def _role(self, job: str) -> Role | None:
        """Return the entry of `job`, whose name may be that of files and hosts: ``data-worker``."""
        return next(
            (each for name, each in self.roles.items() if file_name_of(name) == file_name_of(job)),
            None,
        )

    def of_role(self, job: str) -> Self:
        """Return the settings for the tasks of `job`, with those of its entry in `roles`."""
        if (role := self._role(job)) is None:
            return self
        return self.model_copy(
            update={
                name: getattr(self, name).model_copy(update=own)
                for name in type(role).model_fields
                if (own := _values(getattr(role, name)))
            }
        )

    @property
    def port_range(self) -> tuple[int, ...]:
        """The first and the last port of `ports`; empty if it is not set."""
        return tuple(map(int, self.ports.split("-"))) if self.ports else ()

    def of_host(
        self, host: str, name: Literal["python", "data_dir", "ssh", "workdir"]
    ) -> tuple[str | None, tuple[str, ...]]:
        """Return a setting of `host`, or of all hosts, and the path of its field; None if unset."""
        for key in (host, "*"):
            if key in self.hosts and (value := getattr(self.hosts[key], name)):
                return value, ("runtime", "hosts", key, name)
        return None, ()


class Resources(Section):
    """GPUs, cores, memory and threads per task."""

    gpus: Gpus | None = documented(
        None,
        'GPUs per task: a number (0 = none), a list of indexes, or "all"; null: an even share.',
        "all",
    )
    cpus: Count | None = documented(
        None, "Cores per task; null: an even share of the node's cores.", 4
    )
    pin: bool | None = documented(
        None,
        "Pin each task to its own cores (Linux); null: pin it to its NUMA node if there are "
        "several.",
        True,
    )
    memory: Annotated[Text, _MEMORY, AfterValidator(str.lower)] | None = documented(
        None, "Memory limit of each container; a task that exceeds it is killed. Docker only.", "8g"
    )
    threads: Count | None = documented(
        None, "Threads of each TensorFlow and NumPy pool; null: one per core of the task.", 2
    )


def _check_on_end(value: str) -> str:
    scheme, colon, rest = value.partition("://")
    if colon and scheme.isalpha() and (scheme != "https" or not rest.strip("/")):
        fix = "write https://HOST/…, or a command that sends it"
        raise field_error(f"{shorten(value)} is not an https URL", fix)
    if scheme == "https" and any(each.isspace() or not each.isprintable() for each in value):
        raise field_error("the https URL has a space", "write it without spaces")
    return value


class Supervision(Section):
    """Deadlines and restarts. Durations are seconds, or strings such as 90s, 5m, 12h."""

    max_restarts: Annotated[int, Field(ge=0, le=1_000_000)] = documented(
        3, "Restarts of the gang before the run fails.", 10
    )
    restart_on_error: bool = documented(
        False, "Also restart after a Python exception or a non-zero exit code.", True
    )
    backoff_s: Seconds = documented(
        1.0, "Wait before the first restart; doubles with each restart, up to 60 s.", "5s"
    )
    start_deadline_s: Deadline = documented(
        300.0, "Longest wait for missing tasks, from the first task that waits for them.", "10m"
    )
    stall_deadline_s: Deadline | None = documented(
        None, "Restart after this time without progress, once there was some; null: never.", "15m"
    )
    stop_on_nan: bool = documented(
        False,
        "End the run when a loss or the weights become NaN or infinite; without it, only an alert.",
        True,
    )
    run_deadline_s: Deadline | None = documented(
        None, "Longest run; a longer one ends with exit code 4; null: no limit.", "12h"
    )
    grace_s: Seconds = documented(
        30.0, "Time from SIGTERM to SIGKILL for tasks that can still save.", "2m"
    )
    finish_grace_s: Seconds = documented(
        60.0, "How long workers may run after the chief has finished.", "5m"
    )
    lease_s: Deadline = documented(
        60.0,
        "A node that does not answer for this long is lost; default in the background (`-d`, key "
        "`d`) on other hosts: 1h.",
        "5m",
    )
    min_workers: Count | None = documented(
        None, "Start and go on with at least this many workers if nodes fail; null: all needed.", 2
    )
    grow: Literal["checkpoint", "off"] = documented(
        "checkpoint",
        "`checkpoint`: a gang that continued with fewer workers takes lost nodes that are back in "
        "again, at its next checkpoint; `off`: only `tfcluster scale-to` does.",
        "off",
    )
    grow_every_s: Seconds = documented(
        600.0, "Shortest time between a change of the number of workers and such growth.", "30m"
    )
    on_end: Annotated[Text, AfterValidator(_check_on_end)] | None = documented(
        None,
        "A shell command, in the workdir of the machine of the coordinator, when the run has "
        "ended: it gets the end as JSON on stdin, and TFCLUSTER_RUN and TFCLUSTER_STATUS. Or an "
        "https URL, which gets the JSON by POST.",
        "./notify.sh",
    )


class Checkpoints(Section):
    """The chief's files that are gathered, and their destination."""

    gather: bool = documented(
        True, "Copy the chief's complete checkpoints into the run folder.", False
    )
    keep: Count = documented(3, "Number of newest checkpoints to keep.", 5)
    dir: Text | None = documented(
        None, "Shared storage in which all tasks save; nothing is copied.", "/mnt/exp7"
    )
    outputs: Listed[Text] = documented(
        (),
        "Globs of files below the workdir to copy from the chief's node at the end.",
        ["*.keras", "plots/**"],
    )
    to: Text | None = documented(
        None, "Folder for a copy of the newest checkpoint and the outputs at the end.", "results"
    )
