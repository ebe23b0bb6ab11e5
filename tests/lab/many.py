"""Many hosts on one machine: an sshd that listens on many loopback addresses.

The hosts share processes, files and the user's home, so a test measures only the cost of many
connections. Root is not needed. The user's ssh configuration is neither read nor changed: a wrapper
named `ssh`, first on PATH, uses another one.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

_ADDRESSES_EACH = 16
"""The most addresses one sshd listens on (sshd.c, MAX_LISTEN_SOCKS)."""
_SSHD = """\
{listen}
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/user_key.pub
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 1000
SetEnv HOME={folder}/home PATH={path}
"""
_SSH = """\
Host 127.*
  Port {port}
  User {user}
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile none
"""


SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


@dataclass(frozen=True, slots=True)
class Hosts:
    """The addresses to which ssh can log in while the sshd runs."""

    addresses: Sequence[str]
    folder: Path

    @property
    def home(self) -> Path:
        """The home folder of a user who logs in."""
        return self.folder / "home"

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment whose `ssh` is the wrapper that has the keys."""
        return os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"}


@contextmanager
def many_hosts(count: int, folder: Path) -> Iterator[Hosts]:
    """Yield hosts 127.0.1.1, 127.0.1.2, … with new keys in `folder`; they end with the block."""
    hosts = Hosts([f"127.0.1.{number}" for number in range(1, count + 1)], folder)
    hosts.home.mkdir(parents=True)
    port = _free_port()
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", folder / name], check=True)
    _configure(hosts, port)
    with ExitStack() as servers:
        for first in range(0, count, _ADDRESSES_EACH):
            listening = hosts.addresses[first : first + _ADDRESSES_EACH]
            servers.enter_context(_sshd(folder / f"sshd-{first}", listening, port))
        yield hosts


@contextmanager
def _sshd(path: Path, addresses: Sequence[str], port: int) -> Iterator[None]:
    listen = "\n".join(f"ListenAddress {address}:{port}" for address in addresses)
    config = _SSHD.format(listen=listen, folder=path.parent, path=os.environ["PATH"])
    path.write_text(config)
    log = path.with_suffix(".log")
    server = subprocess.Popen([SSHD or "sshd", "-D", "-f", path, "-E", log])
    try:
        _await(addresses[-1], port, server, log)
        yield
    finally:
        server.terminate()
        server.wait()


def _configure(hosts: Hosts, port: int) -> None:
    folder = hosts.folder
    client = _SSH.format(port=port, user=getpass.getuser(), folder=folder)
    (folder / "ssh_config").write_text(client)
    key = (folder / "host_key.pub").read_text()
    known = "".join(f"[{address}]:{port} {key}" for address in hosts.addresses)
    (folder / "known_hosts").write_text(known)
    wrapper = folder / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    wrapper.chmod(0o755)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.1.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await(address: str, port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while server.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection((address, port), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise RuntimeError(f"sshd does not answer: {log.read_text() if log.exists() else ''}")
