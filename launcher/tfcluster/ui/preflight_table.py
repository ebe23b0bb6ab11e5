"""What was seen of the nodes before the start: one row per thing, one column per node."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tfcluster.nodes.probe_answers import ProbeAnswer
from tfcluster.preflight.rules import VERSIONS, Finding, PreflightReport, answer_of, format_gpus
from tfcluster.ui.formats import format_bytes, plural
from tfcluster.ui.lines import harmless_text
from tfcluster.ui.render import Facts, Grid, part_lines
from tfcluster.ui.terminal import Painted

if TYPE_CHECKING:
    from rich.table import Table

_UNLIMITED = 100_000
_MOST_COLUMNS = 8
_LEAST_COLUMN = 26
"""Columns of the screen below which a node's cells would be ladders of words."""


def table(look: PreflightReport, *, width: int | None, colours: bool) -> Painted:
    """Everything that was seen, what is wrong in red with what to do, and a last line that counts.

    `width`: columns of a screen; None: no screen, so nothing is wrapped.
    """
    nodes = _worth_showing(look)
    if width is not None and 14 + _LEAST_COLUMN * len(nodes) <= width:
        shown = _screen(look, nodes, width, colours=colours)
        rest = [finding for finding in look.findings if finding.node not in nodes]
    else:
        shown, rest = _plain(look, nodes, width or _UNLIMITED), list(look.findings)
    others = len(look.nodes) - len(nodes)
    more = [f"{plural(others, 'other node')}: OK", ""] if others else []
    told = [harmless_text(_told(finding)) for finding in rest]
    parts = [shown, "", *more, *told, *([""] if rest else []), _count(look)]
    return Painted("\n".join(parts))


def _worth_showing(look: PreflightReport) -> list[str]:
    """All of a few nodes; of many those with findings first, as many as a person can compare."""
    if len(look.nodes) <= _MOST_COLUMNS:
        return list(look.nodes)
    named = {finding.node for finding in look.findings}
    return [node for node in look.nodes if node in named] or list(look.nodes[:1])


def _count(look: PreflightReport) -> str:
    if not look.fatal:
        told = f", {plural(len(look.warnings), 'thing')} to know" if look.warnings else ""
        return f"nothing stands in the way{told}"
    return f"{plural(len(look.fatal), 'thing')} must change before a start"


def _told(finding: Finding) -> str:
    kind = "" if finding.is_fatal else "note: "
    return f"{kind}{finding.node}: {finding.what}\n  → {finding.fix}"


# -- values ---------------------------------------------------------------------------------


def _imported(one: ProbeAnswer) -> str:
    found = one.imported
    if not found or "error" in found:
        return ""
    devices = ", ".join(found.get("devices", ()))
    return f"{found.get('version')} in {found.get('seconds')} s: {devices}"


def _proxies(one: ProbeAnswer) -> str:
    names = [name for name, value in one.proxies.items() if value == "set"]
    return f"{', '.join(names)}: kept off the tasks" if names else ""


def _peers(one: ProbeAnswer) -> str:
    reached = one.peers - len(one.unreachable)
    return f"{reached} of {one.peers} reached" if one.peers else ""


def _ports(one: ProbeAnswer) -> str:
    return ", ".join(map(str, one.ports))


def _clock(one: ProbeAnswer) -> str:
    return f"{round(one.clock_ahead_s, 1) + 0.0:+.1f} s" if one.clock_ahead_s else ""


def _bytes(count: int | None) -> str:
    return "" if count is None else f"{format_bytes(count)} free"


def _version(package: str) -> Callable[[ProbeAnswer], str]:
    return lambda one: one.packages.get(package, "")


_ROWS: Mapping[str, Callable[[ProbeAnswer], str]] = {
    "reach": lambda one: "",
    "spec": lambda one: "",
    "Python": lambda one: one.python,
    "its path": lambda one: one.executable,
    **{row: _version(package) for row, package in VERSIONS.items()},
    "import": _imported,
    "GPUs": lambda one: "" if one.gpu_trouble else format_gpus(one.gpus),
    "cores": lambda one: str(one.cores or ""),
    "ports": _ports,
    "port range": lambda one: " to ".join(map(str, one.port_range)),
    "names": lambda one: "",
    "peers": _peers,
    "proxies": _proxies,
    "clock": _clock,
    "disk": lambda one: _bytes(one.free_bytes),
    "/dev/shm": lambda one: _bytes(one.shm_bytes),
    "folders": lambda one: "",
    "script": lambda one: (one.script_sha256 or "")[:12],
}


def _cell(look: PreflightReport, check: str, node: str) -> tuple[str, list[Finding]]:
    one = answer_of(look.answers, node)
    found = [f for f in look.findings if (f.node, f.check) == (node, check)]
    return (_ROWS[check](one) if one is not None else ""), found


def _rows(
    look: PreflightReport, nodes: Sequence[str]
) -> list[tuple[str, list[tuple[str, list[Finding]]]]]:
    rows = [(check, [_cell(look, check, node) for node in nodes]) for check in _ROWS]
    return [(check, cells) for check, cells in rows if any(v or found for v, found in cells)]


# -- shapes ---------------------------------------------------------------------------------


def _plain(look: PreflightReport, nodes: Sequence[str], width: int) -> str:
    """Values only, with a mark where something is wrong; node after node where it is narrow."""
    rows = [(check, [_marked(*cell) for cell in cells]) for check, cells in _rows(look, nodes)]
    grid = Grid(("", *nodes), tuple((check, *cells) for check, cells in rows))
    lines = part_lines(grid, _UNLIMITED)
    if max(map(len, lines)) <= width:
        return "\n".join(lines)
    found = []
    for number, node in enumerate(nodes):
        pairs = tuple((check, cells[number]) for check, cells in rows if cells[number])
        found += [node, *(f"  {line}" for line in part_lines(Facts(pairs), width - 2))]
    return "\n".join(found)


def _marked(value: str, found: Sequence[Finding]) -> str:
    if not found:
        return value
    mark = "✗" if any(finding.is_fatal for finding in found) else "!"
    return f"{value} {mark}".lstrip()


def _screen(look: PreflightReport, nodes: Sequence[str], width: int, *, colours: bool) -> str:
    """Through rich (imported here: most commands never need it)."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=True,
        color_system="standard" if colours else None,
        no_color=not colours,
        highlight=False,
        legacy_windows=False,
    )
    shown = Table(box=SIMPLE_HEAD, pad_edge=False)
    shown.add_column("")
    for node in nodes:
        shown.add_column(Text(harmless_text(node)), overflow="fold")
    for check, cells in _rows(look, nodes):
        _add_row(shown, check, cells)
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().rstrip().split("\n")
    return "\n".join(lines if lines[0].strip() else lines[1:])


def _add_row(shown: Table, check: str, cells: Sequence[tuple[str, list[Finding]]]) -> None:
    from rich.text import Text

    texts = []
    for value, found in cells:
        text = Text(harmless_text(value) if not found else "")
        for finding in found:
            tone = "red" if finding.is_fatal else "yellow"
            text.append(harmless_text(f"{finding.what}\n→ {finding.fix}\n"), style=tone)
        text.rstrip()
        texts.append(text)
    shown.add_row(Text(check, style="dim"), *texts)
