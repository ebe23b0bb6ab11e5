"""A task that boot did not start still reports which settings it reads."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from tfcluster_workers import event_channel

WORKERS = Path(__file__).parents[2] / "workers"
CODE = """
import os, subprocess, sys
from tfcluster_workers import context
print(context.setting("communication", "AUTO"), "TFCLUSTER_EVENTS_FD" in os.environ)
"""


def test_a_plain_script_reports_the_setting_it_read() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, event_channel.KIND)
    with ours, theirs:
        output = subprocess.run(
            [sys.executable, "-c", CODE],
            env={
                **os.environ,
                "PYTHONPATH": str(WORKERS),
                "TFCLUSTER_SETTINGS": '{"communication": "RING"}',
                "TFCLUSTER_EVENTS_FD": str(theirs.fileno()),
            },
            pass_fds=[theirs.fileno()],
            capture_output=True,
            text=True,
            check=True,
        )
        event = json.loads(ours.recv(1 << 16))
    assert output.stdout == "RING False\n"
    assert event == {"type": "setting_read", "name": "communication"}
