"""The live view of `tfcluster.run` in IPython, and the magic ``%%tfcluster``.

It is imported only where IPython runs already.
"""

from __future__ import annotations

import contextlib
import shlex
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any, Final

import click
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from tfcluster import api, functions
from tfcluster.errors import TfclusterError, UsageError
from tfcluster.run_handle import JobFailed, Result, Run
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.ui.follow import RunView
from tfcluster.ui.formats import cut_to_columns
from tfcluster.ui.history import log_of_cause
from tfcluster.ui.html import live_html
from tfcluster.ui.live_panel import format_status_line
from tfcluster.ui.log_excerpt import excerpt
from tfcluster.ui.merged_logs import LastLines, LineStyle, MergedLogs
from tfcluster.ui.panels import root_cause_panel
from tfcluster.ui.render import plain_text
from tfcluster.ui.terminal import Terminal

_LINES: Final = 20
_COLUMNS: Final = 120
_PAUSE_S: Final = 0.2


@click.command("%%tfcluster", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-n", "workers", type=click.IntRange(1), default=2, show_default=True, metavar="N",
              help="Number of workers.")  # fmt: skip
@click.option("--push", default="", metavar="A,B", help="Variables that the cell gets.")
@click.option("--pull", default="", metavar="A,B",
              help="Variables of the cell on the chief to set in the notebook.")  # fmt: skip
@click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Set a field of the spec.")
@click.option("-H", "--hosts", metavar="HOSTS", help="Run the workers on these hosts.")
@click.option("--python", metavar="PATH",
              help="Python of the workers (default: the notebook's).")  # fmt: skip
def _options(**options: Any) -> dict[str, Any]:
    """Run the cell on N workers of one cluster; it sees no variables but those pushed."""
    return options


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Define the magic; called by ``%load_ext tfcluster``."""
    shell.register_magic_function(MethodType(run_cell, shell), "cell", "tfcluster")


def run_cell(shell: InteractiveShell, line: str, cell: str) -> None:
    """Run the cell on the workers of one cluster; ``%%tfcluster --help`` lists the options."""
    try:
        options = _parse(line)
        if isinstance(options, dict):  # else it has printed the help
            _run(shell, cell, **options)
    except (TfclusterError, KeyboardInterrupt) as error:
        raise _without_traceback(shell, error) from None


def _parse(line: str) -> Any:
    try:
        return _options.main(shlex.split(line), "%%tfcluster", standalone_mode=False)
    except click.ClickException as error:
        raise UsageError(error.format_message()) from error
    except ValueError as error:  # such as a quotation mark without its partner
        raise UsageError(f"%%tfcluster {line}: {error}") from error


def _run(
    shell: InteractiveShell, cell: str, *, workers: int, push: str, pull: str, **options: Any
) -> None:
    variables = _pushed(shell, _names(push))
    # The magic is the cell's first line: tracebacks then have the line numbers of the notebook.
    source, name = f"\n{cell}", _cell_name()
    if options["python"] is None and options["hosts"] is None:
        _check_syntax(source, name)
    with functions.package_cell(source, name=name, push=variables, pull=_names(pull)) as package:
        run = api.start_package(package, workers=workers, **options)
        result = watch(shell, run)
    result.check()
    if pull:
        shell.push(result.value)


def _check_syntax(source: str, name: str) -> None:
    """Raise UsageError for a cell that is not Python, before anything is started."""
    try:
        compile(source, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        text = "".join(traceback.format_exception_only(error))
        raise UsageError(text.strip()) from error


def _cell_name() -> str:
    """Return ``Cell In[3]`` for the cell that called the magic."""
    frames = (frame.f_code.co_filename for frame, _ in traceback.walk_stack(None))
    names = ((file, functions.name_in_tracebacks(file)) for file in frames)
    return next((name for file, name in names if name != file), "<cell>")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _pushed(shell: InteractiveShell, names: list[str]) -> dict[str, Any]:
    if missing := [name for name in names if name not in shell.user_ns]:
        raise UsageError(f"the notebook does not define {', '.join(missing)} (--push)")
    return {name: shell.user_ns[name] for name in names}


def _without_traceback(shell: InteractiveShell, error: BaseException) -> BaseException:
    """Return `error`, of which a notebook will show the text, and not the way through tfcluster."""
    lines = str(error).splitlines()
    if isinstance(error, KeyboardInterrupt):
        lines = ["KeyboardInterrupt: the run was stopped"]
    elif isinstance(error, JobFailed):
        is_notebook = hasattr(shell, "kernel")
        lines = _root_cause(error.run, _COLUMNS if is_notebook else Terminal().width) or lines
    error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]  # see IPython's docs
    return error


def _root_cause(run: Run, width: int) -> list[str]:
    state = run.state()
    log = log_of_cause(state)
    panel = root_cause_panel(state, run.paths, excerpt(run.folder / log) if log else ())
    if panel is None:
        return []
    return [f"{run.id} {state.status}", *plain_text(panel, width).splitlines()]


def watch(shell: InteractiveShell, run: Run) -> Result:
    """Show the run until its end; an interrupt stops it first, and a second one kills its tasks."""
    asked = interrupts = 0
    try:
        with _view(shell, run) as update:
            while True:
                try:
                    if asked < interrupts:
                        asked = interrupts
                        with contextlib.suppress(TfclusterError):
                            run.ask_to_stop(why="Ctrl-C", now=asked > 1)
                    if (state := run.state()).status.is_final:
                        break
                    update(state)
                    time.sleep(_PAUSE_S)
                except KeyboardInterrupt:
                    interrupts += 1
            result = run.wait()
    except BaseException:
        run.stop()  # it has ended, unless the interrupt came before or after the loop
        raise
    if interrupts:
        raise _without_traceback(shell, KeyboardInterrupt())
    return result


@contextlib.contextmanager
def _view(shell: InteractiveShell, run: Run) -> Iterator[Callable[[RunSnapshot], None]]:
    """Show the run while the block calls the function that it gets, then how the run ended."""
    if hasattr(shell, "kernel"):
        cell = _CellView(run)
        try:
            yield cell.update
        finally:
            cell.finish()
    else:
        terminal = Terminal()
        view = RunView(run.paths, terminal)
        view.start()
        try:
            yield lambda state: None
        finally:
            view.finish()
        terminal.say(_describe_end(run, run.state(), terminal.width))


def _describe_end(run: Run, state: RunSnapshot, width: int) -> str:
    """Return the last status of a run, and where its checkpoint and its logs are."""
    lines = [format_status_line(state, now=time.time(), width=width)]
    if (newest := run.newest_checkpoint) is not None:
        lines.append(f"checkpoint {newest.path}")
    return "\n".join([*lines, f"logs {run.paths.logs}"])


class _CellView:
    """The output of a cell: status, progress, tasks and their last lines, updated in place."""

    def __init__(self, run: Run) -> None:
        self._run = run
        line_style = LineStyle(is_screen=True, collapse=True, folds=True)
        self._logs = MergedLogs(run.paths, line_style=line_style)
        self._lines = deque[str](maxlen=_LINES)
        self._last_lines = LastLines(run.paths)
        self._hidden = 0
        self._shown = self._content(run.state())
        self._output = display(self._shown, raw=True, display_id=True)

    def update(self, state: RunSnapshot) -> None:
        """Show what is new."""
        self._show(state, self._logs.advance())

    def finish(self) -> None:
        """Show the rest of a run that has ended."""
        self._show(self._run.state(), self._logs.drain())

    def _show(self, state: RunSnapshot, blocks: Iterator[bytes]) -> None:
        for block in blocks:
            lines = block.decode(errors="replace").splitlines()
            self._hidden += max(0, len(self._lines) + len(lines) - _LINES)
            self._lines += lines
        content = self._content(state)
        if content != self._shown:
            self._shown = content
            self._output.update(content, raw=True)

    def _content(self, state: RunSnapshot) -> dict[str, str]:
        lines = [cut_to_columns(line, _COLUMNS) for line in self._lines]
        if self._hidden:
            lines.insert(0, f"… {self._hidden:,} earlier lines: tfcluster logs {self._run.id}")
        status = self._status(state)
        shown = live_html(state, status, lines, self._last_lines.of)
        return {"text/plain": "\n".join([*lines, status]), "text/html": shown}

    def _status(self, state: RunSnapshot) -> str:
        if state.status.is_final:
            return _describe_end(self._run, state, _COLUMNS)
        status = format_status_line(state, now=time.time(), width=_COLUMNS)
        return status.replace("Ctrl-C again", "a second interrupt")
