"""`tfcluster attach`: the live view of a run from any terminal; detaching leaves the run alone."""

from __future__ import annotations

import click

from tfcluster.backends import job_watch
from tfcluster.cli.closing import show_end
from tfcluster.cli.completion import live_runs
from tfcluster.cli.elsewhere import find_run, option_of, scheduler_options
from tfcluster.rundir.log_files import newest_attempts
from tfcluster.rundir.tail import end_of_lines
from tfcluster.ui.follow import RunView
from tfcluster.ui.history import format_attached, format_restart
from tfcluster.ui.merged_logs import LogFilter
from tfcluster.ui.terminal import Terminal

_LINES_BEFORE = 10


@click.command("attach")
@click.argument("run", required=False, shell_complete=live_runs)
@click.option("--collapse", is_flag=True, help="Show identical lines of several tasks once.")
@click.option("--native-logs", is_flag=True,
              help="Show TensorFlow's native start lines on a screen too.")  # fmt: skip
@click.option(
    "--json", "as_json", is_flag=True, help="Write events to stdout, task output to stderr."
)
@scheduler_options
def command(
    run: str | None,
    collapse: bool,
    native_logs: bool,
    as_json: bool,
    backend: str | None,
    context: str | None,
    namespace: str | None,
) -> None:
    """Watch RUN (default: the only live run) until it ends; Ctrl-C detaches, the run continues.

    Starts with the last lines of each task. The exit code is 0 however the run ends; `wait`
    returns the run's own exit code.
    """
    terminal = Terminal()
    found = find_run(run, backend, context, namespace, live_only=True)
    paths, state = found.paths, found.state()
    if state.status.is_final and not as_json:
        terminal.say(f"{state.run} has ended")
        show_end(state, paths, terminal)
        return
    if not as_json:
        terminal.say_wrapped(format_attached(state))
        if state.restarts:
            terminal.say_wrapped(format_restart(state.restarts[-1]), "yellow")
    view = RunView(
        paths,
        terminal,
        json_lines=as_json,
        log_filter=LogFilter(first_of=newest_attempts(paths.logs), tail=_LINES_BEFORE),
        collapse=collapse,
        native=native_logs,
        events_offset=0 if as_json else end_of_lines(paths.events),
    )
    try:
        view.run(is_over=job_watch.StateFile(paths).is_over)
    except KeyboardInterrupt:
        terminal.clear_footer()
        short = state.run[-4:] + option_of(paths, (state.job or {}).get("backend", ""))
        terminal.say_wrapped(
            f"detached; {state.run} keeps running: `tfcluster attach {short}` shows it again,"
            f" `tfcluster down {short}` stops it"
        )
        return
    if not as_json and paths.root.exists():
        show_end(found.state(), paths, terminal)
