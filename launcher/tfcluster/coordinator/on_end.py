"""Tells the user's command or webhook how a run has ended (`supervision.on_end`)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from typing import Final
from urllib.parse import urlsplit

from tfcluster import __version__
from tfcluster.agent.error_text import describe_error, reason_of
from tfcluster.coordinator.launch import SIGNALS
from tfcluster.errors import signal_name
from tfcluster.plans.plan import Plan
from tfcluster.rundir.events import Warned
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.snapshot import describe_failure, end_json
from tfcluster.rundir.task_logs import last_line

LIMIT_S: Final = 60.0
"""The time after which a command is killed."""
_ANSWER_S: Final = 10.0
"""The time in which the server of a webhook must answer."""


def tell(writer: RunWriter, plan: Plan) -> None:
    """Run the command or call the webhook of a run that has ended; a failure is a warning."""
    target, state = plan.supervision.on_end, writer.state
    if target is None:
        return
    writer.save()  # commands about the run see its end
    text = describe_failure(state)[0] or f"{state.run}: {state.status}"
    end = json.dumps({**end_json(state), "text": text}, default=str).encode()
    try:
        is_url = target.startswith("https://")
        problem = _post(target, end) if is_url else _run(target, end, writer, plan)
    except Exception as error:  # the end of the run is known, and must not be lost
        problem = f"it failed: {type(error).__name__}"
    if problem:
        writer.record(Warned(message=f"supervision.on_end: {problem}", closing=True))


def _run(command: str, end: bytes, writer: RunWriter, plan: Plan) -> str:
    """Run a command to its end; return why it failed, or ""."""
    state, log = writer.state, writer.paths.on_end_log
    env = {**os.environ, "TFCLUSTER_RUN": state.run, "TFCLUSTER_STATUS": str(state.status)}
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=plan.workdir if os.path.isdir(plan.workdir) else writer.paths.root,
                env=env,
                start_new_session=True,
                preexec_fn=_restore_signals,
            )
        try:
            process.communicate(end, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"the command was killed after {LIMIT_S:.0f} s; its output: {log}"
    except OSError as error:
        return f"the command did not run: {reason_of(error)}"
    said = last_line(log)
    with contextlib.suppress(FileNotFoundError):  # the folder was deleted meanwhile
        if not log.stat().st_size:
            log.unlink()
    code = process.returncode
    how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    return f"the command {how}{f': {said}' if said else ''}" if code else ""


def _restore_signals() -> None:
    """Let the command be stopped by the signals that a coordinator handles, and has blocked."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


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
