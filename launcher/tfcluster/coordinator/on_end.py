"""Tells the user's command or webhook how a run has ended (`supervision.on_end`)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final
from urllib.parse import urlsplit

from tfcluster import __version__
from tfcluster.agent.error_text import describe_error, reason_of
from tfcluster.agent.tasks.output import Mask
from tfcluster.coordinator.launch import SIGNALS, is_repeated
from tfcluster.errors import UsageError, signal_name
from tfcluster.plans.plan import Plan
from tfcluster.plans.secrets import find_webhook
from tfcluster.rundir.events import Warned
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.snapshot import describe_failure, end_json
from tfcluster.rundir.task_logs import last_line

LIMIT_S: Final = 60.0
"""The time after which a command is killed."""
_ANSWER_S: Final = 10.0
"""The time in which the server of a webhook must answer."""


class _StoppedError(Exception):
    """A signal has come that stops runs."""


@dataclass(slots=True)
class _Stop:
    """The signals that end what runs."""

    why: str = ""
    """The one that has come."""
    is_held: bool = False
    """True while a command starts: its process must be known before it can be killed."""

    def raise_it(self) -> None:
        if self.why and not self.is_held:
            raise _StoppedError(f"it was ended by {self.why}")


def tell(writer: RunWriter, plan: Plan, *, handles_signals: bool = True) -> None:
    """Run the command or call the webhook of a run that has ended; a failure is a warning.

    Ctrl-C and SIGTERM end that, unless `handles_signals` is False, as outside the main thread.
    """
    if plan.supervision.on_end is None:
        return
    state = writer.state
    writer.save()  # commands about the run see its end
    text = describe_failure(state)[0] or f"{state.run}: {state.status}"
    end = json.dumps({**end_json(state), "text": text}, default=str).encode()
    try:
        target = find_webhook(plan.supervision.on_end, os.environ)
        stop = _Stop()
        with _heeding_signals(stop) if handles_signals else contextlib.nullcontext():
            is_url = target.startswith("https://")
            problem = _post(target, end) if is_url else _run(target, end, writer, plan, stop)
    except (_StoppedError, UsageError) as error:
        problem = str(error)
    except Exception as error:  # the end of the run is known, and must not be lost
        problem = f"it failed: {type(error).__name__}"
    if problem:
        writer.record(Warned(message=f"supervision.on_end: {problem}", closing=True))


@contextlib.contextmanager
def _heeding_signals(stop: _Stop) -> Iterator[None]:
    """Raise `_StoppedError` at Ctrl-C and SIGTERM; a command that starts here has no signals
    blocked, nor these ignored."""

    def heed(number: int, frame: object) -> None:
        if not is_repeated(number):
            for each in before:
                signal.signal(each, signal.SIG_IGN)
            stop.why = SIGNALS[signal.Signals(number)].why
            stop.raise_it()

    before = {each: signal.signal(each, heed) for each in (signal.SIGINT, signal.SIGTERM)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for each, handler in before.items():
            signal.signal(each, handler)


def _run(command: str, end: bytes, writer: RunWriter, plan: Plan, stop: _Stop) -> str:
    """Run a command to its end; return why it failed, or ""."""
    state, folder, log = writer.state, writer.paths.root, writer.paths.on_end_log
    env = {**os.environ, "TFCLUSTER_RUN": state.run, "TFCLUSTER_STATUS": str(state.status)}
    try:
        # What it says may have secrets, so it gets a name only once they are masked.
        with (
            tempfile.TemporaryFile(dir=folder) as output,
            tempfile.TemporaryFile(dir=folder) as given,
        ):
            given.write(end)
            given.seek(0)
            stop.is_held = True
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=given,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=plan.workdir if os.path.isdir(plan.workdir) else folder,
                env=env,
                start_new_session=True,
            )
            try:
                stop.is_held = False
                stop.raise_it()
                process.wait(LIMIT_S)
            except (subprocess.TimeoutExpired, _StoppedError) as cut:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if isinstance(cut, _StoppedError):
                    raise
                return f"the command was killed after {LIMIT_S:.0f} s; its output: {log}"
            finally:
                _keep(output, log, writer.secrets)
    except OSError as error:
        return f"the command did not run: {reason_of(error)}"
    said, code = last_line(log), process.returncode
    how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    return f"the command {how}{f': {said}' if said else ''}" if code else ""


def _keep(output: IO[bytes], log: Path, secrets: Sequence[str]) -> None:
    """Write what a command has said into `log`, with `secrets` masked; nothing makes no file."""
    if not output.seek(0, os.SEEK_END):
        return
    output.seek(0)
    mask = Mask([value.encode("utf-8", "surrogateescape") for value in secrets])
    with log.open("wb") as file:
        while data := output.read(1 << 20):
            file.write(mask.apply(data))
        file.write(mask.flush())


def _post(url: str, end: bytes) -> str:
    """Send the end of a run to a webhook; return why that failed, or "".

    The path of the URL is not shown: that of a chat's webhook is its password.
    """
    import http.client
    import urllib.error
    import urllib.request

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        """Refuses redirects, which would become a GET without the JSON."""

        def redirect_request(self, *_: object) -> None:
            return None

    headers = {"Content-Type": "application/json", "User-Agent": f"tfcluster/{__version__}"}
    host = urlsplit(url).hostname
    try:
        request = urllib.request.Request(url, end, headers)
        with urllib.request.build_opener(NoRedirects).open(request, timeout=_ANSWER_S):
            return ""
    except urllib.error.HTTPError as error:
        return f"{host} answered {error.code} {error.reason}"
    except urllib.error.URLError as error:
        why = error.reason
        return f"{host}: {describe_error(why) if isinstance(why, Exception) else why}"
    except (OSError, ValueError, http.client.HTTPException) as error:  # its text may have the path
        return f"{host}: {type(error).__name__}"
