"""Compares the cluster that a script joins with the one that tfcluster started this task in.

A script that sets TF_CONFIG itself, as TensorFlow's tutorials do, or lists its hosts on the command
line would silently wait for tasks that nobody starts; one that removes TF_CONFIG would train alone
in every task. Both are reported at once, with the line that causes it.
"""

from __future__ import annotations

import functools
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from tfcluster_workers import reporting
from tfcluster_workers.errors import ClusterChangedError, NotServingError
from tfcluster_workers.hooks import tf_config_changes

_LISTED = 4
"""The number of addresses per job that a message lists."""
_PASTED = 16
"""The most addresses of a cluster that a message has in full, to be pasted."""
_JOBS = {"chief", "worker", "ps", "evaluator"}


@dataclass(frozen=True)
class Membership:
    """A cluster, and the task of it that this process is."""

    jobs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Job name → addresses of its tasks."""
    job: str = ""
    index: int = 0

    @classmethod
    def read(cls, tf_config: str) -> Membership:
        """Parse a value of TF_CONFIG; raise ValueError if it is not a JSON object."""
        config = json.loads(tf_config or "{}")
        if not isinstance(config, dict):
            raise ValueError("not a JSON object")
        task = config.get("task") or {}
        return cls.of(config.get("cluster") or {}, task.get("type"), task.get("index"))

    @classmethod
    def of(cls, jobs: Mapping[str, Any], job: Any, index: Any) -> Membership:
        """Make one from the jobs of `ClusterSpec.as_dict`, where a sparse job is a mapping."""
        listed = {
            str(name): tuple(map(str, tasks.values() if isinstance(tasks, Mapping) else tasks))
            for name, tasks in jobs.items()
        }
        return cls(listed, str(job or ""), int(index or 0))

    @property
    def address(self) -> str:
        """This task's own address; empty if the cluster does not have this task."""
        tasks = self.jobs.get(self.job, ())
        return normalized(tasks[self.index]) if 0 <= self.index < len(tasks) else ""

    def addresses(self, *jobs: str) -> frozenset[str]:
        """Return the addresses of these jobs, or of all jobs."""
        selected = jobs or tuple(self.jobs)
        return frozenset(
            normalized(address) for job in selected for address in self.jobs.get(job, ())
        )

    def differs_in_hosts_only(self, other: Membership) -> bool:
        """Return whether task, task counts and ports are equal: a host can have several names."""
        is_same_task = (self.job, self.index) == (other.job, other.index)
        return is_same_task and self._ports() == other._ports()

    @property
    def can_be_specified(self) -> bool:
        """True if `cluster` of a spec can list these addresses."""
        addresses = [address for tasks in self.jobs.values() for address in tasks]
        has_ports = all(address.rpartition(":")[2].isdecimal() for address in addresses)
        return self.jobs.keys() <= _JOBS and has_ports and len(addresses) <= _PASTED

    def _ports(self) -> dict[str, list[str]]:
        """Return the ports of all tasks but the evaluator, which is in no training cluster."""
        return {
            name: [address.rpartition(":")[2] for address in tasks]
            for name, tasks in self.jobs.items()
            if name != "evaluator"
        }

    def __str__(self) -> str:
        """Return task and cluster as in TF_CONFIG, with long lists shortened."""
        jobs = {
            job: [*tasks[:_LISTED], *([f"… {len(tasks)} in all"] if tasks[_LISTED:] else ())]
            for job, tasks in self.jobs.items()
        }
        return f"{self.job or '?'}:{self.index} of {json.dumps(jobs, ensure_ascii=False)}"


def normalized(address: str) -> str:
    """Return `address` with one name for this machine and for all of its interfaces."""
    host, colon, port = address.rpartition(":")
    hostname = socket.gethostname()
    loopback = ("localhost", "0.0.0.0", "[::]", "::", "[::1]", "::1")
    is_local = host in (*loopback, hostname, hostname.partition(".")[0]) or host.startswith("127.")
    return f"127.0.0.1{colon}{port}" if is_local else address


_has_joined = False
"""True once a strategy of this process has passed the check: only the first one joins."""


def _never_fails(check: Callable[..., None]) -> Callable[..., None]:
    """Wrap `check` so that an error of its own does not break the script."""

    @functools.wraps(check)
    def checked(*args: Any) -> None:
        try:
            if tf_config_changes.is_task_process():
                check(*args)
        except (ClusterChangedError, NotServingError):
            raise
        except Exception as error:
            reporting.note(f"tfcluster could not compare this task's cluster: {error!r}")

    return checked


@_never_fails
def check_strategy(resolver: Any) -> None:
    """Check the cluster that a MultiWorkerMirroredStrategy is about to join.

    Raises ClusterChangedError if it would wait for tasks that are not part of this run, or train
    alone. Only the first strategy of a process joins. `resolver` is its cluster resolver; for None
    TensorFlow makes one from TF_CONFIG.
    """
    global _has_joined
    assigned, change = _assigned(), _change(resolver)
    if _has_joined or assigned.job == "evaluator" or (found := _membership_of(resolver)) is None:
        return
    expected, joined = assigned.addresses("chief", "worker"), found.addresses("chief", "worker")
    if len(joined) < 2 <= len(expected):
        raise change.error(f"each of the {len(expected)} workers would train alone")
    if len(joined) > 1:
        reaches_peers = joined <= expected and found.address == assigned.address
        is_renamed = (found.job, found.index) != (assigned.job, assigned.index)
        if not reaches_peers:
            change.refuse(found, assigned)
        elif is_renamed or joined != expected:
            change.note(found, assigned)
        reporting.meets_peers()
    _has_joined = len(joined) > 1


def has_joined() -> bool:
    """Return whether this task trains together with others, by a MultiWorkerMirroredStrategy."""
    return _has_joined


def is_outside_scope(model: Any) -> bool:
    """Return whether this task's strategy has joined others but does not know `model`."""
    strategy = getattr(model, "distribute_strategy", None)
    return _has_joined and strategy is not None and not strategy.extended._in_multi_worker_mode()


@_never_fails
def check_parameter_servers(resolver: Any) -> None:
    """Check the cluster that a ParameterServerStrategy is about to connect to.

    Raises ClusterChangedError for tasks that are not part of this run, and NotServingError if it
    would wait for a server of this very task that does not run.
    """
    if (found := _membership_of(resolver)) is None:
        return
    servers, own = found.addresses("worker", "ps"), _own_servers()
    assigned = _assigned()
    if not servers <= assigned.addresses():
        if servers <= own:
            if (count := len(assigned.addresses())) > 1:
                reporting.note(
                    f"the script makes all servers itself: each of the {count} tasks trains alone,"
                    " on all the data; if that is intended, --set job.kind=plain"
                )
            return
        _change(resolver).refuse(found, assigned)
    serves = found.jobs.get("ps") and assigned.job in ("worker", "ps")
    if serves and {found.address, assigned.address} & servers - own:
        raise NotServingError(f"{assigned.job}:{assigned.index}")


_servers: dict[str, Membership] = {}
"""Target of each `tf.distribute.Server` that this process has made → its cluster."""


@_never_fails
def note_server(target: str, cluster: Mapping[str, Any], job: Any, index: Any) -> None:
    """Remember a new server; `check_server` checks its cluster when it is used."""
    _servers[target] = Membership.of(cluster, job, index)


@_never_fails
def check_server(target: str) -> None:
    """Check a server before this task serves at `target` or starts a session that waits there."""
    if (found := _servers.get(target)) is None:
        return
    assigned, servers = _assigned(), found.addresses()
    is_assigned = found.address == assigned.address and servers <= assigned.addresses()
    if not (is_assigned or len(servers) < 2 or servers <= _own_servers()):
        _cause_of(found).refuse(found, assigned)


def _cause_of(found: Membership) -> Change:
    """Return the change that led to `found`: that of TF_CONFIG if it names it, else the call."""
    is_changed = os.environ.get(tf_config_changes.NAME) != tf_config_changes.assigned
    if is_changed and _membership_of(None) == found:
        return _change(None)
    return Change("the script makes a server", cause="own-resolver")


def _own_servers() -> set[str]:
    """Return the addresses of this process's servers; they may be a whole cluster, as in a test."""
    return {server.address for server in _servers.values()}


@dataclass(frozen=True)
class Change:
    """The cause of joining another cluster than this run's, and its place if known."""

    description: str
    place: tuple[str, int] | None = None
    cause: str = "cluster-changed"

    def error(self, consequence: str, *, cause: str = "") -> ClusterChangedError:
        message, cause = f"{self.description}: {consequence}", cause or self.cause
        return ClusterChangedError(message, place=self.place, cause=cause)

    def refuse(self, found: Membership, assigned: Membership) -> None:
        """Raise ClusterChangedError, unless the peers may exist all the same.

        They may under other names of their hosts or, if this run has only one task, if someone
        else has started them.
        """
        if found.differs_in_hosts_only(assigned):
            self.note(found, assigned)
            return
        difference = f"this task would be {found}\ntfcluster started it as {assigned}"
        cause = ""
        if (found.job, found.index) == (assigned.job, assigned.index) and found.can_be_specified:
            cluster = json.dumps(found.jobs, ensure_ascii=False)
            difference += f"\nto keep the script's own addresses: --set 'cluster={cluster}'"
            cause = "own-addresses"
        if len(assigned.addresses()) > 1:
            raise self.error(difference, cause=cause)
        reporting.note(f"{self.description}: {difference}")

    def note(self, found: Membership, assigned: Membership) -> None:
        reporting.note(
            f"{self.description}: it joins as {found}; tfcluster started it as {assigned}"
        )


def _change(resolver: Any) -> Change:
    name = tf_config_changes.NAME
    is_custom = resolver is not None and type(resolver).__name__ != "TFConfigClusterResolver"
    if is_custom or os.environ.get(name) == tf_config_changes.assigned:
        why = "the strategy's cluster resolver is not made from TF_CONFIG"
        return Change(why, cause="own-resolver")
    changed = tf_config_changes.last_change()
    if changed is None:
        return Change(f"the script replaces {name}")
    file, line, action = changed
    return Change(f"{os.path.basename(file)}:{line} {action} {name}", (file, line))


def _membership_of(resolver: Any) -> Membership | None:
    """Return the cluster that `resolver` names; None if TensorFlow will report the problem."""
    try:
        if resolver is None:
            return Membership.read(os.environ.get(tf_config_changes.NAME, ""))
        spec = resolver.cluster_spec()
        return Membership.of(spec.as_dict(), resolver.task_type, resolver.task_id)
    except json.JSONDecodeError as error:
        raise _change(resolver).error(f"it is not valid JSON ({error})") from None
    except Exception:
        return None


def _assigned() -> Membership:
    return Membership.read(tf_config_changes.assigned)
