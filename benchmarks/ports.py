"""The tasks that lose their ports to another process which binds them first.

The thief binds the ports of TF_CONFIG. A worker imports TensorFlow for seconds before it listens;
here it is half a second.
"""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

from benchmarks.harness import Claim, Metric, Quantity, Taken
from benchmarks.launchers import LAUNCHERS, Gang, Launcher
from benchmarks.sandbox import sandbox

TASKS = 4
SERVER = Path(__file__).with_name("server.py")


def _theft(launcher: Launcher) -> Taken:
    """Count the workers that lost their port.

    Each worker reports its port, the thief tries to bind all of them, then the workers bind.
    """
    gang = Gang(TASKS, [sys.executable, "-S", str(SERVER)])
    with sandbox() as box, ExitStack() as loot:
        process = box.start(launcher.command(box.folder, gang))
        box.until(lambda: len([*box.folder.glob("told-?")]) == TASKS, "all tasks", process=process)
        ports = [int(path.read_text()) for path in box.folder.glob("told-?")]
        for port in ports:
            thief = loot.enter_context(socket.socket())
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                thief.bind(("0.0.0.0", port))
                thief.listen()
        (box.folder / "go").touch()
        box.end(process)
        return {"without a port": float(len([*box.folder.glob("robbed-?")]))}


def port_theft(*, quick: bool) -> Metric:
    """Return the metric, without peers.

    They give their tasks no ports: their scripts choose them as the shell's arm does.
    """
    arms = {name: LAUNCHERS[name] for name in ("tfcluster", "shell")}
    return Metric(
        title=f"Port theft: {TASKS} workers whose ports another process binds first",
        quantities={"without a port": Quantity("workers", "worst")},
        arms={name: one.arm(_theft) for name, one in arms.items()},
        claims=[Claim("tfcluster", "without a port", "tfcluster", at_most=0, stretch=0)],
        note="shell: each port is found by binding to port 0 and releasing it, as scripts do.",
    )
