"""Compares the cluster that a script joins with the one that tfcluster started this task in.

A script that sets TF_CONFIG itself, as TensorFlow's tutorials do, or lists its hosts on the command
line, would wait for tasks that nobody starts, without a word; one that removes it would train alone
in every task. That is said at once, with the line that does it.
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
from tfcluster_workers.errors import ClusterChangedError
from tfcluster_workers.hooks import tf_config_changes

_LISTED = 4
"""Of a job's addresses, how many a message names."""


@dataclass(frozen=True)
class Membership:
    """A cluster, and which of its tasks this process is."""

    jobs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name of a job → addresses of its tasks."""
    job: str = ""
    index: int = 0

    @classmethod
    def read(cls, tf_config: str) -> Membership:
        """Of a value of TF_CONFIG; raises ValueError for what is not a JSON object."""
        found = json.loads(tf_config or "{}")
        if not isinstance(found, dict):
            raise ValueError("not a JSON object")
        task = found.get("task") or {}
        return cls.of(found.get("cluster") or {}, task.get("type"), task.get("index"))

    @classmethod
    def of(cls, jobs: Mapping[str, Any], job: Any, index: Any) -> Membership:
        """`jobs` as `ClusterSpec.as_dict` has them: a job that lacks tasks is a mapping."""
        listed = {
            str(name): tuple(map(str, tasks.values() if isinstance(tasks, Mapping) else tasks))
            for name, tasks in jobs.items()
        }
        return cls(listed, str(job or ""), int(index or 0))

    @property
    def address(self) -> str:
        """This task's own; empty where the cluster does not have it."""
        tasks = self.jobs.get(self.job, ())
        return alike(tasks[self.index]) if 0 <= self.index < len(tasks) else ""

    def addresses(self, *jobs: str) -> frozenset[str]:
        """Those of `jobs`, else of all."""
        wanted = jobs or tuple(self.jobs)
        return frozenset(alike(one) for job in wanted for one in self.jobs.get(job, ()))

    def differs_in_hosts_only(self, other: Membership) -> bool:
        """Whether it is the same task of as many, at the same ports: a host has several names."""
        is_same_task = (self.job, self.index) == (other.job, other.index)
        return is_same_task and self._ports() == other._ports()

    def _ports(self) -> dict[str, list[str]]:
        """Of all tasks but the evaluator, which is in no training cluster of TensorFlow's."""
        jobs = {name: tasks for name, tasks in self.jobs.items() if name != "evaluator"}
        return {name: [one.rpartition(":")[2] for one in tasks] for name, tasks in jobs.items()}

    def __str__(self) -> str:
        """As TF_CONFIG has it, a long list cut short."""
        jobs = {
            job: [*tasks[:_LISTED], *([f"… {len(tasks)} in all"] if tasks[_LISTED:] else ())]
            for job, tasks in self.jobs.items()
        }
        return f"{self.job or '?'}:{self.index} of {json.dumps(jobs, ensure_ascii=False)}"


def alike(address: str) -> str:
    """`address` with one name for this machine, and for what listens on all its interfaces."""
    host, colon, port = address.rpartition(":")
    here = socket.gethostname()
    names = ("localhost", "0.0.0.0", "[::]", "::", "[::1]", "::1", here, here.partition(".")[0])
    is_here = host in names or host.startswith("127.")
    return f"127.0.0.1{colon}{port}" if is_here else address


_has_joined = False


def _harmless(check: Callable[..., None]) -> Callable[..., None]:
    """`check` without faults of its own: they must not break what a script does."""

    @functools.wraps(check)
    def checked(*args: Any) -> None:
        try:
            if tf_config_changes.is_this_task():
                check(*args)
        except ClusterChangedError:
            raise
        except Exception as error:
            reporting.note(f"tfcluster could not compare this task's cluster: {error!r}")

    return checked


@_harmless
def check_strategy(resolver: Any) -> None:
    """Before MultiWorkerMirroredStrategy joins: raise ClusterChangedError where it would wait for
    tasks that are none of this run, or train alone. Only the first one of a process joins.

    `resolver` is its cluster resolver; None: TensorFlow makes one from TF_CONFIG.
    """
    global _has_joined
    given, change = _given(), _change(resolver)
    if _has_joined or given.job == "evaluator" or (found := _named_by(resolver)) is None:
        return
    mine, theirs = given.addresses("chief", "worker"), found.addresses("chief", "worker")
    if len(theirs) < 2 <= len(mine):
        raise change.error(f"each of the {len(mine)} workers would train alone")
    if len(theirs) > 1:
        meets_its_peers = theirs <= mine and found.address == given.address
        is_renamed = (found.job, found.index) != (given.job, given.index)
        if not meets_its_peers:
            change.refuse(found, given)
        elif is_renamed or theirs != mine:
            change.note(found, given)
    _has_joined = True


@_harmless
def note_lone_fit(model: Any) -> None:
    """Before Keras's `fit` of `model`: have the first worker say where all of them train alone,
    which is no mistake by itself, but seldom what several workers are for."""
    given = _given()
    trains = given.addresses("chief", "worker")
    settings = json.loads(os.environ.get("TFCLUSTER_SETTINGS") or "{}")
    is_first = given.index == 0 and given.job == ("chief" if "chief" in given.jobs else "worker")
    if len(trains) < 2 or not is_first or settings.get("strategy") != "multi_worker_mirrored":
        return
    if not _has_joined:
        _note_alone("the script makes no MultiWorkerMirroredStrategy", len(trains))
    elif not model.distribute_strategy.extended._in_multi_worker_mode():
        _note_alone("the model was made outside strategy.scope()", len(trains))


def _note_alone(why: str, count: int) -> None:
    words = f"each of the {count} tasks trains alone, on all the data"
    reporting.note(f"{why}: {words}; --set job.kind=plain if that is meant")


@_harmless
def check_parameter_servers(resolver: Any) -> None:
    """The same before ParameterServerStrategy connects to workers and ps."""
    if (found := _named_by(resolver)) is None:
        return
    theirs = found.addresses("worker", "ps")
    given = _given()
    if theirs <= given.addresses():
        return
    if not theirs <= _served():
        _change(resolver).refuse(found, given)
    elif len(given.addresses()) > 1:
        _note_alone("the script makes all servers itself", len(given.addresses()))


_servers: dict[str, Membership] = {}
"""Target of each `tf.distribute.Server` that this process has made → the cluster it is of."""


@_harmless
def note_server(target: str, cluster: Mapping[str, Any], job: Any, index: Any) -> None:
    """A server has been made; `use_server` says whether that is right."""
    _servers[target] = Membership.of(cluster, job, index)


@_harmless
def use_server(target: str) -> None:
    """Before this task serves at `target`, or begins a session that waits there for the peers."""
    if (found := _servers.get(target)) is None:
        return
    given, theirs = _given(), found.addresses()
    is_ours = found.address == given.address and theirs <= given.addresses()
    if not (is_ours or len(theirs) < 2 or theirs <= _served()):
        _change_that_names(found).refuse(found, given)


def _change_that_names(found: Membership) -> Change:
    """What makes a server of `found`: a changed TF_CONFIG that says so, else the script's call."""
    is_changed = os.environ.get(tf_config_changes.NAME) != tf_config_changes.given
    if is_changed and _named_by(None) == found:
        return _change(None)
    return Change("the script makes a server")


def _served() -> set[str]:
    """A cluster whose servers one process has made (a test, a notebook) is whole."""
    return {server.address for server in _servers.values()}


@dataclass(frozen=True)
class Change:
    """What leads to another cluster than this run's, and where, if that is known."""

    words: str
    place: tuple[str, int] | None = None

    def error(self, consequence: str) -> ClusterChangedError:
        return ClusterChangedError(f"{self.words}: {consequence}", place=self.place)

    def refuse(self, found: Membership, given: Membership) -> None:
        """Raise, except where the peers may be there all the same: under other names of their
        hosts or, where this run has one task only, started by somebody elsewhere."""
        if found.differs_in_hosts_only(given):
            self.note(found, given)
            return
        words = f"this task would be {found}\ntfcluster started it as {given}"
        if len(given.addresses()) > 1:
            raise self.error(words)
        reporting.note(f"{self.words}: {words}")

    def note(self, found: Membership, given: Membership) -> None:
        reporting.note(f"{self.words}: it joins as {found}; tfcluster started it as {given}")


def _change(resolver: Any) -> Change:
    name = tf_config_changes.NAME
    is_by_hand = resolver is not None and type(resolver).__name__ != "TFConfigClusterResolver"
    if is_by_hand or os.environ.get(name) == tf_config_changes.given:
        return Change("the strategy's cluster resolver is not made from TF_CONFIG")
    changed = tf_config_changes.last_change()
    if changed is None:
        return Change(f"the script replaces {name}")
    file, line, deed = changed
    return Change(f"{os.path.basename(file)}:{line} {deed} {name}", (file, line))


def _named_by(resolver: Any) -> Membership | None:
    """The cluster that `resolver` names; None where that is for TensorFlow to complain of."""
    try:
        if resolver is None:
            return Membership.read(os.environ.get(tf_config_changes.NAME, ""))
        spec = resolver.cluster_spec()
        return Membership.of(spec.as_dict(), resolver.task_type, resolver.task_id)
    except json.JSONDecodeError as error:
        raise _change(resolver).error(f"it is not valid JSON ({error})") from None
    except Exception:
        return None


def _given() -> Membership:
    return Membership.read(tf_config_changes.given)
