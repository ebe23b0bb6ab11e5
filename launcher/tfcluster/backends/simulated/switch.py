"""The switch of a simulated network: a process that holds one network namespace for each node.

All nodes are on one Ethernet bridge; pairs of nodes may have a cable of their own. A node's port is
shaped in both directions, like a network card of that rate: tbf holds the rate (tc-tbf(8)), netem
the delay, jitter and loss (tc-netem(8)).

The namespaces have no names: they live as long as this process, or one inside them, and the kernel
then removes the interfaces and queues with them. The process ends with its stdin, which only the
coordinator holds, so that nothing is left however that ends. Orders are lines of JSON on stdin;
each is answered by a line on stdout, ``{}`` or ``{"message": …, "fix": …}``.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyroute2 import IPRoute, NetlinkError

from tfcluster.agent.error_text import describe_error
from tfcluster.agent.node.namespaces import (
    PrivateNetworkRefused,
    enter_namespace,
    enter_private_network,
    new_network,
    open_network,
)

PREFIX = 16
_BRIDGE = "switch"
_HOST_INSTEAD = "--set runtime.network=host, for a network without limits"
_NETEM = ("delay", "jitter", "loss")
_LATENCY_S = 1 / 40
"""A queue holds what the port sends in this time; more is dropped, and TCP slows down."""
_BURST_S = 1 / 250
"""tbf refills its bucket with the kernel's tick, which is 4 ms on the slowest kernels."""
_LEAST_BURST, _PACKET = 65536, 1514
"""Bytes: the largest packet that the network card is to segment (GSO), and one on the wire."""
_NO_RATE = 1 << 40


class Switch:
    """Nodes with their addresses, ports and cables."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        """Make all namespaces and cables; raises PrivateNetworkRefused or NetlinkError."""
        self._addresses: Mapping[str, str] = order["addresses"]
        outside = _user_namespace()
        enter_private_network()
        self._has_own_user = _user_namespace() != outside
        """False as root, who needs no user namespace."""
        self._own = open_network()
        self._namespaces = {node: self._new_namespace() for node in self._addresses}
        with IPRoute() as inside:
            with _needing("bridge", "a simulated network needs"):
                inside.link("add", ifname=_BRIDGE, kind="bridge", br_stp_state=0)
            inside.link("set", index=_index(inside, _BRIDGE), state="up")
        self._ports: dict[str, list[tuple[int, str]]] = {node: [] for node in self._addresses}
        """Node → its interfaces, those at the other end of its cables included: (namespace, name).
        """
        self._shapes: dict[tuple[int, str], Mapping[str, float]] = {}
        for number, (node, address) in enumerate(self._addresses.items()):
            self._plug(node, address, f"port{number}", order["shape"])
        for number, link in enumerate(order["links"]):
            first, second = link["between"]
            self._connect(f"link{number}", first, second, link["shape"])

    def doors(self) -> dict[str, dict[str, str]]:
        """Return node → the namespaces that its agent enters, as paths, by their kind."""
        own = f"/proc/{os.getpid()}"
        user = {"user": f"{own}/ns/user"} if self._has_own_user else {}
        return {node: {**user, "net": f"{own}/fd/{fd}"} for node, fd in self._namespaces.items()}

    def _new_namespace(self) -> int:
        new_network()
        namespace = open_network()
        enter_namespace(self._own)
        return namespace

    def _plug(self, node: str, address: str, port: str, shape: Mapping[str, float]) -> None:
        namespace = self._namespaces[node]
        with IPRoute() as inside:
            peer = {"ifname": "eth0", "net_ns_fd": namespace}
            with _needing("veth", "a simulated network needs"):
                inside.link("add", ifname=port, kind="veth", peer=peer)
            index, bridge = _index(inside, port), _index(inside, _BRIDGE)
            inside.link("set", index=index, master=bridge, state="up")
        with _inside(namespace, self._own) as inside:
            index = _index(inside, "eth0")
            inside.addr("add", index=index, address=address, prefixlen=PREFIX)
            inside.link("set", index=index, state="up")
        self._ports[node] = [(namespace, "eth0"), (self._own, port)]
        self._shape(namespace, "eth0", shape)
        self._shape(self._own, port, _without_netem(shape))

    def _connect(self, name: str, first: str, second: str, shape: Mapping[str, float]) -> None:
        """Lay a cable between two nodes, which takes all that they send each other."""
        ends = ((first, second), (second, first))
        with IPRoute() as inside:
            peer = {"ifname": name, "net_ns_fd": self._namespaces[second]}
            near = self._namespaces[first]
            inside.link("add", ifname=name, kind="veth", net_ns_fd=near, peer=peer)
        for node, far in ends:
            with _inside(self._namespaces[node], self._own) as inside:
                index = _index(inside, name)
                inside.link("set", index=index, state="up")
                inside.route("add", dst=f"{self._addresses[far]}/32", oif=index, scope="link",
                             prefsrc=self._addresses[node])  # fmt: skip
        for node, far in ends:
            self._shape(self._namespaces[node], name, shape)
            self._ports[node].append((self._namespaces[node], name))
            self._ports[node].append((self._namespaces[far], name))

    # -- orders -----------------------------------------------------------------------------

    def obey(self, order: Mapping[str, Any]) -> None:
        """Carry out one order; raises NetlinkError.

        ``cut``: the node loses every packet; ``rate``: its ports have this one; ``restore``: they
        are as they were made.
        """
        for namespace, name in self._ports[order["node"]]:
            shape = self._shapes[namespace, name]
            with _inside(namespace, self._own) as inside:
                index = _index(inside, name)
                _drop_queue(inside, index)
                if order["op"] == "cut":
                    inside.tc("add", "pfifo", index, "1:", limit=0)
                else:
                    changed = {"rate": order["rate"]} if order["op"] == "rate" else {}
                    _add_queue(inside, index, {**shape, **changed})

    def _shape(self, namespace: int, name: str, shape: Mapping[str, float]) -> None:
        """Shape what leaves an interface that has no queue yet."""
        self._shapes[namespace, name] = shape
        with _inside(namespace, self._own) as inside:
            _add_queue(inside, _index(inside, name), shape)


def _without_netem(shape: Mapping[str, float]) -> dict[str, float]:
    """Return the shape of the port behind a node's card: a packet is delayed only once."""
    return {key: value for key, value in shape.items() if key not in _NETEM}


def _drop_queue(inside: IPRoute, index: int) -> None:
    try:
        inside.tc("del", index=index, root=True)
    except NetlinkError as error:
        if error.code not in (errno.ENOENT, errno.EINVAL):  # it has none
            raise


def _add_queue(inside: IPRoute, index: int, shape: Mapping[str, float]) -> None:
    if netem := {key: shape[key] for key in _NETEM if shape.get(key)}:
        _add_netem(inside, index, netem, shape.get("rate"))
    elif shape.get("rate"):
        _add_rate(inside, index, shape["rate"], handle="1:")


def _add_rate(inside: IPRoute, index: int, bits_per_s: float, **where: Any) -> None:
    rate = bits_per_s / 8
    burst = max(int(rate * _BURST_S), _LEAST_BURST)
    limit = burst + max(int(rate * _LATENCY_S), _LEAST_BURST)
    with _needing("sch_tbf", "a rate needs"):
        inside.tc("add", "tbf", index, rate=int(rate), burst=burst, limit=limit, **where)


def _add_netem(inside: IPRoute, index: int, shape: Mapping[str, float], rate: float | None) -> None:
    """Add netem, with the rate below it (tc-netem(8), "combining with other qdiscs")."""
    late_s = shape.get("delay", 0.0) + shape.get("jitter", 0.0)
    packets = int((rate or _NO_RATE) / 8 * (late_s + _LATENCY_S) / _PACKET) + 1000
    with _needing("sch_netem", "delay, jitter and loss need"):
        inside.tc(
            "add", "netem", index, "1:",
            delay=int(shape.get("delay", 0.0) * 1e6),
            jitter=int(shape.get("jitter", 0.0) * 1e6),
            loss=shape.get("loss", 0.0),
            limit=min(packets, 1_000_000),
        )  # fmt: skip
    if rate:
        _add_rate(inside, index, rate, parent="1:1", handle="10:")


@contextmanager
def _needing(module: str, what: str) -> Iterator[None]:
    """Turn the kernel's answer for a part that it does not have into a refusal."""
    try:
        yield
    except NetlinkError as error:
        if error.code not in (errno.ENOENT, errno.EOPNOTSUPP):
            raise
        fix = f"`sudo modprobe {module}`; Debian and Ubuntu may have it in linux-modules-extra"
        if module.startswith("sch_"):
            fix += "; or leave it out of runtime.network"
        message = f"{what} the kernel module {module}, which this system does not have"
        raise PrivateNetworkRefused(message, fix) from error


def _index(inside: IPRoute, name: str) -> int:
    index: int = inside.link_lookup(ifname=name)[0]
    return index


@contextmanager
def _inside(namespace: int, own: int) -> Iterator[IPRoute]:
    """Yield a connection to the kernel's tables of `namespace`."""
    enter_namespace(namespace)
    try:
        with IPRoute() as inside:
            yield inside
    finally:
        enter_namespace(own)


def _user_namespace() -> str:
    return os.readlink("/proc/self/ns/user")


def main() -> None:
    """Make the network of the first order, then obey; each line is answered by one."""
    switch = None
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if switch is None:
                switch = Switch(order)
                answer: dict[str, Any] = {"doors": switch.doors()}
            else:
                switch.obey(order)
                answer = {}
        except PrivateNetworkRefused as refused:
            answer = {"message": refused.message, "fix": refused.fix}
        except (NetlinkError, OSError) as error:
            answer = _explain(error)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _explain(error: NetlinkError | OSError) -> dict[str, str]:
    """Return message and fix for what the kernel refused."""
    return {"message": f"no simulated network: {describe_error(error)}", "fix": _HOST_INSTEAD}


if __name__ == "__main__":
    main()
