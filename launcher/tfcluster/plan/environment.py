"""Which variable a task gets, from whom, and who wins: the contract's order of precedence."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tfcluster.errors import Problem, SpecError, UsageError
from tfcluster.plan import search
from tfcluster.plan.plan import EnvVar
from tfcluster.plan.secrecy import is_secret

OURS: Final = "tfcluster"

UNSET: Final = (
    "TF_CONFIG",
    *search.VARIABLES,
    "TFCLUSTER_RESTORED_STEP",
    "TFCLUSTER_EVENTS_FD",
    "TFCLUSTER_SETTINGS",
)
"""Never inherited: another cluster's place, another run's state."""

_PROXIES: Final = ("grpc_proxy", "https_proxy", "http_proxy", "HTTPS_PROXY", "HTTP_PROXY")


@dataclass(frozen=True, slots=True)
class Layer:
    """Variables that one place of the spec sets; a later layer wins. None: the launcher's value."""

    source: str
    values: Mapping[str, str | None]


def parse_env_file(text: str, *, name: str) -> tuple[tuple[str, str], ...]:
    """``NAME=VALUE`` lines, ``export`` allowed, ``#`` comments, quotes around a value removed.

    Raises SpecError with ``file:line`` for every other line.
    """
    found, problems = [], []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip().removeprefix("export ").strip()
        if not line or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip().isidentifier():
            message = f"{line!r} is not NAME=VALUE"
            problems.append(Problem(f"{name}:{number}", message, "write one NAME=VALUE a line"))
            continue
        found.append((key.strip(), _unquoted(value.strip())))
    if problems:
        raise SpecError(problems)
    return tuple(found)


def resolve(
    layers: Sequence[Layer],
    *,
    launcher: Mapping[str, str],
    secrets: Collection[str],
    not_secret: Collection[str] = (),
) -> dict[str, EnvVar]:
    """The spec's variables, each with its winner. Raises UsageError for a null that is unset."""
    found: dict[str, EnvVar] = {}
    for layer in layers:
        for name, value in layer.values.items():
            given, source = value, layer.source
            hidden = is_secret(name, named=secrets, shown=not_secret)
            if given is None:
                given = _of_launcher(name, launcher, where=layer.source, is_secret=hidden)
                source = f"{layer.source}, the launcher's value"
            found[name] = EnvVar(name, given, source, secret=hidden)
    return found


def without_set_env(values: Mapping[str, str | None], prefix: str, ruled: Collection[str]) -> Layer:
    """The layer `prefix` less what ``--set`` (of `ruled`, dotted paths) put into it."""
    kept = {name: value for name, value in values.items() if not _is_set(prefix, name, ruled)}
    return Layer(prefix, kept)


def only_set_env(values: Mapping[str, str | None], prefix: str, ruled: Collection[str]) -> Layer:
    """What ``--set`` put into a layer; it outranks every layer of the file."""
    kept = {name: value for name, value in values.items() if _is_set(prefix, name, ruled)}
    return Layer("--set", kept)


def _is_set(prefix: str, name: str, ruled: Collection[str]) -> bool:
    return prefix in ruled or f"{prefix}.{name}" in ruled


def add_defaults(
    found: dict[str, EnvVar],
    values: Mapping[str, str],
    source: str,
    *,
    inherited: Mapping[str, str],
) -> None:
    """Add ours where neither the spec nor the task's node has said otherwise."""
    for name, value in values.items():
        if name not in found and name not in inherited:
            found[name] = EnvVar(name, value, source)


def proxy_guards(
    found: Mapping[str, EnvVar], inherited: Mapping[str, str], hosts: Collection[str]
) -> dict[str, str]:
    """Keep gRPC between the tasks off every HTTP proxy; {} where none is set.

    gRPC honours https_proxy even for localhost (tensorflow#24887, #50626): the gang then hangs.
    ``no_grpc_proxy``, where set, replaces ``no_proxy`` in gRPC's eyes, so it gets all of it.
    """
    seen = {**inherited, **{name: var.value for name, var in found.items()}}
    if not any(seen.get(name) for name in _PROXIES):
        return {}
    excluded = seen.get("no_proxy") or seen.get("NO_PROXY") or ""
    options = [o for o in seen.get("TF_GRPC_DEFAULT_OPTIONS", "").split(",") if o]
    return {
        "no_proxy": _joined(excluded, hosts),
        "no_grpc_proxy": _joined(seen.get("no_grpc_proxy") or excluded, hosts),
        "TF_GRPC_DEFAULT_OPTIONS": ",".join(
            [o for o in options if not o.startswith("grpc.enable_http_proxy=")]
            + ["grpc.enable_http_proxy=0"]
        ),
    }


def _joined(names: str, hosts: Collection[str]) -> str:
    parts = [part.strip() for part in names.split(",") if part.strip()]
    return ",".join(dict.fromkeys([*parts, *sorted(hosts)]))


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value


def _of_launcher(name: str, launcher: Mapping[str, str], *, where: str, is_secret: bool) -> str:
    if name in launcher:
        return launcher[name]
    message = f"{where} takes {name} from your environment, and it is not set there"
    cure = f"export {name}=…"
    raise UsageError(message, cure=cure if is_secret else f"{cure}, or write its value in the spec")
