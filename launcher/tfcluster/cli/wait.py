"""`tfcluster wait`: wait until a run ends."""

from __future__ import annotations

import click

from tfcluster.cli.completion import run_names
from tfcluster.errors import NodeLostError
from tfcluster.run_handle import Run
from tfcluster.rundir import registry
from tfcluster.rundir.snapshot import describe_failure
from tfcluster.ui import history
from tfcluster.ui.render import part_lines
from tfcluster.ui.terminal import Terminal


@click.command("wait")
@click.argument("run", required=False, shell_complete=run_names)
@click.option("--json", "as_json", is_flag=True, help="Print the run's status as one JSON object.")
def command(run: str | None, as_json: bool) -> int:
    """Wait until RUN ends; exit with its exit code.

    Without RUN: the only live run; if none is live, the latest run that was started with -d and
    has not been waited for.
    """
    terminal = Terminal()
    waited = Run(registry.resolve(run) if run is not None else registry.resolve_for_wait())
    state = waited.state()
    if run is None:
        has_ended = f"{state.run} has already ended: {state.status}"
        terminal.say(has_ended if state.status.is_final else f"waiting for {state.run}")
    waited.wait()
    state = waited.state()
    for part in (*history.format_reason(state), *history.format_cause(state)):
        terminal.say("\n".join(part_lines(part, terminal.width)))
    if as_json:
        facts = {"run": state.run, "status": str(state.status), "exit_code": state.exit_code}
        why = {"reason": state.reason, "hint": state.hint, "diagnosis": state.diagnosis}
        terminal.emit_json(facts | {key: value for key, value in why.items() if value})
    if state.exit_code is None:
        message, fix = describe_failure(state)
        raise NodeLostError(message, fix=fix)
    return state.exit_code
