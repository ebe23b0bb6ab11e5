"""What is wrong with the nodes of a run, from what a probe found on each (pure).

TensorFlow would tell the same after an hour, or in words that name no host. Sources of the rules:
unequal versions tensorflow#34156, unequal GPUs #47203 and #60847, unreachable peers #46931.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfcluster.agent.probe import PACKAGES
from tfcluster.plan.plan import Plan, TaskId

PATIENCE_S = 8.0
"""How long the nodes try to reach each other."""
_LEAST_BYTES = 1_000_000_000
_MOST_SKEW_S = 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about one node; what `is_fatal` ends the run before it begins."""

    node: str
    what: str
    cure: str
    is_fatal: bool = True


@dataclass(frozen=True, slots=True)
class Seen:
    """A node's report."""

    node: str
    python: str
    packages: Mapping[str, str]
    gpus: Sequence[str]
    clock_ahead_s: float
    """Against ours; the time its line took to come is in it."""
    free_bytes: int
    strange_names: Sequence[str]
    not_listening: Sequence[tuple[int, str]]
    unreachable: Sequence[tuple[str, str, str, int, str]]
    """(node, task, host, port, why)."""


def order_for(plan: Plan, node: str, ports: Mapping[TaskId, int], run_id: str) -> dict[str, Any]:
    """What the probe of `node` is to do; see `agent.probe`."""
    mine = [t for t in plan.tasks if t.node == node and t.id in ports]
    others = [t for t in plan.tasks if t.node != node and t.id in ports]
    return {
        "run": run_id,
        "node": node,
        "mine": [{"host": t.host, "port": ports[t.id]} for t in mine],
        "others": [
            {"node": t.node, "task": str(t.id), "host": t.host.strip("[]"), "port": ports[t.id]}
            for t in others
        ],
        "patience_s": PATIENCE_S,
    }


def read(line: str, *, now: float) -> Seen:
    """Raises ValueError for what is no report."""
    try:
        data = json.loads(line)
        return Seen(
            node=str(data["node"]),
            python=str(data["python"]),
            packages=dict(data["packages"]),
            gpus=tuple(data["gpus"]),
            clock_ahead_s=float(data["clock"]) - now,
            free_bytes=int(data["free_bytes"]),
            strange_names=tuple(data["strange_names"]),
            not_listening=tuple((int(port), str(why)) for port, why in data["not_listening"]),
            unreachable=tuple(tuple(row) for row in data["unreachable"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a probe's report: {error}") from error


def judge(
    seen: Sequence[Seen], *, needs_tensorflow: bool, is_gang: bool = True
) -> tuple[Finding, ...]:
    """All findings, the fatal ones first. `is_gang`: the nodes train as one, so that they must
    be alike; not so parameter servers, tuners, and commands whose Python nobody knows."""
    found = [*_alone(seen, needs_tensorflow), *_lines(seen)]
    found += _together(seen) if is_gang else ()
    return tuple(sorted(found, key=lambda finding: not finding.is_fatal))


def _alone(seen: Sequence[Seen], needs_tensorflow: bool) -> Iterator[Finding]:
    for one in seen:
        if needs_tensorflow and "tensorflow" not in one.packages:
            cure = f"runtime.hosts.{one.node}.python names a Python that has it"
            yield Finding(one.node, "its Python has no TensorFlow", cure)
        for host in one.strange_names:
            cure = "correct the name (DNS, /etc/hosts) there, or write the address"
            yield Finding(one.node, f"{host} is not one of its own addresses", cure)
        for port, why in one.not_listening:
            yield Finding(one.node, f"nothing can listen on port {port}: {why}", "another port")
        if one.free_bytes < _LEAST_BYTES:
            left = f"{one.free_bytes / 1e6:.0f} MB"
            yield Finding(one.node, f"only {left} of disk are free", "make room", is_fatal=False)
        if abs(one.clock_ahead_s) > _MOST_SKEW_S:
            what = f"its clock differs from ours by {one.clock_ahead_s:+.0f} s"
            yield Finding(one.node, what, "set it by NTP: times in logs mislead", is_fatal=False)


def _together(seen: Sequence[Seen]) -> Iterator[Finding]:
    """Versions and GPUs, against what most nodes have."""
    for package in PACKAGES:
        is_fatal = package in ("tensorflow", "keras", "tf-keras")
        having = {one.node: one.packages.get(package, "none") for one in seen}
        yield from _odd(package, having, is_fatal=is_fatal)
    yield from _odd("Python", {one.node: one.python.rpartition(".")[0] for one in seen})
    yield from _odd("GPUs", {one.node: _shown(one.gpus) for one in seen})


def _odd(what: str, having: Mapping[str, str], *, is_fatal: bool = True) -> Iterator[Finding]:
    counted = Counter(having.values()).most_common()
    if len(counted) < 2:
        return
    usual = counted[0][0]
    for node, value in having.items():
        if value != usual:
            text = f"{what} is {value} there, {usual} on the others"
            yield Finding(node, text, "all nodes must have the same", is_fatal)


def _shown(gpus: Sequence[str]) -> str:
    return ", ".join(f"{count} × {name}" for name, count in Counter(gpus).items()) or "none"


def _lines(seen: Sequence[Seen]) -> Iterator[Finding]:
    for one in seen:
        for _node, task, host, port, why in one.unreachable:
            what = f"{task} ({host}:{port}) cannot be reached from there: {why}"
            cure = "open that port between the two (firewall, security group), or write another"
            yield Finding(one.node, what, cure)
