"""`tfcluster scale`: measure how a job scales, on its cluster or on simulated networks."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from tfcluster.cli.options import (
    HOST_OPTIONS,
    WithJobArgs,
    backend_option,
    plan_options,
    write_output,
)
from tfcluster.errors import UsageError
from tfcluster.spec import NO_CHOICE, PlanOptions

if TYPE_CHECKING:
    from tfcluster.scaling.cell_runs import PlannedCell, StudyRequest
    from tfcluster.scaling.study import Study
    from tfcluster.ui.terminal import Terminal

_MOST_WORKERS = 64


@click.command("scale", cls=WithJobArgs)
@click.argument("spec", required=False)
@click.option("--workers", "counts", default="1,2", metavar="N,N", show_default=True,
              help="Numbers of workers; 1 is always measured.")  # fmt: skip
@click.option("--rate", "rates", metavar="RATE,RATE",
              help="Simulate networks of these rates here: 100mbit, 10gbit.")  # fmt: skip
@click.option("--communication", metavar="NAME,NAME",
              help="RING, AUTO, NCCL (default: the spec's; with --rate AUTO).")  # fmt: skip
@click.option("--steps", type=click.IntRange(1), default=200, metavar="N", show_default=True,
              help="Timed steps of each cell, at least.")  # fmt: skip
@click.option("--predict", metavar="N,N", help="Predict so many hosts; needs --rate.")
@plan_options(*HOST_OPTIONS, backend_option)
@click.option("--json", "as_json", is_flag=True, help="Print the study as one JSON object.")
@click.option("-o", "--output", "target", metavar="FILE",
              help="Also write a page with charts; - is stdout.")  # fmt: skip
def command(
    spec: str | None,
    counts: str,
    rates: str | None,
    communication: str | None,
    steps: int,
    predict: str | None,
    changes: PlanOptions,
    as_json: bool,
    target: str | None,
) -> None:
    """Time the steps of SPEC (./tfcluster.json) with several numbers of workers.

    Each number is a run on the spec's own backend and hosts, of which it takes the first. The
    table compares it with one worker, and says what a step consists of.

    With --rate all workers run on this machine, on simulated networks, once for each number of
    workers, communication and rate. A model of the step is fitted to these cells; those of as many
    workers as --predict names only test it.

    ARGS after -- are appended to the job's own: let it train long enough.
    """
    from tfcluster.scaling.cell_runs import StudyRequest
    from tfcluster.ui.terminal import Terminal

    request = StudyRequest(
        source=spec,
        workers=_counts(counts, "--workers"),
        rates=_rates(rates) if rates is not None else (),
        communications=_communications(communication, is_simulated=rates is not None),
        steps=steps,
        options=changes,
    )
    hosts = _counts(predict, "--predict") if predict is not None else ()
    _require_fit(request, hosts)
    _require_folder(target)
    terminal = Terminal()
    _print(_measure(request, hosts, terminal), terminal, as_json=as_json, target=target)


def _measure(request: StudyRequest, hosts: tuple[int, ...], terminal: Terminal) -> Study:
    """Measure all cells, showing the progress on stderr, and analyse them."""
    from tfcluster.scaling.cell_runs import machine_cores, measure, notes_of, plan_cells
    from tfcluster.scaling.study import analyse

    cells = plan_cells(request)
    try:
        measured = measure(
            cells,
            request,
            tell=lambda number, cell, remaining_s: _say(
                f"cell {number} of {len(cells)}", cell, remaining_s, terminal
            ),
            warn=lambda warning: terminal.say_wrapped(f"warning: {warning}", "yellow"),
        )
    finally:
        terminal.clear_footer()
    return analyse(
        cells[0].planned.plan.name,
        measured,
        backend=cells[0].backend,
        cores=machine_cores() if cells[0].is_here else None,
        predict=hosts,
        notes=notes_of(cells),
    )


def _print(study: Study, terminal: Terminal, *, as_json: bool, target: str | None) -> None:
    """Print the table or JSON to stdout; write the page, which replaces them on stdout."""
    from tfcluster.ui.render import UNLIMITED, part_lines
    from tfcluster.ui.scaling_tables import describe_study, study_parts

    if as_json and target != "-":
        terminal.emit_json(study.to_json())
    elif target != "-":
        width = terminal.stdout.width() or UNLIMITED
        parts = ("\n".join(part_lines(part, width)) for part in study_parts(study))
        terminal.out("\n\n".join(parts))
    if target is not None:
        from tfcluster.web.rendering import render_file

        page = render_file("study", describe_study(study, ["tfcluster", *sys.argv[1:]]))
        write_output(page, target, announce=terminal.say)


def _say(place: str, cell: PlannedCell, remaining_s: float | None, terminal: Terminal) -> None:
    """Show the cell that is measured now: at the bottom of a screen, elsewhere as a line."""
    from rich.text import Text

    from tfcluster.ui.formats import format_bits, format_duration, plural

    text = f"{place}: {plural(cell.workers, 'worker')}"
    if cell.communication is not None:
        text += f", {cell.communication}"
    if cell.rate is not None:
        text += f" at {format_bits(cell.rate)}"
    if remaining_s is not None:
        text += f"; about {format_duration(remaining_s)} left"
    if terminal.has_footer:
        terminal.show_footer([Text(text, "dim")])
    else:
        terminal.say(text)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _rates(text: str) -> tuple[float, ...]:
    """Return the rates in `text` in bits per second; raises UsageError."""
    from tfcluster.spec.network import read_rate

    rates = (read_rate(word, option="--rate") for word in _words(text) or [text])
    return tuple(dict.fromkeys(rates))


def _counts(text: str, option: str) -> tuple[int, ...]:
    """Return the numbers of workers in `text`, sorted; raises UsageError."""
    words = _words(text)
    is_valid = all(word.isascii() and word.isdigit() for word in words)
    if not words or not is_valid or not all(1 <= int(word) <= _MOST_WORKERS for word in words):
        raise UsageError(
            f"{option}: {text!r} is not a list of numbers of workers",
            fix=f"write numbers from 1 to {_MOST_WORKERS}: {option} 1,2,4",
        )
    return tuple(sorted({int(word) for word in words}))


def _communications(text: str | None, *, is_simulated: bool) -> tuple[str, ...]:
    """Return the communications in `text`, none for the spec's own; raises UsageError."""
    if text is None:
        return ("AUTO",) if is_simulated else ()
    words = [word.upper() for word in _words(text)]
    known = ("AUTO", "RING") if is_simulated else ("AUTO", "RING", "NCCL")
    if not words or not {*words} <= {*known}:
        fix = f"write some of {', '.join(known)}: --communication RING,AUTO"
        if "NCCL" in words:
            fix = "NCCL needs GPUs with a network of their own, which is not simulated; " + fix
        raise UsageError(f"--communication: {text!r} cannot be measured", fix=fix)
    return tuple(dict.fromkeys(words))


def _require_fit(request: StudyRequest, hosts: tuple[int, ...]) -> None:
    """Raise UsageError if nothing could be compared, or a prediction not be fitted."""
    options, used = request.options, [n for n in request.workers if n > 1 and n not in hosts]
    if not any(count > 1 for count in request.workers):
        fix = "measure several workers, for example --workers 1,2"
        raise UsageError("--workers: one worker sends nothing over a network", fix=fix)
    if hosts and not request.rates:
        raise UsageError(
            "--predict needs networks of known rates",
            fix="simulate them on this machine: --rate 1gbit,10gbit",
        )
    if request.rates and (options.hosts != NO_CHOICE or options.fields["--backend"][1]):
        raise UsageError(
            "--rate simulates networks on this machine, and not on other hosts or a backend",
            fix="leave it out to measure the real cluster",
        )
    if hosts and not used:
        raise UsageError(
            "--predict: cells of these numbers of workers only test the prediction, and no other"
            " cell of several workers is measured",
            fix=f"measure other numbers too: --workers 1,2,{','.join(map(str, hosts))}",
        )


def _require_folder(target: str | None) -> None:
    """Raise UsageError for a page that could not be written after all was measured."""
    folder = os.path.dirname(target or "") or "."
    if target not in (None, "-") and not os.path.isdir(folder):
        raise UsageError(f"{target} cannot be written: no folder {folder}", fix="make the folder")
