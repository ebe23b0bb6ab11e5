"""The format `compose`: a Compose file with a service for each task of the plan for docker.

docs.docker.com/reference/compose-file describes the fields; Compose 1.28 and newer read the file.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

from tfcluster import __version__
from tfcluster.backends.docker.containers import PROCESSES, SHM
from tfcluster.errors import SetupError
from tfcluster.export.request import WORKERS, Exported, Request, Subject, bullets, secret_names
from tfcluster.plans.plan import Command, Container, EnvVar, Plan, TaskPlan
from tfcluster.plans.remote_paths import NodePaths
from tfcluster.plans.resources import GIVEN_GPUS
from tfcluster.plans.tf_config import Attempt, environment, fixed

BACKEND: Final = "docker"
_PORT: Final = 2222
"""The port of every task without one of its own: a container has all ports to itself."""
_WORKDIR: Final = "/code"
_STATE: Final = "/tmp/tfcluster"
"""The folder in each container for what its task writes; any user may create it."""
_IMAGES: Final = ("tfcluster-worker", "tfcluster-join")
"""tfcluster's image without `tfcluster_workers`, and the one with it."""
_PACKAGE: Final = "tfcluster_workers"
_PLAIN: Final = re.compile(r"\.{1,2}|(?:[A-Za-z]|\.{0,2}/)(?:[\w./:@+-]*[\w/])?", re.ASCII)
"""Matches texts that need no quotes, except `_WORDS`."""
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


class _Reference(str):
    """A text in which Compose replaces variables; in others ``$`` is an ordinary character."""

    __slots__ = ()


def render(subject: Subject, request: Request) -> Exported:
    """Return the Compose file of a plan for docker.

    Raises SetupError for an evaluator that would wait for the chief's checkpoints for ever.
    """
    _require_storage(subject.plan)
    ports = {task.id: task.port or _PORT for task in subject.plan.tasks}
    plan, has_package = subject.plan.at(ports=ports), _imports_package(subject)
    attempt = fixed(plan)
    services = {
        task.node: _service(attempt, task, request, has_package=has_package) for task in plan.tasks
    }
    needs = tuple(_needs(plan, services, has_package=has_package))
    lines = [*_comment(plan, request, needs), "", *_format_services(services)]
    if plan.nodes[0].network == "private":
        lines += ["", "networks:", "  default:", "    internal: true"]
    return Exported("\n".join([*lines, ""]), needs)


def _require_storage(plan: Plan) -> None:
    """Raise SetupError for an evaluator that would wait for the chief's checkpoints for ever."""
    evaluators = [task for task in plan.tasks if task.id.job == "evaluator"]
    if evaluators and plan.checkpoints.dir is None:
        message = "only `tfcluster up` copies the chief's checkpoints to the evaluator"
        fix = "--set checkpoints.dir=/shared/folder (or gs://…), which all tasks then use"
        raise SetupError(message, fix=fix)


def _imports_package(subject: Subject) -> bool:
    """Return whether tasks or prepare steps certainly import `tfcluster_workers`."""
    plan = subject.plan
    commands = [*(task.command for task in plan.tasks), *plan.prepare.values()]
    modules = {word.partition(".")[0] for command in commands for word in command.argv[1:3]}
    starts_boot = any(map(plan.is_hooked, plan.tasks))
    return starts_boot or _PACKAGE in modules or _PACKAGE in subject.context.packages


def _service(
    attempt: Attempt, task: TaskPlan, request: Request, *, has_package: bool
) -> dict[str, Any]:
    plan, node = attempt.plan, attempt.plan.node(task.node)
    container = node.container
    assert container is not None
    paths = NodePaths(_STATE, plan.name, shared=(node.workdir, _WORKDIR))
    command = paths.command(task.command)
    prepare = plan.prepare.get(task.node)
    user = container.user or request.user
    env = _environment(attempt, task, command, user, has_package=has_package)
    return {
        "image": _image(container.image, has_package=has_package),
        "user": user,
        "init": True,
        "restart": "no",
        "stop_grace_period": f"{math.ceil(plan.supervision.grace_s)}s",
        "security_opt": ["no-new-privileges:true"],
        "pids_limit": int(PROCESSES),
        "working_dir": _WORKDIR,
        "volumes": [_bind(_relative(plan.workdir, request.folder), _WORKDIR, read_only=True),
                    *_mounts(container)],
        **dict(_limits(container)),
        "hostname": task.node,
        "entrypoint": _entrypoint(command, prepare and paths.command(prepare), env),
        "environment": env,
    }  # fmt: skip


def _image(name: str, *, has_package: bool) -> str:
    """Return the image, tfcluster's own with the packages that the tasks import."""
    repository, colon, tag = name.partition(":")
    own, other = _IMAGES
    return f"{other}{colon}{tag}" if has_package and repository == own else name


def _entrypoint(command: Command, prepare: Command | None, env: Mapping[str, str]) -> list[str]:
    """Return the argv of a container with `env`; the prepare step, if any, is before the task."""
    if prepare is None:
        return [*command.argv]
    unset = [word for name in prepare.unset if name in env for word in ("-u", name)]
    first, then = shlex.join(["env", *unset, *prepare.argv]), shlex.join(command.argv)
    return ["/bin/sh", "-c", f"{first} && exec {then}"]


def _environment(
    attempt: Attempt, task: TaskPlan, command: Command, user: str, *, has_package: bool
) -> dict[str, str]:
    """Return the variables of a task; those of a secret take its value where Compose runs."""
    of_attempt = environment(
        attempt,
        task.id,
        run_id=attempt.plan.name,
        checkpoint_dir=f"{_STATE}/checkpoints",
        tensorboard_dir=f"{_STATE}/tensorboard",
        tuner_dir=f"{_STATE}/tuner",
        holds_ports=False,
    )
    env = {var.name: _value(var) for var in (*command.env, *of_attempt)}
    if not has_package:
        del env["TFCLUSTER_SETTINGS"]
        env.pop(GIVEN_GPUS, None)
        path = env.pop("PYTHONPATH", "").removesuffix(f"{WORKERS}/workers").rstrip(":")
        env |= {"PYTHONPATH": path} if path else {}
    if user.partition(":")[0] not in ("root", "0"):  # it may have no home in the image
        env.setdefault("HOME", "/tmp")
    return dict(sorted(env.items()))


def _value(var: EnvVar) -> str:
    if not var.secret:
        return var.value
    return _Reference(f"${{{var.name}:?{var.name} is a secret: set it where Compose runs}}")


def _limits(container: Container) -> Iterator[tuple[str, Any]]:
    if container.cpus is not None:
        yield "cpus", container.cpus
    if container.memory is not None:  # and no swap in addition: paging would look like a hang
        yield "mem_limit", container.memory
        yield "memswap_limit", container.memory
    if container.gpus:
        is_all = container.gpus == "all"
        chosen = {"count": "all"} if is_all else {"device_ids": [*map(str, container.gpus)]}
        device = {"driver": "nvidia", **chosen, "capabilities": ["gpu"]}
        yield "deploy", {"resources": {"reservations": {"devices": [device]}}}
        yield "shm_size", SHM


def _mounts(container: Container) -> Iterator[dict[str, Any]]:
    if container.data_dir is not None:
        yield _bind(container.data_dir, container.data_dir, read_only=True)
    if container.shared_dir is not None:
        yield _bind(container.shared_dir, container.shared_dir)


def _bind(source: str, target: str, *, read_only: bool = False) -> dict[str, Any]:
    options = {"read_only": True} if read_only else {}
    return {"type": "bind", "source": source, "target": target, **options}


def _relative(path: str, folder: str) -> str:
    """Return `path` relative to the file's `folder` if one contains the other, else absolute.

    Files of one project may move together.
    """
    if os.path.commonpath([path, folder]) not in (path, folder):
        return path
    relative = os.path.relpath(path, folder)
    return relative if relative.startswith(".") else f"./{relative}"


def _needs(
    plan: Plan, services: Mapping[str, Mapping[str, Any]], *, has_package: bool
) -> Iterator[str]:
    """Yield what the file's user must provide."""
    for image in dict.fromkeys(str(service["image"]) for service in services.values()):
        repository, _, tag = image.partition(":")
        if repository in _IMAGES:
            options = " --join" if repository == _IMAGES[1] else ""
            if tag.startswith("tf"):
                options += f" --tensorflow {tag[2:].partition('-')[0]}"
            options += " --gpu" if tag.endswith("-gpu") else ""
            yield f"the image {image}, which `tfcluster build{options}` makes"
        elif has_package:
            yield (
                f"tfcluster_workers in the image {image}, as images based on tfcluster-join have"
                " it; to start plain Python without it: --set job.hooks=off"
            )
    for name in secret_names(plan):
        yield f"the variable {name}, a secret, set where Compose runs"


def _comment(plan: Plan, request: Request, needs: Sequence[str]) -> Iterator[str]:
    """Yield the lines that say how to use the file, and what tfcluster does beyond it."""
    file = request.file_word("compose.yaml")
    serves = any(task.serves for task in plan.tasks)
    ending = f" --exit-code-from {plan.chief.file_name}" if serves else ""
    yield f"# {plan.name}: the tasks of `tfcluster up --backend docker`, without tfcluster."
    yield f"# Written by `tfcluster export --format compose` (tfcluster {__version__})."
    yield "#"
    yield f"#   docker compose -f {file} up{ending}"
    yield f"#   docker compose -f {file} down"
    if needs:
        yield from ("#", "# It needs:")
        yield from bullets(needs)
    yield from ("#", "# What `tfcluster up` does, and this file does not:")
    yield from bullets(_missing(plan))


def _missing(plan: Plan) -> Iterator[str]:
    restarts = plan.supervision.max_restarts
    again = f"starts all tasks again, up to {restarts} times" if restarts else "reports its cause"
    yield (
        f"After a failure it ends the other tasks and {again}. Here nothing is restarted, and the"
        " other containers may wait for the failed one until you stop them."
    )
    if plan.checkpoints.dir is None:
        yield (
            "It gathers checkpoints and outputs and resumes from them. Here they stay in each"
            f" container, in {_STATE}, until `docker compose down`; with checkpoints.dir they are"
            " on the host."
        )
    yield (
        "It gives each task a writable copy of the code, without files that hold secrets. Here the"
        f" folder itself is mounted read-only at {_WORKDIR}, with all its files."
    )
    asks = any(node.container is not None and node.container.gpus for node in plan.nodes)
    divided = "cores" if asks or plan.resources.gpus is not None else "cores and GPUs"
    without = "" if divided == "cores" else " and no GPU: write resources.gpus"
    yield (
        f"It divides the machine's {divided} between the tasks. Here each has the limits of the"
        f" spec's `resources` alone{without}."
    )


def _format_services(services: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the services; what all of them have is written once, with anchors of YAML."""
    first, *others = services.values()
    env = _common(first["environment"], [other["environment"] for other in others])
    task = _common(first, others)
    task.pop("environment", None)
    yield from ("x-environment: &environment", *_format_mapping(env, 2), "")
    yield from ("x-task: &task", *_format_mapping(task, 2), "", "services:")
    for name, service in services.items():
        yield from (f"  {name}:", "    <<: *task")
        own = {key: value for key, value in service.items() if key not in task}
        variables = {k: v for k, v in own.pop("environment").items() if k not in env}
        yield from _format_mapping(own, 4)
        yield from ("    environment:", "      <<: *environment", *_format_mapping(variables, 6))


def _common(first: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the items of `first` that all `others` have as well."""
    return {
        key: value
        for key, value in first.items()
        if all(key in other and other[key] == value for other in others)
    }


def _format_mapping(mapping: Mapping[str, Any], indent: int) -> Iterator[str]:
    for key, value in mapping.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            yield f"{' ' * indent}{_inline(key)}:"
            yield from (f"{' ' * indent}  - {_inline(item)}" for item in value)
        else:
            yield f"{' ' * indent}{_inline(key)}: {_inline(value)}"


def _inline(value: object) -> str:
    """Return YAML of a value in one line, which no version of YAML reads as something else."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_inline(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    if not isinstance(value, str):
        return str(value).lower()
    text = str(value) if isinstance(value, _Reference) else value.replace("$", "$$")
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return str(yaml.safe_dump(text, default_style='"', width=math.inf)).strip()
