"""The environment variables of tasks and prepare steps: layers of the spec, then defaults."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tfcluster.errors import Problem, SpecError, UsageError
from tfcluster.plan import attempt, placement
from tfcluster.plan.command import of_task, python_path
from tfcluster.plan.context import LOCAL, PlanContext
from tfcluster.plan.keras_settings import (
    as_inherited,
    has_hooks,
    legacy_keras,
    named_data_dir,
    settings_json,
    strategy_name,
)
from tfcluster.plan.placement import DOCKER, PlacedTask, hosts_of
from tfcluster.plan.plan import EnvVar
from tfcluster.plan.resources import EVEN, Share, gpu_env, thread_env
from tfcluster.plan.secrets import is_secret

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec


OURS: Final = "tfcluster"

UNSET: Final = (
    "TF_CONFIG",
    *attempt.VARIABLES,
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
    fix = f"export {name}=…"
    raise UsageError(message, fix=fix if is_secret else f"{fix}, or write its value in the spec")


@dataclass(frozen=True, slots=True)
class Variables:
    """Builds every environment of one plan; `seats` are all tasks of the cluster."""

    spec: ClusterSpec
    context: PlanContext
    set_paths: Collection[str]
    seats: tuple[PlacedTask, ...]

    def of_task(self, seat: PlacedTask, share: Share) -> tuple[EnvVar, ...]:
        """What `seat` gets besides what its node has and what only an attempt knows."""
        found = self._of_spec(seat.host, seat)
        self._add_shared(found, seat.node, seat.host)
        if share.threads is not None:
            self._add_threads(found, share.threads, self._inherited(seat.node))
        visible = gpu_env(share.gpus, shared=share.gpu_is_shared)
        # What the shell shows of the GPUs has been counted already.
        shell = {**self._inherited(seat.node)}
        shell.pop("CUDA_VISIBLE_DEVICES", None)
        add_defaults(found, visible, "resources.gpus", inherited=shell)
        spec = as_inherited(self.spec, seat.node, self.context)
        if legacy_keras(spec, self.context.interpreters.get(seat.node)):
            add_defaults(found, {"TF_USE_LEGACY_KERAS": "1"}, "keras.version", inherited={})
        found["TFCLUSTER_SETTINGS"] = EnvVar("TFCLUSTER_SETTINGS", settings_json(self.spec), OURS)
        if not (has_hooks(self.spec) and of_task(self.spec.job, seat.id).has_hooks):
            self._add_python_path(found, seat.node)
        return tuple(found[name] for name in sorted(found))

    def of_prepare(self, node: str, host: str) -> tuple[EnvVar, ...]:
        """What the prepare step of `node` gets: as its tasks, less the place in the cluster."""
        found = self._of_spec(host, None)
        self._add_shared(found, node, host)
        self._add_python_path(found, node)
        return tuple(found[name] for name in sorted(found))

    def _of_spec(self, host: str, seat: PlacedTask | None) -> dict[str, EnvVar]:
        layers = list(self._layers(host, seat))
        secrets, others = frozenset(self.spec.job.secrets), frozenset(self.spec.job.not_secret)
        launcher = self.context.environ
        return resolve(layers, launcher=launcher, secrets=secrets, not_secret=others)

    def _layers(self, host: str, seat: PlacedTask | None) -> Iterator[Layer]:
        spec = self.spec
        named: list[tuple[str, Mapping[str, str | None]]] = [("job.env", spec.job.env)]
        for key in ("*", host):
            if settings := spec.runtime.hosts.get(key):
                named.append((f"runtime.hosts.{key}.env", settings.env))
        if seat is not None:
            named.append((f"cluster.{seat.id.job}.{seat.id.index}.env", seat.env))
        from_file = dict(self.context.env_file)
        given = {*from_file, *(name for _, values in named for name in values)}
        left = {name: None for name in spec.job.secrets if name not in given}
        yield Layer("job.secrets", left)
        yield Layer("job.env_file", from_file)
        for prefix, values in named:
            yield without_set_env(values, prefix, self.set_paths)
        for prefix, values in named:
            yield only_set_env(values, prefix, self.set_paths)

    def _inherited(self, node: str) -> Mapping[str, str]:
        return self.context.environ if node == LOCAL else {}

    def _add_shared(self, found: dict[str, EnvVar], node: str, host: str) -> None:
        inherited = self._inherited(node)
        add_defaults(found, {"PYTHONUNBUFFERED": "1"}, OURS, inherited={})
        if data := self._data_dir(node, host):
            wins = {} if data[1] != OURS else inherited
            add_defaults(found, {"TFDS_DATA_DIR": data[0]}, data[1], inherited=wins)
        for name, value in proxy_guards(found, inherited, hosts_of(self.seats)).items():
            found[name] = EnvVar(name, value, "tfcluster: no HTTP proxy between the tasks")

    def _add_threads(
        self, found: dict[str, EnvVar], threads: int, inherited: Mapping[str, str]
    ) -> None:
        """What the shell says is told, too: else nobody would know why a pool is another's size."""
        wishes = self.spec.resources
        values = thread_env(threads, serving_peers=self._serving_peers())
        if wishes.threads is not None:
            add_defaults(found, values, "resources.threads", inherited={})
            return
        shell = {name: inherited[name] for name in values if name in inherited}
        add_defaults(found, shell, "this shell", inherited={})
        source = EVEN if wishes.cpus is None else "resources.cpus"
        add_defaults(found, values, source, inherited={})

    def _data_dir(self, node: str, host: str) -> tuple[str, str] | None:
        if found := named_data_dir(self.spec, host):
            if self.spec.runtime.backend == DOCKER:
                return placement.of_daemons_machine(found[0], self.context), found[1]
            return found
        home = self._inherited(node).get("HOME")
        return (f"{home}/tensorflow_datasets", OURS) if home else None

    def _add_python_path(self, found: dict[str, EnvVar], node: str) -> None:
        current = found.get("PYTHONPATH")
        base = current.value if current else self._inherited(node).get("PYTHONPATH")
        value = python_path(base, self.context.bundle(node))
        source = f"{current.source} + {OURS}" if current else OURS
        found["PYTHONPATH"] = EnvVar("PYTHONPATH", value, source)

    def _serving_peers(self) -> int:
        if strategy_name(self.spec) != "parameter_server":
            return 0
        return sum(seat.id.job == "worker" for seat in self.seats)
