"""The spec's `cluster`: the tasks of each job, their addresses, and the rules between them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    Tag,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tfcluster.spec import DATA_JOBS, JOBS, JobName, shorten
from tfcluster.spec.fields import (
    Env,
    Listed,
    Mistake,
    RulesBroken,
    Section,
    documented,
    drop_x_keys,
    field_error,
    required,
)

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?", re.ASCII)
_PORT = re.compile(r"\d{1,5}", re.ASCII)
_ADDRESS_FORM = 'write "host:port", for example "10.0.0.1:2222" (port 0 = choose one)'


@dataclass(frozen=True, slots=True)
class Address:
    """A task's address; an IPv6 `host` keeps its brackets, `port` 0 is chosen at the start."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def host_key(host: str) -> str:
    """Return a key that is equal for two spellings of one host (``[::1]`` and ``0:0::1``)."""
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return host.lower()


def is_loopback(host: str) -> bool:
    """Return whether `host`, a name or an address, is this machine's loopback interface."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def parse(text: str) -> Address:
    """Parse ``host:port``; raises PydanticCustomError, with a fix, for anything else."""
    shown = shorten(text)
    if "://" in text:
        fix = f'leave "{text.partition("://")[0]}://" out; {_ADDRESS_FORM}'
        raise field_error(f"{shown} has a scheme", fix)
    if "@" in text:
        fix = 'write only the address; put the user in runtime.hosts: {"HOST": {"ssh": "U@H"}}'
        raise field_error(f"{shown} has a user name", fix)
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        raise field_error(f"{shown} has no port", _ADDRESS_FORM)
    check_host(host, shown, form=_ADDRESS_FORM)
    if not _PORT.fullmatch(port):
        raise field_error(f"{shown}: {shorten(port)} is not a port", _ADDRESS_FORM)
    if int(port) > 65535:
        fix = "write 1 to 65535, or 0 to choose one"
        raise field_error(f"{shown}: port {port} is above 65535", fix)
    return Address(host, int(port))


def check_host(host: str, shown: str, *, form: str) -> None:
    """Raise PydanticCustomError for an invalid host; `form`: the fix where it has another form."""
    if host.startswith("[") and host.endswith("]"):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            raise field_error(f"{shown}: {host} is not an IPv6 address", form) from None
    elif ":" in host:
        fix = f'write IPv6 addresses in brackets: "[{host}]"'
        raise field_error(f"{shown} has more than one colon", fix)
    elif not host:
        raise field_error(f"{shown} has no host", form)
    elif not _HOST.fullmatch(host):
        raise field_error(f"{shown}: {shorten(host)} is not a host name", form)
    elif re.fullmatch(r"[\d.]+", host, re.ASCII):
        _check_ipv4(host, shown)


def _check_ipv4(host: str, shown: str) -> None:
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError:
        fix = "write four numbers from 0 to 255"
        raise field_error(f"{shown}: {host} is not an IPv4 address", fix) from None
    if address.is_unspecified:
        fix = "write the address by which the other tasks reach this one"
        raise field_error(f"{shown}: 0.0.0.0 cannot be reached", fix)


MAX_TASKS = 10_000


def _branch(value: Any) -> str | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return "<number>"
    if isinstance(value, str):
        return "<all>"
    return "<list>" if isinstance(value, list | tuple) else None


_Index = Annotated[int, Field(ge=0, le=1023)]
Gpus = Annotated[
    Annotated[int, Field(ge=0, le=1024), Tag("<number>")]
    | Annotated[Listed[_Index], Tag("<list>")]
    | Annotated[Literal["all"], Tag("<all>")],
    Discriminator(
        _branch,
        custom_error_type="gpus",
        custom_error_message='expected a number, a list of indexes, or "all"',
    ),
]
"""The GPUs of a task: a number, indexes, or ``"all"``; 0 = none."""


class TaskEntry(Section):
    """One task with an address: `"host:port"`, or an object with more settings."""

    address: str = required("Required. `host:port`; port 0 = choose one.", "10.0.0.5:2222")
    gpus: Gpus | None = documented(
        None, "GPUs this task sees, instead of its share of `resources.gpus`.", [0, 1]
    )
    env: Env = documented({}, "Environment variables of this task only.", {"NCCL_DEBUG": "INFO"})

    @model_validator(mode="before")
    @classmethod
    def _expand_string(cls, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | list):
            message = 'expected "host:port", or an object with an address'
            raise field_error(message, 'write for example "10.0.0.1:2222"')
        return {"address": value} if isinstance(value, str) else value

    @field_validator("address")
    @classmethod
    def _check_address(cls, value: str) -> str:
        return str(parse(value))

    @property
    def host(self) -> str:
        return parse(self.address).host

    @property
    def port(self) -> int:
        """The port; 0: the agent chooses one."""
        return parse(self.address).port

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        text = {"type": "string", "description": "host:port", "examples": ["10.0.0.1:2222"]}
        return {"anyOf": [text, handler(core)]}


Tasks = Annotated[
    Annotated[int, Field(ge=1, le=MAX_TASKS), Tag("<number>")]
    | Annotated[
        Listed[TaskEntry],
        Field(max_length=MAX_TASKS, json_schema_extra={"minItems": 1}),
        Tag("<list>"),
    ],
    Discriminator(
        lambda value: None if isinstance(value, str) else _branch(value),
        custom_error_type="tasks",
        custom_error_message='expected a number, or a list of "host:port"',
    ),
]
"""The tasks of one job: a number, or a list of addresses."""

Jobs = Mapping[JobName, int | tuple[TaskEntry, ...]]


def find_mistakes(cluster: Jobs) -> Iterator[Mistake]:
    """Yield the mistakes between tasks that are each valid alone."""
    yield from _check_jobs(cluster)
    yield from _check_addresses(cluster)


def _check_jobs(cluster: Jobs) -> Iterator[Mistake]:
    for job in cluster:
        if count(cluster, job) == 0:
            yield Mistake((job,), f"no {job} is listed", "list the addresses, or leave it out")
    for job in ("chief", "data_dispatcher", "evaluator"):
        if count(cluster, job) > 1:
            fix = "keep one; make the others workers" if job == "chief" else "keep one"
            yield Mistake((job,), f"a cluster has at most one {job}", fix)
    if "ps" not in cluster and "worker" not in cluster and "chief" not in cluster:
        yield Mistake((), "the cluster has no task that trains", 'add workers: {"worker": 2}')
    present = [job for job in DATA_JOBS if job in cluster]
    if len(present) == 1:
        (missing,) = set(DATA_JOBS) - set(present)
        message = f"a tf.data service needs a dispatcher and workers: no {missing}"
        yield Mistake((present[0],), message, f'add "{missing}": 1', on_key=True)


def _check_addresses(cluster: Jobs) -> Iterator[Mistake]:
    all_placed = [(path, parse(entry.address)) for path, entry in iter_entries(cluster)]
    seen: dict[tuple[str, int], str] = {}
    for path, address in all_placed:
        # A port is open on every address of this machine.
        host = "127.0.0.1" if is_loopback(address.host) else host_key(address.host)
        first = seen.setdefault((host, address.port), f"{path[0]}:{path[1]}")
        if address.port and first != f"{path[0]}:{path[1]}":
            yield Mistake(path, f"{address} is already the address of {first}", "use another port")
    remote = next((address for _, address in all_placed if not address.is_loopback), None)
    if remote is None:
        return
    for path, address in all_placed:
        if address.is_loopback:
            fix = "write the address by which the other hosts reach this machine"
            yield Mistake(path, f"{address} is loopback: {remote.host} cannot reach it", fix)
    for job, tasks in cluster.items():
        if isinstance(tasks, int):
            fix = f'list the addresses: "{job}": ["{remote.host}:0"]'
            message = "a number has no host, and other jobs list addresses"
            yield Mistake((job,), message, fix)


def iter_entries(cluster: Jobs) -> Iterator[tuple[tuple[JobName, int], TaskEntry]]:
    """Yield (job, index) and the entry of every task that is listed with an address."""
    for job in JOBS:
        tasks = cluster.get(job, ())
        if not isinstance(tasks, int):
            for index, entry in enumerate(tasks):
                yield (job, index), entry


def count(cluster: Jobs, job: JobName) -> int:
    """Return the number of tasks of one job."""
    tasks = cluster.get(job, 0)
    return tasks if isinstance(tasks, int) else len(tasks)


def task_counts(cluster: Jobs) -> dict[str, int]:
    """Return the number of tasks of each job that has any, in the order of `JOBS`."""
    return {job: number for job in JOBS if (number := count(cluster, job))}


def task_names(cluster: Jobs) -> list[str]:
    """Return the names of all tasks, such as ``worker:0``, in the order of `JOBS`."""
    return [f"{job}:{index}" for job in JOBS for index in range(count(cluster, job))]


def _drop_null_jobs(cluster: Any) -> Any:
    """Drop jobs that are null: null means "not given" everywhere in the spec."""
    kept = drop_x_keys(cluster)
    if not isinstance(kept, Mapping):
        return kept
    return {job: tasks for job, tasks in kept.items() if tasks is not None or job not in JOBS}


def _check_tasks(cluster: Any) -> Any:
    RulesBroken.check(find_mistakes(cluster))
    return cluster


Cluster = Annotated[
    dict[JobName, Tasks], BeforeValidator(_drop_null_jobs), AfterValidator(_check_tasks)
]
