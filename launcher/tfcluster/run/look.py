"""What came of looking at nodes before the start, as one value: for tables, files and errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfcluster.agent import foreign_json
from tfcluster.errors import PreflightError
from tfcluster.run.paths import RunPaths
from tfcluster.run.preflight import Finding
from tfcluster.run.seen import Seen


@dataclass(frozen=True, slots=True)
class Look:
    """Of each node what was seen, where it could be looked at, and what is wrong with it."""

    nodes: tuple[str, ...]
    seen: tuple[Seen, ...]
    findings: tuple[Finding, ...]
    """The fatal ones first."""

    @property
    def fatal(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.is_fatal)

    @property
    def told(self) -> tuple[Finding, ...]:
        """What stops nothing."""
        return tuple(finding for finding in self.findings if not finding.is_fatal)

    def with_more(self, findings: Iterable[Finding]) -> Look:
        """`findings`, too; of one thing about one node the first is enough."""
        merged: dict[tuple[str, str, str], Finding] = {}
        for finding in (*findings, *self.findings):
            merged.setdefault((finding.node, finding.check, finding.what), finding)
        ordered = sorted(merged.values(), key=lambda finding: not finding.is_fatal)
        return Look(self.nodes, self.seen, tuple(ordered))

    def require(self) -> None:
        """Raises PreflightError for all that is fatal."""
        if self.fatal:
            raise PreflightError([(f.node, f.what, f.cure) for f in self.fatal])

    def to_json(self) -> dict[str, Any]:
        """As ``doctor --json`` prints it; read back by `from_json`."""
        return {
            "ok": not self.fatal,
            "nodes": list(self.nodes),
            "seen": [asdict(one) for one in self.seen],
            "findings": [asdict(finding) for finding in self.findings],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Look:
        """Raises KeyError or TypeError for anything else."""
        return cls(
            tuple(data["nodes"]),
            tuple(Seen(**one) for one in data["seen"]),
            tuple(Finding(**one) for one in data["findings"]),
        )


def first_seen(seen: Sequence[Seen], node: str) -> Seen | None:
    """The report of `node`, if it gave one."""
    return next((one for one in seen if one.node == node), None)


def read_look(paths: RunPaths) -> Look | None:
    """What a run saw before its start; None where it did not look."""
    try:
        return Look.from_json(foreign_json.read_object(paths.preflight))
    except (OSError, ValueError, KeyError, TypeError):
        return None
