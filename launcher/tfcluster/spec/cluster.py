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

from tfcluster.spec.fields import (
    Env,
    Listed,
    Mistake,
    RulesBroken,
    Section,
    documented,
    drop_x_keys,
    required,
    shorten,
    wrong,
)

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?", re.ASCII)
_PORT = re.compile(r"\d{1,5}", re.ASCII)
_FORM = 'write "host:port", for example "10.0.0.1:2222" (port 0 = choose one)'


@dataclass(frozen=True, slots=True)
class Address:
    """One task's place; `host` of an IPv6 address keeps its brackets, `port` 0 is to be chosen."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def key(self) -> tuple[str, int]:
        """Equal for two spellings of the same address (``[::1]`` and ``[0:0::1]``)."""
        try:
            return str(ipaddress.ip_address(self.host.strip("[]"))), self.port
        except ValueError:
            return self.host.lower(), self.port

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse(text: str) -> Address:
    """Raises an error with its cure for all that is not plain ``host:port``."""
    shown = shorten(text)
    if "://" in text:
        raise wrong(f"{shown} has a scheme", f'leave "{text.partition("://")[0]}://" out; {_FORM}')
    if "@" in text:
        fix = 'write the address alone; the user goes to runtime.hosts: {"HOST": {"ssh": "U@H"}}'
        raise wrong(f"{shown} has a user name", fix)
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        raise wrong(f"{shown} has no port", _FORM)
    _check_host(host, shown)
    if not _PORT.fullmatch(port):
        raise wrong(f"{shown}: {shorten(port)} is not a port", _FORM)
    if int(port) > 65535:
        raise wrong(f"{shown}: port {port} is above 65535", "write 1 to 65535, or 0 to choose one")
    return Address(host, int(port))


def _check_host(host: str, shown: str) -> None:
    if host.startswith("[") and host.endswith("]"):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            fix = 'write it as "[2001:db8::5]:2222"'
            raise wrong(f"{shown}: {host} is not an IPv6 address", fix) from None
    elif ":" in host:
        fix = 'write IPv6 addresses in brackets: "[2001:db8::5]:2222"'
        raise wrong(f"{shown} has more than one colon", fix)
    elif not host:
        raise wrong(f"{shown} has no host", _FORM)
    elif not _HOST.fullmatch(host):
        raise wrong(f"{shown}: {shorten(host)} is not a host name", _FORM)
    elif re.fullmatch(r"[\d.]+", host, re.ASCII):
        _check_ipv4(host, shown)


def _check_ipv4(host: str, shown: str) -> None:
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError:
        fix = "write four numbers from 0 to 255"
        raise wrong(f"{shown}: {host} is not an IPv4 address", fix) from None
    if address.is_unspecified:
        fix = "write the address by which the other tasks reach this one"
        raise wrong(f"{shown}: 0.0.0.0 is no address that can be reached", fix)


JobName = Literal["chief", "worker", "ps", "evaluator"]
JOBS: tuple[JobName, ...] = ("chief", "worker", "ps", "evaluator")
MOST_TASKS = 10_000

TAGS = frozenset({"<number>", "<list>", "<all>"})
"""What pydantic puts into the path of an error for the branch it took; no part of the spec."""


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
        custom_error_message='a number, a list of indexes, or "all" is expected here',
    ),
]
"""GPUs for a task: a number, indexes, or ``"all"``; 0 = none."""


class TaskEntry(Section):
    """One task that the spec places: ``"host:port"``, or an object with more to say."""

    address: str = required("Required. `host:port`; port 0 = choose one.", "10.0.0.5:2222")
    gpus: Gpus | None = documented(
        None, "GPUs this task sees, instead of its share by `resources.gpus`.", [0, 1]
    )
    env: Env = documented({}, "Environment variables of this task alone.", {"NCCL_DEBUG": "INFO"})

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | list):
            message = '"host:port", or an object with an address, is expected here'
            raise wrong(message, 'write for example "10.0.0.1:2222"')
        return {"address": value} if isinstance(value, str) else value

    @field_validator("address")
    @classmethod
    def _is_host_and_port(cls, value: str) -> str:
        return str(parse(value))

    @property
    def host(self) -> str:
        return parse(self.address).host

    @property
    def port(self) -> int:
        """0: the agent chooses one."""
        return parse(self.address).port

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        text = {"type": "string", "description": "host:port", "examples": ["10.0.0.1:2222"]}
        return {"anyOf": [text, handler(core)]}


Tasks = Annotated[
    Annotated[int, Field(ge=1, le=MOST_TASKS), Tag("<number>")]
    | Annotated[
        Listed[TaskEntry],
        Field(max_length=MOST_TASKS, json_schema_extra={"minItems": 1}),
        Tag("<list>"),
    ],
    Discriminator(
        lambda value: None if isinstance(value, str) else _branch(value),
        custom_error_type="tasks",
        custom_error_message='a number, or a list of "host:port", is expected here',
    ),
]
"""The tasks of one job: how many, or where each is."""

Jobs = Mapping[JobName, int | tuple[TaskEntry, ...]]


def find_mistakes(cluster: Jobs) -> Iterator[Mistake]:
    """All that is wrong between the tasks; each alone is right."""
    yield from _about_jobs(cluster)
    yield from _about_addresses(cluster)


def _about_jobs(cluster: Jobs) -> Iterator[Mistake]:
    for job in cluster:
        if count(cluster, job) == 0:
            yield Mistake((job,), f"no {job} is listed", "list its addresses, or leave it out")
    for job in ("chief", "evaluator"):
        if count(cluster, job) > 1:
            fix = "keep one; the others may be workers" if job == "chief" else "keep one"
            yield Mistake((job,), f"a cluster has at most one {job}", fix)
    if "ps" not in cluster and "worker" not in cluster and "chief" not in cluster:
        yield Mistake((), "the cluster has no task that trains", 'add workers: {"worker": 2}')


def _about_addresses(cluster: Jobs) -> Iterator[Mistake]:
    all_placed = list(placed(cluster))
    seen: dict[tuple[str, int], str] = {}
    for path, at in all_placed:
        first = seen.setdefault(at.key, f"{path[0]}:{path[1]}")
        if at.port and first != f"{path[0]}:{path[1]}":
            yield Mistake(path, f"{at} is already the address of {first}", "write another port")
    remote = next((at for _, at in all_placed if not at.is_loopback), None)
    if remote is None:
        return
    for path, at in all_placed:
        if at.is_loopback:
            fix = "write the address by which the other hosts reach this machine"
            yield Mistake(path, f"{at} is loopback, which {remote.host} cannot reach", fix)
    for job, tasks in cluster.items():
        if isinstance(tasks, int):
            fix = f'list its addresses: "{job}": ["{remote.host}:0"]'
            yield Mistake((job,), "a number beside written addresses says no place", fix)


def placed(cluster: Jobs) -> Iterator[tuple[tuple[JobName, int], Address]]:
    """Every task with an address, and which."""
    for job in JOBS:
        tasks = cluster.get(job, ())
        if not isinstance(tasks, int):
            for index, task in enumerate(tasks):
                yield (job, index), parse(task.address)


def count(cluster: Jobs, job: JobName) -> int:
    """Tasks of one job."""
    tasks = cluster.get(job, 0)
    return tasks if isinstance(tasks, int) else len(tasks)


def count_tasks(cluster: Jobs) -> int:
    """All processes of the cluster, the evaluator included."""
    return sum(count(cluster, job) for job in JOBS)


def count_trainers(cluster: Jobs) -> int:
    """Chief and workers."""
    return count(cluster, "chief") + count(cluster, "worker")


def _without_absent(cluster: Any) -> Any:
    """null = no such tasks, as everywhere in the spec."""
    kept = drop_x_keys(cluster)
    if not isinstance(kept, Mapping):
        return kept
    return {job: tasks for job, tasks in kept.items() if tasks is not None or job not in JOBS}


def _checked(cluster: Any) -> Any:
    RulesBroken.check(find_mistakes(cluster))
    return cluster


Cluster = Annotated[
    dict[JobName, Tasks], BeforeValidator(_without_absent), AfterValidator(_checked)
]
