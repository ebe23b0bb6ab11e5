"""Looks at a node with its tasks' own Python: what is installed there, and who can reach whom.

    python probe.py '{"run": …, "node": …, "mine": […], "others": […], "patience_s": 8, …}'

Prints one line of JSON: `machine.facts`, and who can reach whom. It listens on the node's task
ports, beside the agent's holders, and dials the others it is given, where the same program
listens: TensorFlow itself would wait an hour for a peer that cannot be reached. With ``deep`` it
imports TensorFlow, in a process of its own.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time

_RETRY_S = 0.1
_DIAL_S = 3.0
_LATE_S = 5.0
"""How much longer a node may take that refuses connections: its probe starts late, as a Python of
a busy machine or on a slow disk does. What a firewall drops is not waited for so long."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(order: dict[str, Any]) -> None:
    machine = _sibling()
    until = time.monotonic() + order["patience_s"]
    party = Party(order["run"], order["node"])
    for mine in order["mine"]:
        party.listen(mine["port"], mine["callers"])
    seen: dict[str, Any] = {}
    look = threading.Thread(target=lambda: seen.update(_look(machine, order)), daemon=True)
    look.start()
    unreachable = dial_all(party, order["others"], until)
    look.join()
    # The time is that of the line, which is compared with when it came.
    seen.update(not_listening=party.failures, unreachable=unreachable, clock=time.time())
    sys.stdout.write(json.dumps(seen) + "\n")
    sys.stdout.flush()
    party.wait_for_all(until + _LATE_S)  # those who still have to dial us
    os._exit(0)


def _look(machine: Any, order: dict[str, Any]) -> dict[str, Any]:
    return {
        "node": order["node"],
        **machine.facts(order),
        "strange_names": [m["host"] for m in order["mine"] if not machine.is_own(m["host"])],
        "imported": machine.tensorflow_imported() if order.get("deep") else None,
    }


def _sibling() -> Any:
    """`machine`, from beside this file, also where the task's Python has a tfcluster of its own;
    nothing of ours stays on the import path."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [folder for folder in sys.path if os.path.abspath(folder) != here]
    root = os.path.join(here, *[os.pardir] * 3)  # of tfcluster/agent/node
    sys.path[:] = [os.path.abspath(root), *others]
    from tfcluster.agent.node import machine

    sys.path[:] = others
    return machine


class Party:
    """The other nodes' probes, as far as they have called here."""

    def __init__(self, run: str, node: str) -> None:
        self.name = f"tfcluster {run} {node}\n".encode()
        self.failures: list[list[object]] = []
        self._changed = threading.Condition()
        self._awaited: set[tuple[str, int]] = set()

    def listen(self, port: int, callers: list[str]) -> None:
        """`callers`: the nodes that will dial this port."""
        try:
            listener = open_listener(port)
        except OSError as error:
            self.failures.append([port, error.strerror or str(error) or type(error).__name__])
            return
        with self._changed:
            self._awaited |= {(caller, port) for caller in callers}
        threading.Thread(target=self._answer, args=(listener, port), daemon=True).start()

    def _answer(self, listener: socket.socket, port: int) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                continue
            threading.Thread(target=self._greet, args=(peer, port), daemon=True).start()

    def _greet(self, peer: socket.socket, port: int) -> None:
        with peer:
            try:
                peer.settimeout(_DIAL_S)
                peer.sendall(self.name)
                caller = peer.makefile("rb").readline(400).decode(errors="replace").split()
            except OSError:
                return
        with self._changed:
            self._awaited -= {(name, port) for name in caller[2:3]}
            self._changed.notify_all()

    def wait_for_all(self, until: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._awaited, max(0.0, until - time.monotonic()))


def open_listener(port: int) -> socket.socket:
    """As TensorFlow does: on every address, beside a holder that admits it (SO_REUSEPORT)."""
    last: OSError | None = None
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            listener = socket.socket(family)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind((address, port))
            listener.listen(128)
            # Inherited by what is accepted: a connection in TIME_WAIT without it would keep the
            # next run from the port for a minute.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return listener
        except OSError as error:
            last = error
    assert last is not None
    raise last


def dial_all(party: Party, others: list[dict[str, Any]], until: float) -> list[list[object]]:
    """(node, task, host, port, why) of each address that did not answer as its node."""
    found: list[list[object]] = []

    def dial(other: dict[str, Any]) -> None:
        why = call(party, other, until)
        if why:
            found.append([other["node"], other["task"], other["host"], other["port"], why])

    threads = [threading.Thread(target=dial, args=(other,), daemon=True) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until + _LATE_S + _DIAL_S - time.monotonic()))
    return found


def call(party: Party, other: dict[str, Any], until: float) -> str:
    """Why `other` cannot be reached; empty when it answered. Its probe may start after ours."""
    why, is_late = "no answer", False
    while (left := until - time.monotonic()) > 0:
        patience = max(0.1, min(_DIAL_S, left))
        try:
            with socket.create_connection((other["host"], other["port"]), patience) as line:
                line.settimeout(patience)
                line.sendall(party.name)
                answer = line.makefile("rb").readline(400).decode(errors="replace").split()
            expected = [*party.name.decode().split()[:2], other["node"]]
            if answer == expected:
                return ""
            why = f"it leads to {answer[2]}" if len(answer) == 3 else "something else answers there"
        except OSError as error:
            why = error.strerror or str(error) or type(error).__name__
            if isinstance(error, ConnectionRefusedError) and not is_late:
                is_late, until = True, until + _LATE_S
        time.sleep(_RETRY_S)
    return why


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
