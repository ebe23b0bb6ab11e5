"""Looks at a node with its tasks' own Python: what is installed there, and who can reach whom.

    python probe.py '{"run": …, "node": …, "mine": […], "others": […], "patience_s": 8, …}'

Prints one line of JSON. It listens on the node's task ports, beside the agent's holders, and
dials those of all other nodes, where the same program listens: TensorFlow itself would wait an
hour for a peer that cannot be reached. Versions come from package metadata; nothing is imported.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time

PACKAGES = ("tensorflow", "keras", "tf-keras", "numpy", "protobuf")
_DISTRIBUTIONS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly"),
}
_RETRY_S = 0.1
_DIAL_S = 3.0

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(order: dict[str, Any]) -> None:
    until = time.monotonic() + order["patience_s"]
    party = Party(order["run"], order["node"], {other["node"] for other in order["others"]})
    for mine in order["mine"]:
        party.listen(mine["port"], until)
    unreachable = dial_all(party, order["others"], until)
    report = {
        "node": order["node"],
        "python": ".".join(map(str, sys.version_info[:3])),
        "packages": versions(),
        "gpus": gpus(),
        "clock": time.time(),
        "free_bytes": free_bytes(order["folder"]),
        "strange_names": [m["host"] for m in order["mine"] if not is_own(m["host"])],
        "not_listening": party.failures,
        "unreachable": unreachable,
    }
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()
    party.wait_for_all(until)  # those who still have to dial us
    os._exit(0)


class Party:
    """The other nodes' probes, as far as they have called here."""

    def __init__(self, run: str, node: str, awaited: set[str]) -> None:
        self.name = f"tfcluster {run} {node}\n".encode()
        self.failures: list[list[object]] = []
        self._awaited, self._changed = set(awaited), threading.Condition()

    def listen(self, port: int, until: float) -> None:
        try:
            listener = open_listener(port)
        except OSError as error:
            self.failures.append([port, error.strerror or str(error)])
            return
        threading.Thread(target=self._answer, args=(listener,), daemon=True).start()

    def _answer(self, listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                continue
            threading.Thread(target=self._greet, args=(peer,), daemon=True).start()

    def _greet(self, peer: socket.socket) -> None:
        with peer:
            try:
                peer.settimeout(_DIAL_S)
                peer.sendall(self.name)
                caller = peer.makefile("rb").readline(400).decode(errors="replace").split()
            except OSError:
                return
        with self._changed:
            self._awaited -= set(caller[2:3])
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
        thread.join(max(0.0, until + _DIAL_S - time.monotonic()))
    return found


def call(party: Party, other: dict[str, Any], until: float) -> str:
    """Why `other` cannot be reached; empty when it answered. Its probe may start after ours."""
    why = "no answer"
    while time.monotonic() < until:
        patience = max(0.1, min(_DIAL_S, until - time.monotonic()))
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
            why = error.strerror or str(error)
        time.sleep(_RETRY_S)
    return why


def versions() -> dict[str, str]:
    import importlib.metadata

    found = {}
    for package in PACKAGES:
        for name in _DISTRIBUTIONS.get(package, (package,)):
            try:
                found[package] = importlib.metadata.version(name)
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def gpus() -> list[str]:
    """Names of the GPUs in order; none without nvidia-smi."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return []
    query = [smi, "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]


def free_bytes(folder: str) -> int:
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return shutil.disk_usage(folder).free


def is_own(host: str) -> bool:
    """Whether a name or address is one of this machine's: only those can be bound."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: Any) -> bool:
    try:
        with socket.socket(family) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
