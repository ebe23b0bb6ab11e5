"""An agent is reached through a command; slow hosts are waited for, silent ones are reported."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shlex
import signal
import sys
import time
import uuid
from pathlib import Path

import pytest
from tests import old_pythons

from tfcluster.agent.catalogue import Shutdown
from tfcluster.backends import relayed
from tfcluster.backends.base import RunContext
from tfcluster.backends.relayed import STARTER, DialFault, Unreached
from tfcluster.backends.ssh import ssh_nodes
from tfcluster.plans.plan import NodePlan

PYTHON = shlex.quote(sys.executable)
SILENCE_S = 15.0
"""Longer than a Python and an agent take to start on a busy machine."""
HANGS_S = 1.0
"""Enough where nothing will ever answer."""
START = f"exec {PYTHON} -I -S -c '{STARTER}'"
SLOWLY = (
    "import os, time\nwhile data := os.read(0, 16384):\n    os.write(1, data)\n    time.sleep(0.8)"
)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set an empty HOME, so that the bundle is not cached, and a short silence limit."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(relayed, "SILENCE_S", SILENCE_S)


def reach(script: str) -> float:
    """Connect through a shell that runs `script`; return the seconds it took."""

    async def scenario() -> float:
        begun = time.monotonic()
        context = RunContext(uuid.uuid4().hex, Path())
        link = await relayed.connect(["sh", "-c", script], context.relayed_agent("far", "t"))
        duration_s = time.monotonic() - begun
        await link.send(Shutdown())
        await link.close()
        return duration_s

    return asyncio.run(scenario())


def refusal(script: str, fault: DialFault | None = None) -> str:
    with pytest.raises(Unreached) as caught:
        reach(script)
    assert caught.value.fault is fault
    return str(caught.value)


def test_the_banner_of_a_prolog_is_not_the_reason() -> None:
    why = relayed.explain_dial(EOFError("== welcome =="), 0, "", logs_in=False)
    assert str(why) == "it ended with exit code 0; its output: == welcome =="
    why = relayed.explain_dial(EOFError("== welcome =="), 1, "no such image", logs_in=False)
    assert str(why) == "no such image"


def test_a_process_that_keeps_the_stderr_of_a_refusal_leaves_no_open_pipe(
    recwarn: pytest.WarningsRecorder, tmp_path: Path
) -> None:
    """As ssh's master connection does (ControlPersist)."""
    left = "sleep 600 </dev/null >/dev/null & echo $! > $HOME/pid; echo no such host >&2; exit 255"
    gc.collect()
    recwarn.clear()  # of other tests
    try:
        assert refusal(left) == "no such host"
        gc.collect()
        assert [each for each in recwarn if each.category is ResourceWarning] == []
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_output_of_a_login_is_skipped() -> None:
    reach(f"yes 'Welcome, dear user!' | head -c 40960; {START}")


def test_endless_login_output_is_shown_in_the_error() -> None:
    assert "the output was: Welcome" in refusal("yes 'Welcome, dear user!'")


@pytest.mark.slow
def test_a_slow_login_that_prints_something_is_waited_for() -> None:
    duration_s = reach(f"for i in 1 2 3 4; do echo wait; sleep 4; done; {START}")
    assert duration_s > SILENCE_S


@pytest.mark.slow
def test_a_bundle_over_a_slow_connection_is_waited_for() -> None:
    duration_s = reach(f"{PYTHON} -c {shlex.quote(SLOWLY)} | {{ {START}; }}")
    assert duration_s > SILENCE_S


def test_a_hanging_login_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relayed, "SILENCE_S", HANGS_S)
    message = refusal("sleep 600", DialFault.LOGIN)
    assert message.startswith("no answer for 1 s")


@pytest.mark.parametrize("python", [*old_pythons.REAL, ""])
def test_a_python_that_is_too_old_is_reported(tmp_path: Path, python: str) -> None:
    python = python or old_pythons.pretending(tmp_path / "python3")
    script = f"echo Welcome >&2; exec {python} -I -S -c '{STARTER}'"
    message = refusal(script, DialFault.OLD_PYTHON)
    reason = f"Python 3.9 or newer is needed, and {python} is 3."
    assert message.startswith(f"Welcome\n{reason}")


def test_a_cache_that_cannot_be_written_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / ".cache").write_text("a file where a folder should be")
    message = refusal(START)
    assert message.startswith("")
    assert "Not a directory" in message or "File exists" in message
    assert "Traceback" not in message
    assert "\n" not in message


def test_a_failed_connection_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relayed, "SILENCE_S", HANGS_S)
    mark = f"6{os.getpid()}"
    refusal(f"sleep {mark}", DialFault.LOGIN)
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ends meanwhile
            lines.append(path.read_bytes())
    assert f"sleep\0{mark}\0".encode() not in lines


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("Permission denied (publickey).", "Permission denied (publickey)."),
        (
            'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n'
            "tfcluster.agent.relay.RelayError: the agent did not start\n",
            "RelayError: the agent did not start",
        ),
        (
            "motd\nTraceback (most recent call last):\n    x\nKeyError: 'a'\n\nDuring handling of"
            " the above exception, another exception occurred:\n\nTraceback (most recent call"
            " last):\n    y\nOSError: [Errno 28] No space left on device",
            "motd\nKeyError: 'a'\nOSError: [Errno 28] No space left on device",
        ),
    ],
)
def test_only_the_exception_of_a_traceback_is_shown(message: str, shown: str) -> None:
    assert relayed.shorten_tracebacks(message) == shown


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        ("anna@gpu1: Permission denied (publickey).", "ssh-copy-id gpu1"),
        ("Host key verification failed.", "compare the fingerprint"),
        (
            "Host key for gpu1 has changed and you have requested strict checking.\n"
            "Host key verification failed.",
            "another machine answers in its place",
        ),
        ("ssh: Could not resolve hostname gpu1: Name or service not known", "spelled correctly"),
        ("ssh: connect to host 10.0.0.1 port 22: No route to host", "is the host up"),
        ("sh: 1: exec: /no/python: not found", "runtime.hosts.10.0.0.1.python"),
        ("sh: line 1: /no/python: No such file or directory", "runtime.hosts.10.0.0.1.python"),
        ("Unknown option: -I", "runtime.hosts.10.0.0.1.python"),
        ("OSError: [Errno 28] No space left on device: '/home/anna/python'", "make room"),
        ("PermissionError: [Errno 13] Permission denied: '/usr/python3'", "see `ssh -v gpu1`"),
        (DialFault.OLD_PYTHON, "runtime.hosts.10.0.0.1.python"),
        (DialFault.UNSAFE_FOLDER, "~/.cache"),
        (DialFault.LOGIN, "ssh gpu1 true"),
    ],
)
def test_each_refusal_has_its_own_fix(error: str | DialFault, fix: str) -> None:
    node = NodePlan("10.0.0.1", "ssh", None, "/", destination="gpu1")
    refused = (
        Unreached("", fault=error) if isinstance(error, DialFault) else Unreached(error, error)
    )
    assert fix in ssh_nodes.SshNodes.fix(node, refused)
