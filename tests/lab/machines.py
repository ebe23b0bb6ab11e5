"""Machines for tests with several hosts: namespaces on one bridge, with an sshd if they need one.

A machine has its own network, hostname, processes, home folder and /tmp; it shares the rest of
the file system, Python included. It does not touch the host's network: the bridge is in a
namespace, too. Everything ends with `Lab.close`, even if a test fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .machine import CARD, LabError, Machine, bucket, command, home, until

__all__ = ["Lab", "LabError", "Machine"]

INIT = Path(__file__).with_name("init.py")
CHECKOUT = Path(__file__).parents[2]
NETWORK = "10.77.0"


@dataclass
class Lab:
    """Machines on one bridge. Use it as a context manager; it needs root."""

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

    @property
    def switch(self) -> int:
        """The id of the process that holds the bridge's network."""
        assert self._switch is not None
        return self._switch.pid

    def in_switch(self, *argv: str) -> None:
        """Run an `ip` or `tc` command in the bridge's namespace."""
        command("nsenter", "--target", str(self.switch), "--net", "--", *argv)

    def add(
        self,
        name: str,
        *,
        number: int | None = None,
        sshd: bool = True,
        etc: Mapping[str, str] | None = None,
    ) -> Machine:
        """Return a new machine at 10.77.0.NUMBER; with `sshd`, all others can log in to it as root.

        `etc`: the text of files that replace those of this machine's /etc.
        """
        number = number or len(self.machines) + 1
        folder = self.folder / name
        _make_folders(folder, etc or {})
        if sshd:
            self._allow_logins(folder)
        argv = [*_UNSHARE, sys.executable, "-I", "-S", str(INIT), name, str(folder), home()]
        argv += [_python_home(), *_below_tmp()]
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
        if sshd:
            until(lambda: (folder / "sshd.pid").exists(), f"the sshd of {name}")
        return machine

    def add_card(self, machine: Machine, name: str, address: str) -> None:
        """Give a machine one more network card, such as ib0 with the address 10.88.0.1/24."""
        link = f"{name}-{machine.name}"
        self.in_switch("ip", "link", "add", link, "type", "veth", "peer", "name", name,
                       "netns", str(machine.pid))  # fmt: skip
        self.in_switch("ip", "link", "set", link, "master", "lab", "up")
        command(*machine.in_network("ip", "address", "add", address, "dev", name))
        command(*machine.in_network("ip", "link", "set", name, "up"))

    def remove(self, machine: Machine) -> None:
        """Switch a machine off and remove its folder; its name and number become free."""
        with contextlib.suppress(LabError):  # its network may have ended with it
            self.in_switch("ip", "link", "delete", self.link(machine))
        machine.end()
        del self.machines[machine.name]
        shutil.rmtree(machine.folder, ignore_errors=True)

    def link(self, machine: Machine) -> str:
        """Return the name of the bridge's end of the machine's cable."""
        return f"to-{machine.name}"

    def cut(self, machine: Machine) -> None:
        """Unplug its cable: no packet goes in or out."""
        self.in_switch("ip", "link", "set", self.link(machine), "down")

    def repair(self, machine: Machine) -> None:
        """Undo `cut`."""
        self.in_switch("ip", "link", "set", self.link(machine), "up")

    def block(self, one: Machine, other: Machine, *, port: int | None = None) -> None:
        """Drop packets between two machines silently, both ways; all other packets pass.

        Open connections hang, new ones time out. `port`: only TCP packets with it at either end,
        such as 22 between "home" and a host for the ssh connection alone.
        """
        one.drop(other, port=port)
        other.drop(one, port=port)

    def unblock(self, one: Machine, other: Machine, *, port: int | None = None) -> None:
        """Undo a `block` with the same arguments."""
        one.accept(other, port=port)
        other.accept(one, port=port)

    def shape(self, machine: Machine, *, mbit: float) -> None:
        """Limit the machine's cable to `mbit` Mbit/s each way."""
        self.in_switch("tc", *bucket(self.link(machine), mbit))
        machine.shape(mbit)

    def share(self, *machines: Machine, where: str = "shared") -> Path:
        """Mount one folder at `~/WHERE` of all `machines`, like a file server; return its path."""
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

    def _allow_logins(self, folder: Path) -> None:
        """Let the home's user log in to every machine and know every host's key."""
        self._make_key()
        ssh = folder / "home" / ".ssh"
        ssh.mkdir(mode=0o700)
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
        # The same MAC address for the same IP address, as others may have it in their ARP cache.
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


def _make_folders(folder: Path, etc: Mapping[str, str]) -> None:
    (folder / "home").mkdir(parents=True)
    (folder / "home").chmod(0o700)
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    (folder / "etc").mkdir()
    for name, text in etc.items():
        (folder / "etc" / name).write_text(text)


def _die_with_parent() -> None:
    """Make the kernel kill this process with its parent: a killed test cannot clean up."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _python_home() -> str:
    """Return the folder in the home that holds this Python, which the machines need, or ""."""
    for place in (Path(sys.base_prefix), Path(sys.prefix)):
        if place.is_relative_to(home()):
            return str(Path(home()) / place.relative_to(home()).parts[0])
    return ""


def _below_tmp() -> list[str]:
    """Return the folders of the checkout and of this Python that are below /tmp."""
    needed = {CHECKOUT, Path(sys.prefix), Path(sys.base_prefix)}
    below = [path for path in needed if path.is_relative_to("/tmp")]
    return sorted(str(path) for path in below if not {*path.parents} & {*below})


def _child_of(process: subprocess.Popen[bytes]) -> int:
    """Return the child that `unshare --fork` forked, once it has printed that it is up."""
    assert process.stdout is not None
    if process.stdout.readline() != b"up\n":
        process.kill()
        raise LabError("a machine did not come up")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0])
