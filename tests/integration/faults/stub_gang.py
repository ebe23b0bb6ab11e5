"""The connections of stub workers, which join over the ports of TF_CONFIG and train in step."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable

SHORTEST_SILENCE_S = 5.0
"""The shortest time-out: a busy machine may delay a healthy stub, however short the replay.

Half of what a supervisor waits for a task that was stopped (`verdicts.FROZEN_S`).
"""


class PeerIsGone(Exception):
    """The peer `who` was lost; `how` is the fault: it closed, fell silent, or was reported."""

    def __init__(self, who: str, how: str) -> None:
        super().__init__(f"{who}: {how}")
        self.who, self.how = who, how


class Peer:
    """A connection to another task; each message is one line."""

    def __init__(self, who: str, sock: socket.socket) -> None:
        self.who, self._socket = who, sock
        self._file = sock.makefile("r")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def set_time_out(self, seconds: float) -> None:
        self._socket.settimeout(seconds)

    def read_name(self) -> str:
        return self._file.readline().strip()

    def send(self, text: str) -> None:
        try:
            self._socket.sendall(f"{text}\n".encode())
        except OSError:
            raise PeerIsGone(self.who, "sigkill") from None

    def expect(self, text: str) -> None:
        try:
            line = self._file.readline()
        except TimeoutError:
            raise PeerIsGone(self.who, "sigstop") from None
        except OSError:
            line = ""
        if line.startswith("gone "):
            _, who, how = line.split()
            raise PeerIsGone(who, how)
        if not line:
            raise PeerIsGone(self.who, "sigkill")
        if line != f"{text}\n":
            sys.exit(f"{self.who} says {line!r} where it should say {text!r}")


class Gang:
    """The tasks of a run, all connected to the first one; `join` returns once all have joined."""

    def __init__(self, me: str, *, silence_s: Callable[[str], float]) -> None:
        """Listen on this task's port; raise OSError if another process has it."""
        cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
        self._hosts = {
            f"{job}:{index}": host
            for job in ("chief", "worker")
            for index, host in enumerate(cluster.get(job, ()))
        }
        self._me, self._leader = me, next(iter(self._hosts))
        self._silence_s = silence_s
        self.peers: list[Peer] = []
        self._listener = socket.socket()
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):  # as gRPC does
            self._listener.setsockopt(socket.SOL_SOCKET, option, 1)
        self._listener.bind(("0.0.0.0", int(self._hosts[me].rpartition(":")[2])))
        self._listener.listen()

    @property
    def _is_follower(self) -> bool:
        return self._me != self._leader

    def join(self) -> None:
        """Wait for all tasks, silently and without a time-out."""
        if self._is_follower:
            self.peers = [self._connect(self._hosts[self._leader])]
        else:
            self.peers = self._accept(len(self._hosts) - 1)
        self.barrier("joined")
        recorded_s = self._silence_s("worker:0" if self._is_follower else "worker:1")
        for peer in self.peers:
            peer.set_time_out(max(recorded_s, SHORTEST_SILENCE_S))

    def _accept(self, count: int) -> list[Peer]:
        found: list[Peer] = []
        while len(found) < count:
            sock, _ = self._listener.accept()
            peer = Peer("", sock)
            peer.who = peer.read_name()
            if peer.who:  # an unrelated process that probes ports sends no name
                found.append(peer)
        return found

    def _connect(self, host: str) -> Peer:
        address, _, port = host.rpartition(":")
        while True:
            try:
                sock = socket.create_connection((address, int(port)))
            except OSError:
                time.sleep(0.01)
                continue
            peer = Peer(self._leader, sock)
            peer.send(self._me)
            return peer

    def barrier(self, text: str) -> None:
        """Return when all tasks have reached `text`; raise PeerIsGone if one is lost."""
        if self._is_follower:
            self.peers[0].send(text)
        for peer in self.peers:
            peer.expect(text)
        if not self._is_follower:
            for peer in self.peers:
                peer.send(text)

    def report_lost(self, who: str, how: str) -> None:
        """Report a lost task to the peers: they have no connection to each other."""
        for peer in self.peers:
            try:
                peer.send(f"gone {who} {how}")
            except PeerIsGone:
                continue
