"""Machines for the tests of real hosts: namespaces on one bridge, with an sshd each.

A machine has a network, a hostname, processes, a home folder and a /tmp of its own; it shares the
rest of the file system, Python included. Nothing of it is on the host's network: the bridge lies
in a namespace, too. All of it ends with `Lab.close`, also where a test has lost its way.
"""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from .machine import CARD, LabError, Machine, bucket, command, home

__all__ = ["Lab", "LabError", "Machine"]

INIT = Path(__file__).with_name("init.py")
NETWORK = "10.77.0"
BOOT_S = 20.0
"""How long a machine may take to come up."""


@dataclass
class Lab:
    """Machines on one bridge. Use as a context manager; needs root."""

    folder: Path
    machines: dict[str, Machine] = field(default_factory=dict)
    _switch: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Lab:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._switch = subprocess.Popen(
            ["unshare", "--net", "--", "sh", "-c", "echo up; exec sleep infinity"],
            stdout=subprocess.PIPE,
            preexec_fn=_die_with_parent,
            start_new_session=True,
        )
        assert self._switch.stdout is not None
        self._switch.stdout.readline()
        self.in_switch("ip", "link", "add", "lab", "type", "bridge")
        self.in_switch("ip", "link", "set", "lab", "up")
        self._make_key()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for machine in self.machines.values():
            machine.end()
        if self._switch is not None:
            self._switch.kill()
            self._switch.wait()
            assert self._switch.stdout is not None
            self._switch.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def in_switch(self, *argv: str) -> None:
        """Run an `ip` or `tc` command where the bridge is."""
        assert self._switch is not None
        command("nsenter", "--target", str(self._switch.pid), "--net", "--", *argv)

    def add(self, name: str, *, number: int | None = None) -> Machine:
        """A machine at 10.77.0.NUMBER that all others can log in to as its root user."""
        number = number or len(self.machines) + 1
        folder = self.folder / name
        self._furnish(folder)
        argv = [*_UNSHARE, sys.executable, "-I", "-S", str(INIT), name, str(folder), home()]
        argv += [_python_home()]
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            preexec_fn=_die_with_parent,
            stderr=subprocess.DEVNULL,  # --kill-child makes unshare complain of a signal mask
            start_new_session=True,
        )
        pid = _child_of(process)
        machine = Machine(name, f"{NETWORK}.{number}", folder, process, pid)
        self.machines[name] = machine
        self._plug_in(machine, number)
        (folder / "plugged").touch()
        _until(lambda: (folder / "sshd.pid").exists(), f"the sshd of {name}")
        return machine

    def remove(self, machine: Machine) -> None:
        """Switch it off and clear its folder; its name and number can be used again."""
        with contextlib.suppress(LabError):  # its network may have gone with it
            self.in_switch("ip", "link", "delete", self.link(machine))
        machine.end()
        del self.machines[machine.name]
        shutil.rmtree(machine.folder, ignore_errors=True)

    def link(self, machine: Machine) -> str:
        """The switch's end of the machine's cable."""
        return f"to-{machine.name}"

    def cut(self, machine: Machine) -> None:
        """Pull its cable: no packet of anybody goes in or out."""
        self.in_switch("ip", "link", "set", self.link(machine), "down")

    def repair(self, machine: Machine) -> None:
        """The end of `cut`."""
        self.in_switch("ip", "link", "set", self.link(machine), "up")

    def block(self, one: Machine, other: Machine, *, port: int | None = None) -> None:
        """Drop packets between two machines, both ways and in silence; all others pass.

        Connections that are open just hang, new ones time out. With `port`: only TCP packets that
        have it at either end, such as 22 between "home" and a host for the ssh path alone.
        """
        one.drop(other, port=port)
        other.drop(one, port=port)

    def unblock(self, one: Machine, other: Machine, *, port: int | None = None) -> None:
        """The end of a `block` with the same words."""
        one.accept(other, port=port)
        other.accept(one, port=port)

    def shape(self, machine: Machine, *, mbit: float) -> None:
        """Hold the machine's cable to `mbit` million bits a second each way (1000 = 1 Gbit/s)."""
        self.in_switch("tc", *bucket(self.link(machine), mbit))
        machine.shape(mbit)

    def share(self, *machines: Machine, where: str = "shared") -> Path:
        """One folder for all of them at `~/WHERE`, as from a file server; its path outside."""
        folder = self.folder / "served" / where
        folder.mkdir(parents=True, exist_ok=True)
        for machine in machines:
            machine.share(folder, where)
        return folder

    def _make_key(self) -> None:
        key = self.folder / "key"
        if not key.exists():
            command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
            command(
                "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "host_key")
            )

    def _furnish(self, folder: Path) -> None:
        """The home of a user who can log in everywhere, and knows every host's key."""
        ssh = folder / "home" / ".ssh"
        ssh.mkdir(parents=True, mode=0o700)
        (folder / "tmp").mkdir(mode=0o1777)
        (folder / "home").chmod(0o700)
        shutil.copy(self.folder / "key", ssh / "id_ed25519")
        shutil.copy(self.folder / "key.pub", ssh / "authorized_keys")
        shutil.copy(self.folder / "host_key", folder / "host_key")
        host_key = (self.folder / "host_key.pub").read_text().split()[:2]
        (ssh / "known_hosts").write_text(f"{NETWORK}.* {' '.join(host_key)}\n")
        (folder / "sshd_config").write_text(
            _SSHD_CONFIG.format(key=folder / "host_key", pid=folder / "sshd.pid")
        )

    def _plug_in(self, machine: Machine, number: int) -> None:
        assert self._switch is not None
        link = self.link(machine)
        # The same card for the same address: others may remember who had it before.
        card = f"02:00:0a:4d:00:{number:02x}"
        self.in_switch("ip", "link", "add", link, "type", "veth", "peer", "name", CARD,
                       "address", card, "netns", str(machine.pid))  # fmt: skip
        self.in_switch("ip", "link", "set", link, "master", "lab", "up")
        machine.plug_in()


_UNSHARE = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child=KILL"]
_UNSHARE += ["--mount-proc", "--propagation", "private", "--"]
_SSHD_CONFIG = """\
HostKey {key}
PidFile {pid}
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
PrintMotd no
StrictModes no
MaxStartups 200
Subsystem sftp internal-sftp
"""


def _die_with_parent() -> None:
    """A test process that is killed at its time-out cannot clear up."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _python_home() -> str:
    """The folder of the home that holds this Python, else nothing: the machines need it."""
    for place in (Path(sys.base_prefix), Path(sys.prefix)):
        if place.is_relative_to(home()):
            return str(Path(home()) / place.relative_to(home()).parts[0])
    return ""


def _child_of(process: subprocess.Popen[bytes]) -> int:
    """What `unshare --fork` has forked, once it says that it is up."""
    assert process.stdout is not None
    if process.stdout.readline() != b"up\n":
        process.kill()
        raise LabError("a machine did not come up")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0])


def _until(condition: object, what: str) -> None:
    assert callable(condition)
    deadline = time.monotonic() + BOOT_S
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"{what} did not come up")
        time.sleep(0.02)
