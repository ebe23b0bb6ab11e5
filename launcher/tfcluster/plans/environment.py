"""The environment variables of tasks and prepare steps: layers of the spec, then defaults."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tfcluster.errors import Problem, SpecError, UsageError
from tfcluster.plans import placement
from tfcluster.plans.command import find_program, python_path
from tfcluster.plans.context import LOCAL, PlacedTask, PlanContext
from tfcluster.plans.job_facts import find_data_dir, has_hooks, strategy_name
from tfcluster.plans.keras_settings import settings_json, uses_legacy_keras, with_inherited_switch
from tfcluster.plans.placement import hosts_of
from tfcluster.plans.plan import EnvVar
from tfcluster.plans.resources import EVEN_SHARE, GIVEN_GPUS, Share, gpu_env, thread_env
from tfcluster.plans.secrets import WEBHOOK_VARIABLE, is_secret
from tfcluster.plans.tf_config import LIBRARY_VARIABLES, SOURCE
from tfcluster.spec import TUNER_VARIABLES

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec


UNSET: Final = (
    "TF_CONFIG",
    *LIBRARY_VARIABLES,
    *TUNER_VARIABLES,
    "TFCLUSTER_RESTORED_STEP",
    "TFCLUSTER_EVENTS_FD",
    "TFCLUSTER_SETTINGS",
    GIVEN_GPUS,
    WEBHOOK_VARIABLE,
)
"""Variables that a task never inherits: they belong to another cluster or another run."""

_PROXIES: Final = ("grpc_proxy", "https_proxy", "http_proxy", "HTTPS_PROXY", "HTTP_PROXY")


@dataclass(frozen=True, slots=True)
class Layer:
    """The variables that one field of the spec sets; None: the value in the launcher's environment.

    A later layer overrides an earlier one.
    """

    source: str
    values: Mapping[str, str | None]


def parse_env_file(text: str, *, name: str) -> tuple[tuple[str, str], ...]:
    """Parse ``NAME=VALUE`` lines; ``export``, ``#`` comments and quotes around values are allowed.

    Raises SpecError with ``file:line`` for every other line.
    """
    variables, problems = [], []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip().removeprefix("export ").strip()
        if not line or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip().isidentifier():
            message = f"{line!r} is not NAME=VALUE"
            problems.append(Problem(f"{name}:{number}", message, "write one NAME=VALUE per line"))
            continue
        variables.append((key.strip(), _unquote(value.strip())))
    if problems:
        raise SpecError(problems)
    return tuple(variables)


def resolve(
    layers: Sequence[Layer],
    *,
    launcher: Mapping[str, str],
    secrets: Collection[str],
    not_secret: Collection[str] = (),
) -> dict[str, EnvVar]:
    """Return the variables of `layers`, each from the last layer that sets it.

    Raises UsageError for a null whose variable is not set in the launcher's environment.
    """
    variables: dict[str, EnvVar] = {}
    for layer in layers:
        for name, value in layer.values.items():
            is_hidden = is_secret(name, named=secrets, shown=not_secret)
            if value is not None:
                variables[name] = EnvVar(name, value, layer.source, secret=is_hidden)
                continue
            value = _take_from_launcher(name, launcher, field=layer.source, is_secret=is_hidden)
            source = f"{layer.source}, the launcher's value"
            variables[name] = EnvVar(name, value, source, secret=is_hidden, from_launcher=True)
    return variables


def split_layer(layer: Layer, set_paths: Collection[str]) -> tuple[Layer, Layer]:
    """Return the variables of a layer from the file, and those set by ``--set``.

    The latter (dotted `set_paths`) override every layer of the file.
    """
    written: dict[str, str | None] = {}
    chosen: dict[str, str | None] = {}
    for name, value in layer.values.items():
        is_set = layer.source in set_paths or f"{layer.source}.{name}" in set_paths
        (chosen if is_set else written)[name] = value
    return Layer(layer.source, written), Layer("-e or --set", chosen)


def add_defaults(
    variables: dict[str, EnvVar],
    values: Mapping[str, str],
    source: str,
    *,
    inherited: Collection[str] = (),
) -> None:
    """Add `values` for variables that are neither `variables` nor `inherited`."""
    for name, value in values.items():
        if name not in variables and name not in inherited:
            variables[name] = EnvVar(name, value, source)


def proxy_guards(
    variables: Mapping[str, EnvVar], inherited: Mapping[str, str], hosts: Collection[str]
) -> dict[str, str]:
    """Return variables that keep gRPC between the tasks off HTTP proxies; {} if none is set.

    gRPC honours https_proxy even for localhost (tensorflow#24887, #50626): the gang then hangs.
    gRPC reads ``no_grpc_proxy``, if set, instead of ``no_proxy``, so it gets the same hosts.
    """
    env = {**inherited, **{name: var.value for name, var in variables.items()}}
    if not any(env.get(name) for name in _PROXIES):
        return {}
    excluded = env.get("no_proxy") or env.get("NO_PROXY") or ""
    options = [o for o in env.get("TF_GRPC_DEFAULT_OPTIONS", "").split(",") if o]
    return {
        "no_proxy": _add_hosts(excluded, hosts),
        "no_grpc_proxy": _add_hosts(env.get("no_grpc_proxy") or excluded, hosts),
        "TF_GRPC_DEFAULT_OPTIONS": ",".join(
            [o for o in options if not o.startswith("grpc.enable_http_proxy=")]
            + ["grpc.enable_http_proxy=0"]
        ),
    }


def _add_hosts(names: str, hosts: Collection[str]) -> str:
    parts = [part.strip() for part in names.split(",") if part.strip()]
    return ",".join(dict.fromkeys([*parts, *sorted(hosts)]))


def _unquote(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value


def _take_from_launcher(
    name: str, launcher: Mapping[str, str], *, field: str, is_secret: bool
) -> str:
    if name in launcher:
        return launcher[name]
    message = f"{field} takes {name} from your environment, but it is not set there"
    fix = f"export {name}=…"
    raise UsageError(
        message, fix=fix if is_secret else f"{fix}, or -e {name}=… on the command line"
    )


@dataclass(frozen=True)  # no slots: `cached_property` needs a dict
class Variables:
    """The builder of every environment of one plan."""

    spec: ClusterSpec
    context: PlanContext
    set_paths: Collection[str]

    def for_task(self, placed: PlacedTask, share: Share) -> tuple[EnvVar, ...]:
        """Return the variables of a task, without those of its node and of an attempt."""
        variables = self._resolve_layers(placed.host, placed)
        self._add_shared(variables, placed.node, placed.host)
        if share.threads is not None:
            self._add_threads(variables, share.threads, self._inherited(placed.node))
        self._add_gpus(variables, placed, share)
        spec = with_inherited_switch(self.spec, placed.node, self.context)
        if uses_legacy_keras(spec, self.context.interpreters.get(placed.node)):
            add_defaults(variables, {"TF_USE_LEGACY_KERAS": "1"}, "keras.version")
        if (name := spec.strategy.name) in ("jax", "torch"):
            variables.setdefault("KERAS_BACKEND", EnvVar("KERAS_BACKEND", name, "strategy.name"))
        variables["TFCLUSTER_SETTINGS"] = EnvVar("TFCLUSTER_SETTINGS", settings_json(spec), SOURCE)
        if not (has_hooks(self.spec) and find_program(self.spec.job, placed.id).has_hooks):
            self._add_python_path(variables, placed.node)
        return tuple(variables[name] for name in sorted(variables))

    def for_prepare(self, node: str, host: str) -> tuple[EnvVar, ...]:
        """Return the variables of the prepare step of `node`: its tasks' without the cluster's."""
        variables = self._resolve_layers(host, None)
        self._add_shared(variables, node, host)
        self._add_python_path(variables, node)
        return tuple(variables[name] for name in sorted(variables))

    def _resolve_layers(self, host: str, placed: PlacedTask | None) -> dict[str, EnvVar]:
        layers = list(self._layers(host, placed))
        secrets, others = frozenset(self.spec.job.secrets), frozenset(self.spec.job.not_secret)
        launcher = self.context.environ
        return resolve(layers, launcher=launcher, secrets=secrets, not_secret=others)

    def _layers(self, host: str, placed: PlacedTask | None) -> Iterator[Layer]:
        spec = self.spec
        named = [Layer("job.env", spec.job.env)]
        for key in ("*", host):
            if settings := spec.runtime.hosts.get(key):
                named.append(Layer(f"runtime.hosts.{key}.env", settings.env))
        if placed is not None:
            named.append(Layer(f"cluster.{placed.id.job}.{placed.id.index}.env", placed.env))
        from_file = dict(self.context.env_file)
        given = {*from_file, *(name for layer in named for name in layer.values)}
        yield Layer("job.secrets", {name: None for name in spec.job.secrets if name not in given})
        yield Layer("job.env_file", from_file)
        halves = [split_layer(layer, self.set_paths) for layer in named]
        yield from (written for written, _ in halves)
        yield from (chosen for _, chosen in halves)

    def _inherited(self, node: str) -> Mapping[str, str]:
        return self.context.environ if node == LOCAL else {}

    def _add_shared(self, variables: dict[str, EnvVar], node: str, host: str) -> None:
        inherited = self._inherited(node)
        add_defaults(variables, {"PYTHONUNBUFFERED": "1"}, SOURCE)
        name = "TFDS_DATA_DIR"
        if (chosen := self._data_dir(host)) is not None:
            variables.setdefault(name, EnvVar(name, *chosen, origin="data_dir"))
        elif (home := inherited.get("HOME")) and name not in inherited:
            folder = f"{home}/tensorflow_datasets"
            variables.setdefault(name, EnvVar(name, folder, SOURCE, origin="tfcluster"))
        for name, value in proxy_guards(variables, inherited, self._hosts).items():
            variables[name] = EnvVar(name, value, "tfcluster: no HTTP proxy between the tasks")

    def _add_threads(
        self, variables: dict[str, EnvVar], threads: int, inherited: Mapping[str, str]
    ) -> None:
        """Add the thread variables; inherited ones are added too, so that a plan shows them."""
        resources = self.spec.resources
        values = thread_env(threads, serving_peers=self._serving_peers)
        if resources.threads is not None:
            add_defaults(variables, values, "resources.threads")
            return
        shell = {name: inherited[name] for name in values if name in inherited}
        add_defaults(variables, shell, "this shell")
        source = EVEN_SHARE if resources.cpus is None else "resources.cpus"
        add_defaults(variables, values, source)

    def _add_gpus(self, variables: dict[str, EnvVar], placed: PlacedTask, share: Share) -> None:
        # `share` is already a part of the GPUs in the launcher's CUDA_VISIBLE_DEVICES.
        inherited = {*self._inherited(placed.node)} - {"CUDA_VISIBLE_DEVICES", GIVEN_GPUS}
        values = gpu_env(share.gpus, shared=share.gpu_is_shared)
        requested = self.spec.resources.gpus if placed.gpus is None else placed.gpus
        if share.gpus and requested is not None:
            values[GIVEN_GPUS] = values["CUDA_VISIBLE_DEVICES"]
        elif share.gpus is None and requested == "all":
            values[GIVEN_GPUS] = "all"
        add_defaults(variables, values, "resources.gpus", inherited=inherited)
        runtime = self.spec.runtime.of_role(placed.id.job)
        if share.gpus is None and placed.kind.gives_gpus(runtime):
            source = f"runtime.{placed.backend}"
            add_defaults(variables, {GIVEN_GPUS: "some"}, source, inherited=inherited)

    def _data_dir(self, host: str) -> tuple[str, str] | None:
        folder = find_data_dir(self.spec, host)
        if folder and self.context.tasks[0].kind.capabilities.has_image:
            return placement.resolve_mount(folder[0], self.context), folder[1]
        return folder

    def _add_python_path(self, variables: dict[str, EnvVar], node: str) -> None:
        current = variables.get("PYTHONPATH")
        base = current.value if current else self._inherited(node).get("PYTHONPATH")
        value = python_path(base, self.context.bundle(node))
        source = f"{current.source} + {SOURCE}" if current else SOURCE
        variables["PYTHONPATH"] = EnvVar("PYTHONPATH", value, source, origin="tfcluster")

    @cached_property
    def _hosts(self) -> tuple[str, ...]:
        return hosts_of(self.context.tasks)

    @cached_property
    def _serving_peers(self) -> int:
        if strategy_name(self.spec) != "parameter_server":
            return 0
        return sum(placed.id.job == "worker" for placed in self.context.tasks)
