"""The environment of a task or of a node's prepare step, layer upon layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfcluster.plan import containers
from tfcluster.plan.cluster import Seat, hosts_of
from tfcluster.plan.command import of_task, python_path
from tfcluster.plan.environment import (
    OURS,
    Layer,
    add_defaults,
    only_set_env,
    proxy_guards,
    resolve,
    without_set_env,
)
from tfcluster.plan.keras import as_inherited, legacy_keras
from tfcluster.plan.placement import DOCKER
from tfcluster.plan.plan import EnvVar
from tfcluster.plan.resources import EVEN, Share, gpu_env, thread_env
from tfcluster.plan.settings import has_hooks, named_data_dir, settings_json, strategy_name
from tfcluster.plan.surroundings import LOCAL, Surroundings

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec


@dataclass(frozen=True, slots=True)
class Variables:
    """Builds every environment of one plan; `seats` are all tasks of the cluster."""

    spec: ClusterSpec
    around: Surroundings
    set_paths: Collection[str]
    seats: tuple[Seat, ...]

    def of_task(self, seat: Seat, share: Share) -> tuple[EnvVar, ...]:
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
        spec = as_inherited(self.spec, seat.node, self.around)
        if legacy_keras(spec, self.around.interpreters.get(seat.node)):
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

    def _of_spec(self, host: str, seat: Seat | None) -> dict[str, EnvVar]:
        layers = list(self._layers(host, seat))
        secrets, others = frozenset(self.spec.job.secrets), frozenset(self.spec.job.not_secret)
        launcher = self.around.environ
        return resolve(layers, launcher=launcher, secrets=secrets, not_secret=others)

    def _layers(self, host: str, seat: Seat | None) -> Iterator[Layer]:
        spec = self.spec
        named: list[tuple[str, Mapping[str, str | None]]] = [("job.env", spec.job.env)]
        for key in ("*", host):
            if settings := spec.runtime.hosts.get(key):
                named.append((f"runtime.hosts.{key}.env", settings.env))
        if seat is not None:
            named.append((f"cluster.{seat.id.job}.{seat.id.index}.env", seat.env))
        from_file = dict(self.around.env_file)
        given = {*from_file, *(name for _, values in named for name in values)}
        left = {name: None for name in spec.job.secrets if name not in given}
        yield Layer("job.secrets", left)
        yield Layer("job.env_file", from_file)
        for prefix, values in named:
            yield without_set_env(values, prefix, self.set_paths)
        for prefix, values in named:
            yield only_set_env(values, prefix, self.set_paths)

    def _inherited(self, node: str) -> Mapping[str, str]:
        return self.around.environ if node == LOCAL else {}

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
                return containers.of_daemons_machine(found[0], self.around), found[1]
            return found
        home = self._inherited(node).get("HOME")
        return (f"{home}/tensorflow_datasets", OURS) if home else None

    def _add_python_path(self, found: dict[str, EnvVar], node: str) -> None:
        current = found.get("PYTHONPATH")
        base = current.value if current else self._inherited(node).get("PYTHONPATH")
        value = python_path(base, self.around.bundle(node))
        source = f"{current.source} + {OURS}" if current else OURS
        found["PYTHONPATH"] = EnvVar("PYTHONPATH", value, source)

    def _serving_peers(self) -> int:
        if strategy_name(self.spec) != "parameter_server":
            return 0
        return sum(seat.id.job == "worker" for seat in self.seats)
