"""A run refuses unsafe folders for its sockets, and does not end with its terminal under nohup."""

from __future__ import annotations

import signal

from .commandline import CommandLine
from .live import FAMILY, Family, Live


def test_a_socket_folder_that_others_can_write_to_gets_a_substitute(shell: CommandLine) -> None:
    """Every later command finds the substitute, also once the name is free again."""
    taken = shell.root / "run" / "tfcluster"
    taken.mkdir()
    taken.chmod(0o777)
    shell.env["HOME"] = str(shell.root)
    shell.script("job.py", "import time; time.sleep(60)")
    begun = shell.run("run", "-d", "--name", "held", "job.py")
    assert begun.code == 0, begun.err
    taken.rmdir()
    assert shell.run("down", "held").code == 0
    assert shell.run("wait", "held").code == 143
    (substitute,) = (shell.root / "run").iterdir()
    assert substitute.name.startswith("tfcluster-")


def test_an_unsafe_socket_folder_without_a_substitute_is_refused(shell: CommandLine) -> None:
    folder = shell.root / "run" / "tfcluster"
    folder.mkdir()
    folder.chmod(0o777)
    shell.env["HOME"] = str(shell.script("no-home", ""))
    shell.script("job.py", "")
    refused = shell.run("run", "job.py")
    assert refused.code == 3, refused.err
    assert f"cannot use {folder} for sockets: other users can write to it" in refused.err
    assert "make ~/.cache/tfcluster writable" in refused.err
    assert not shell.runs()


def test_an_order_that_the_agent_cannot_carry_out_ends_the_run_with_the_reason(
    shell: CommandLine,
) -> None:
    ports = shell.root / "run" / "tfcluster" / "ports"
    ports.parent.mkdir(0o700)
    ports.mkdir()
    ports.chmod(0o777)
    shell.script("job.py", "")
    ended = shell.run("run", "job.py")
    assert ended.code == 3, ended.err
    assert "could not carry out an order" in ended.err
    assert "hold_ports: UnsafeFolderError" in ended.err
    assert "Traceback" not in ended.err


def test_under_nohup_a_run_outlives_its_terminal(shell: CommandLine) -> None:
    shell.script("family.py", FAMILY)
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = Live(shell, "run", "family.py", restore_signals=False)
    finally:
        signal.signal(signal.SIGHUP, ignored)
    Family(run)
    run.process.send_signal(signal.SIGHUP)
    shell.script("finish", "")
    assert run.end() == 0, run.said()
