"""The table of a preflight report: one row per check, one column per node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.text import Text

from tfcluster.errors import join_first
from tfcluster.nodes.probe_answers import ProbeAnswer
from tfcluster.preflight.preflight_report import (
    Finding,
    MeasuredAllReduce,
    PreflightReport,
    slowest_links,
)
from tfcluster.preflight.rules import VERSIONS, format_gpus
from tfcluster.ui.formats import format_bytes, plural
from tfcluster.ui.lines import sanitize_text
from tfcluster.ui.render import UNLIMITED, Grid, part_lines, part_texts
from tfcluster.ui.terminal import Painted, draw

_MAX_NODES = 8
_MAX_INTERFACES = 4


def format_report(report: PreflightReport, *, width: int | None, colours: bool) -> Painted:
    """Return all values, problems in red with what to do, and a last line that counts problems.

    `width`: columns of the screen, None without one. What to do is not wrapped, to be copied.
    """
    nodes = _nodes_to_show(report)
    others = len(report.nodes) - len(nodes)
    more = [f"{plural(others, 'other node')}: OK", ""] if others else []
    findings = [
        Text(sanitize_text(_format_finding(finding)), style=_style(finding))
        for finding in report.findings
    ]
    notes = [*map(sanitize_text, report.notes)]
    speeds = _format_all_reduces(report.all_reduces)
    ends = [*([""] if findings else []), *speeds, *notes, _summary(report)]
    table = _table(report, nodes, width or UNLIMITED)
    lines = [*table, Text(), *map(Text, more), *findings, *map(Text, ends)]
    text = Text("\n", no_wrap=True).join(lines)
    return draw(text, width or UNLIMITED, colours=True) if colours else Painted(text.plain)


def _nodes_to_show(report: PreflightReport) -> list[str]:
    """Return all nodes if they are few, else those with findings (or the first one)."""
    if len(report.nodes) <= _MAX_NODES:
        return list(report.nodes)
    named = {finding.node for finding in report.findings}
    return [node for node in report.nodes if node in named] or list(report.nodes[:1])


def _summary(report: PreflightReport) -> str:
    if report.fatal:
        return f"{plural(len(report.fatal), 'problem')} to fix before a start"
    notes = f" ({plural(len(report.warnings), 'note')})" if report.warnings else ""
    return f"All checks passed{notes}"


def _format_finding(finding: Finding) -> str:
    kind = "" if finding.is_fatal else "note: "
    fix = f"\n  → {finding.fix}" if finding.fix else ""
    return f"{kind}{finding.node}: {finding.what}{fix}"


def _style(finding: Finding) -> str:
    return "red" if finding.is_fatal else "yellow"


def _format_all_reduces(measured: Sequence[MeasuredAllReduce]) -> list[str]:
    """Return a table of the links and the ring of all workers, and the slowest link of each kind.

    A pair of workers has one bandwidth; of a larger ring the part of each link is in brackets.
    """
    if not measured:
        return []
    names = tuple(dict.fromkeys(each.communication for each in measured))
    cells = {(each.workers, each.communication): _format_speed(each) for each in measured}
    rows = tuple(
        (_format_group(workers), *(cells.get((workers, name), "") for name in names))
        for workers in dict.fromkeys(each.workers for each in measured)
    )
    grid = Grid((f"all-reduce of {format_bytes(measured[0].bytes)}", *names), rows)
    slowest = [
        f"slowest link with {name}: {_name_link(link)}, {_format_speed(link)}"
        for name, link in slowest_links(measured).items()
    ]
    return [*map(sanitize_text, [*part_lines(grid, UNLIMITED), *slowest]), ""]


def _format_group(workers: Sequence[str]) -> str:
    return " – ".join(workers) if len(workers) == 2 else f"ring of {len(workers)} workers"


def _format_speed(measured: MeasuredAllReduce) -> str:
    speed = f"{measured.gb_per_s:.3g} GB/s"
    if len(measured.workers) == 2:
        return speed
    return f"{speed} ({measured.link_gb_per_s:.3g} GB/s on each link)"


def _name_link(link: MeasuredAllReduce) -> str:
    """Return the two workers of a link, with their nodes unless these are named after them."""
    ends = list(zip(link.workers, link.nodes, strict=True))
    if len(set(link.nodes)) == 1 or all(worker.replace(":", "-") == node for worker, node in ends):
        return _format_group(link.workers)
    return " – ".join(f"{worker} ({node})" for worker, node in ends)


def _imported(answer: ProbeAnswer) -> str:
    imported = answer.imported
    if not imported or "error" in imported:
        return ""
    devices = ", ".join(imported.get("devices", ()))
    return f"{imported.get('version')} in {imported.get('seconds')} s: {devices}"


def _proxies(answer: ProbeAnswer) -> str:
    names = [name for name, value in answer.proxies.items() if value == "set"]
    return f"{', '.join(names)}: not passed to tasks" if names else ""


def _interfaces(answer: ProbeAnswer) -> str:
    """Return the interfaces, the one that tasks use first, and without loopback if it is not."""
    ordered = sorted(answer.interfaces, key=lambda interface: not interface[2])
    shown = {
        name: f"{name} {address}" + (" (tasks)" if is_used else "")
        for name, address, is_used in reversed(ordered)
        if is_used or not name.startswith("lo")
    }
    return join_first(list(reversed(shown.values())), _MAX_INTERFACES)


def _peers(answer: ProbeAnswer) -> str:
    reached = answer.peers - len(answer.unreachable)
    return f"{reached} of {answer.peers} reached" if answer.peers else ""


def _clock(answer: ProbeAnswer) -> str:
    return f"{round(answer.clock_ahead_s, 1) + 0.0:+.1f} s" if answer.clock_ahead_s else ""


def _bytes(count: int | None) -> str:
    return "" if count is None else f"{format_bytes(count)} free"


def _no_value(answer: ProbeAnswer) -> str:
    return ""


def _version(package: str) -> Callable[[ProbeAnswer], str]:
    return lambda answer: answer.packages.get(package, "")


_ROWS: Mapping[str, Callable[[ProbeAnswer], str]] = {
    **dict.fromkeys(("scheduler", "partition", "limits", "nodes", "run folder"), _no_value),
    **dict.fromkeys(("reach", "all-reduce", "spec"), _no_value),
    "Python": lambda answer: answer.python,
    "Python path": lambda answer: answer.executable,
    **{row: _version(package) for row, package in VERSIONS.items()},
    "import": _imported,
    "GPUs": lambda answer: "" if answer.gpu_trouble else format_gpus(answer.gpus),
    "cores": lambda answer: str(answer.cores or ""),
    "ports": lambda answer: ", ".join(map(str, answer.ports)),
    "port range": lambda answer: " to ".join(map(str, answer.port_range)),
    "names": _no_value,
    "interfaces": _interfaces,
    "peers": _peers,
    "proxies": _proxies,
    "clock": _clock,
    "disk": lambda answer: _bytes(answer.free_bytes),
    "/dev/shm": lambda answer: _bytes(answer.shm_bytes),
    "folders": _no_value,
    "script": lambda answer: (answer.script_sha256 or "")[:12],
}


def _rows(
    report: PreflightReport, nodes: Sequence[str]
) -> Iterator[tuple[str, list[tuple[str, list[Finding]]]]]:
    """Yield each check with the values and findings of `nodes`, if there are any.

    A backend's own checks of a job, such as ``permissions`` and ``volumes``, come first.
    """
    answers = {answer.node: answer for answer in report.seen}
    own = [finding.check for finding in report.findings if finding.check not in _ROWS]
    for check, show in {**dict.fromkeys(own, _no_value), **_ROWS}.items():
        cells = [
            (
                show(answers[node]) if node in answers else "",
                [f for f in report.findings if (f.node, f.check) == (node, check)],
            )
            for node in nodes
        ]
        if any(value or findings for value, findings in cells):
            yield check, cells


def _table(report: PreflightReport, nodes: Sequence[str], width: int) -> list[Text]:
    """Return the values, with a mark at each problem; one node after another if it is narrow."""
    rows = [(check, [_mark_cell(*cell) for cell in cells]) for check, cells in _rows(report, nodes)]
    styles = tuple(
        ("dim", *(_style_cell(found) for _, found in cells)) for _, cells in _rows(report, nodes)
    )
    by_check = tuple((check, *cells) for check, cells in rows)
    lines = part_texts(Grid(("", *nodes), by_check, styles=styles), UNLIMITED)
    if max(line.cell_len for line in lines) <= width:
        return lines
    by_node = zip(nodes, *(cells for _, cells in rows), strict=True)
    return part_texts(Grid(("", *(check for check, _ in rows)), tuple(by_node)), width)


def _mark_cell(value: str, findings: Sequence[Finding]) -> str:
    if not findings:
        return value
    mark = "✗" if any(finding.is_fatal for finding in findings) else "!"
    return f"{value} {mark}".lstrip()


def _style_cell(findings: Sequence[Finding]) -> str:
    return min(map(_style, findings), default="")  # red comes before yellow
