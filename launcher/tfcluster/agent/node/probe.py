"""A check of one node with its tasks' own Python: what is installed and which nodes it can reach.

    python probe.py '{"run": …, "node": …, "mine": […], "others": […], "patience_s": 8, …}'

It prints one line of JSON with `machine.facts` and the unreachable addresses. It listens on the
node's task ports, beside the sockets that hold them for the agent, and connects to those of the
other nodes, where the same program listens: TensorFlow itself would wait an hour for an unreachable
peer. With ``deep`` it also imports TensorFlow, in a separate process.

    python probe.py '{"attempt": 1, "others": […], "patience_s": 4}'

With ``attempt``, after a failure, it only connects to the tasks of the other nodes and prints the
attempt and the addresses that do not answer (``cut``). A refused connection is an answer: the host
is up and its task has ended.
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
"""The extra time for a node that refuses connections: its probe may start late, on a busy machine
or a slow disk. Connections that a firewall drops get no extra time."""
_SLACK_S = 0.5
"""The extra time for threads to end; a name look-up without an answer cannot be cancelled."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def main(order: dict[str, Any]) -> None:
    until = time.monotonic() + order["patience_s"]
    if "attempt" in order:
        cut = dial_all(order["others"], lambda other: connect(other, until), until + _SLACK_S)
        _print({"attempt": order["attempt"], "cut": cut})
    else:
        _probe(order, until)
    os._exit(0)


def _print(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _probe(order: dict[str, Any], until: float) -> None:
    machine = _import_machine()
    rendezvous = Rendezvous(order["run"], order["node"])
    for mine in order["mine"]:
        rendezvous.listen(mine["port"], mine["callers"])
    answer: dict[str, Any] = {}
    probing = threading.Thread(
        target=lambda: answer.update(_probe_machine(machine, order)), daemon=True
    )
    probing.start()
    latest = until + _LATE_S + _DIAL_S
    unreachable = dial_all(order["others"], lambda other: dial(rendezvous, other, until), latest)
    probing.join()
    # `clock` is read as late as possible: it is compared with the time when the line arrives.
    answer.update(
        not_listening=rendezvous.failures,
        unreachable=unreachable,
        wrong_names=sorted(rendezvous.wrong_names),
        clock=time.time(),
    )
    _print(answer)
    rendezvous.wait_for_all(until + _LATE_S)  # other nodes may still have to connect to this one


def _probe_machine(machine: Any, order: dict[str, Any]) -> dict[str, Any]:
    return {
        "node": order["node"],
        **machine.facts(order),
        "strange_names": [m["host"] for m in order["mine"] if not machine.is_local(m["host"])],
        "imported": _import_tensorflow(machine, order) if order.get("deep") else None,
    }


def _import_tensorflow(machine: Any, order: dict[str, Any]) -> Any:
    workers = order["workers"] or os.path.join(_root(), os.pardir, "workers")  # of the bundle
    return machine.import_tensorflow(sys.executable, workers)


def _root() -> str:
    """Return the folder of the `tfcluster` that this file belongs to."""
    return os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))


def _import_machine() -> Any:
    """Import the `machine` beside this file, even if the task's Python has its own tfcluster.

    The import path is as before afterwards, without this file's folder.
    """
    folder = os.path.dirname(os.path.abspath(__file__))
    own = os.path.realpath(folder)  # which Python has put on the path
    others = [path for path in sys.path if os.path.realpath(path) != own]
    sys.path[:] = [_root(), *others]
    from tfcluster.agent.node import machine

    sys.path[:] = others
    return machine


class Rendezvous:
    """The meeting of all nodes' probes: answers them on this node's ports and waits for them."""

    def __init__(self, run: str, node: str) -> None:
        self.name = f"tfcluster {run} {node}\n".encode()
        self.failures: list[list[object]] = []
        self.wrong_names: set[str] = set()
        """Hosts of other nodes whose names have no address here, or this node's own."""
        self._changed = threading.Condition()
        self._awaited: set[tuple[str, int]] = set()

    def listen(self, port: int, callers: list[str]) -> None:
        """Answer on `port` from now on; `callers` are the nodes that will connect to it."""
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
    """Listen on every address, as TensorFlow does, beside the agent's holder (SO_REUSEPORT)."""
    last: OSError | None = None
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            listener = socket.socket(family)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind((address, port))
            listener.listen(128)
            # Accepted connections inherit it: without it, one in TIME_WAIT would block the port
            # for the next run for a minute.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return listener
        except OSError as error:
            last = error
    assert last is not None
    raise last


def dial_all(
    others: list[dict[str, Any]], dial_one: Callable[[dict[str, Any]], str], latest: float
) -> list[list[object]]:
    """Dial all `others` at once, up to the moment `latest`.

    Return (node, task, host, port, why) for each address that its node does not answer.
    """
    reasons = ["no answer"] * len(others)

    def note(number: int) -> None:
        reasons[number] = dial_one(others[number])

    threads = [threading.Thread(target=note, args=(n,), daemon=True) for n in range(len(others))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, latest - time.monotonic()))
    named = ("node", "task", "host", "port")
    return [[*(o[n] for n in named), why] for o, why in zip(others, reasons) if why]


def connect(other: dict[str, Any], until: float) -> str:
    """Connect to the host of `other` until it answers; return why it did not, "" if it did."""
    why = "no answer"
    while (remaining := until - time.monotonic()) > 0:
        try:
            socket.create_connection((other["host"], other["port"]), remaining).close()
            return ""
        except ConnectionRefusedError:
            return ""
        except OSError as error:
            why = error.strerror or str(error) or type(error).__name__
        time.sleep(_RETRY_S)
    return why


def dial(rendezvous: Rendezvous, other: dict[str, Any], until: float) -> str:
    """Connect to `other` until it answers; return why it cannot be reached, "" if it can.

    Its probe may start later than this one.
    """
    why, is_late, has_answered, is_unknown = "no answer", False, False, False
    while (remaining := until - time.monotonic()) > 0:
        timeout_s = max(0.1, min(_DIAL_S, remaining))
        try:
            with socket.create_connection((other["host"], other["port"]), timeout_s) as peer:
                peer.settimeout(timeout_s)
                peer.sendall(rendezvous.name)
                answer = peer.makefile("rb").readline(400).decode(errors="replace").split()
            expected = [*rendezvous.name.decode().split()[:2], other["node"]]
            if answer == expected:
                return ""
            has_answered, is_unknown, is_probe = True, False, len(answer) == 3
            why = f"node {answer[2]} answers there" if is_probe else "another program answers there"
        except OSError as error:
            why = error.strerror or str(error) or type(error).__name__
            has_answered = isinstance(error, ConnectionRefusedError)
            is_unknown = isinstance(error, socket.gaierror)
            if has_answered and not is_late:
                is_late, until = True, until + _LATE_S
        time.sleep(_RETRY_S)
    # Without an answer, the look-up of the name itself may be what takes so long.
    address = _own_address(other["host"]) if has_answered else ""
    if address or is_unknown:
        rendezvous.wrong_names.add(other["host"])
    return f"{why}; {other['host']} is {address} on this node" if address else why


def _own_address(host: str) -> str:
    """Return the address of a name that is this node itself; empty for other names.

    Debian writes a host's own name as 127.0.1.1 into its /etc/hosts; copied to other hosts, such a
    line is wrong there.
    """
    try:
        address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return ""
    is_loopback = address.startswith("127.") or address == "::1"
    return address if is_loopback and host != address else ""


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
