"""The result of the checks before a start: findings, the nodes' answers, measured all-reduces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tfcluster.agent import foreign_json
from tfcluster.errors import PreflightError
from tfcluster.nodes.probe_answers import ProbeAnswer
from tfcluster.rundir.paths import RunPaths
from tfcluster.typed_json import from_json, object_to_json

if TYPE_CHECKING:
    from tfcluster.backends.jobs import Outlook

ALL_REDUCE_BYTES: Final = 64_000_000
"""The size of the all-reduces that are measured."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of one node; a fatal one stops the run before it starts."""

    node: str
    check: str
    """Row of the table: ``TensorFlow``, ``ports``, ``clock`` …"""
    what: str
    fix: str
    is_fatal: bool = True


@dataclass(frozen=True, slots=True)
class MeasuredAllReduce:
    """One measured all-reduce, in which each worker has `bytes`."""

    communication: str
    workers: tuple[str, ...]
    nodes: tuple[str, ...]
    """The nodes of `workers`."""
    seconds: float
    bytes: int = ALL_REDUCE_BYTES

    @property
    def gb_per_s(self) -> float:
        """The algorithm bandwidth: bytes by time (nccl-tests, PERFORMANCE.md)."""
        return self.bytes / self.seconds / 1e9

    @property
    def link_gb_per_s(self) -> float:
        """The bus bandwidth: what each link of a ring carries, 2(n-1)/n of the bytes by time."""
        return self.gb_per_s * 2 * (len(self.workers) - 1) / len(self.workers)

    def to_json(self) -> dict[str, Any]:
        rates = {"gb_per_s": self.gb_per_s, "link_gb_per_s": self.link_gb_per_s}
        return object_to_json(self) | {name: round(rate, 4) for name, rate in rates.items()}


def slowest_links(measured: Sequence[MeasuredAllReduce]) -> Mapping[str, MeasuredAllReduce]:
    """Return communication → its slowest link, an all-reduce of two workers."""
    by_name: dict[str, list[MeasuredAllReduce]] = {}
    for all_reduce in measured:
        if len(all_reduce.workers) == 2:
            by_name.setdefault(all_reduce.communication, []).append(all_reduce)
    return {name: max(links, key=lambda link: link.seconds) for name, links in by_name.items()}


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """The result of a preflight."""

    nodes: tuple[str, ...]
    seen: tuple[ProbeAnswer, ...]
    """The answers of the nodes that gave one."""
    findings: tuple[Finding, ...]
    """The fatal ones first."""
    notes: tuple[str, ...] = ()
    """Sentences to show: when a scheduler would start the job, what was not measured."""
    all_reduces: tuple[MeasuredAllReduce, ...] = ()

    @classmethod
    def of_job(cls, backend: str, outlook: Outlook) -> PreflightReport:
        """Return the report of the scheduler of `backend`, as if it were a node."""
        notes = (outlook.starts,) if outlook.starts else ()
        return cls((backend,), (), (), notes).with_more(
            Finding(backend, o.check, o.what, o.fix, o.is_fatal) for o in outlook.obstacles
        )

    @property
    def fatal(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.is_fatal)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that do not stop a start."""
        return tuple(finding for finding in self.findings if not finding.is_fatal)

    def with_more(self, findings: Iterable[Finding]) -> PreflightReport:
        """Return this report with `findings` added, without duplicates."""
        merged: dict[tuple[str, str, str], Finding] = {}
        for finding in (*findings, *self.findings):
            merged.setdefault((finding.node, finding.check, finding.what), finding)
        ordered = sorted(merged.values(), key=lambda finding: not finding.is_fatal)
        return replace(self, findings=tuple(ordered))

    def with_nodes(self, other: PreflightReport) -> PreflightReport:
        """Return this report with the nodes of `other`, their answers and findings."""
        return replace(
            self,
            nodes=tuple(dict.fromkeys((*self.nodes, *other.nodes))),
            seen=(*self.seen, *other.seen),
            notes=(*self.notes, *other.notes),
            all_reduces=(*self.all_reduces, *other.all_reduces),
        ).with_more(other.findings)

    def require(self) -> None:
        """Raise PreflightError if there are fatal findings; it lists them all."""
        if self.fatal:
            raise PreflightError([(f.node, f.what, f.fix) for f in self.fatal])

    def to_json(self) -> dict[str, Any]:
        """Return the report as ``doctor --json`` prints it; `typed_json.from_json` reads it."""
        slowest = slowest_links(self.all_reduces)
        links = {name: list(link.workers) for name, link in slowest.items()}
        return {"ok": not self.fatal, **object_to_json(self), "slowest_links": links}


def read_report(paths: RunPaths) -> PreflightReport | None:
    """Return the preflight report in a run's folder, or None."""
    try:
        return from_json(PreflightReport, foreign_json.read_json_object(paths.preflight))
    except (OSError, ValueError):
        return None
