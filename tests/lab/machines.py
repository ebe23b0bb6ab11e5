"""Machines for the tests of real hosts: namespaces on one bridge, with an sshd each.

A machine has a network, a hostname, processes, a home folder and a /tmp of its own; it shares the
rest of the file system, Python included. Nothing of it is on the host's network: the bridge lies
in a namespace, too. All of it ends with `Lab.close`, also where a test has lost its way.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

INIT = Path(__file__).with_name("init.py")
NETWORK = "10.77.0"
BOOT_S = 20.0
"""How long a machine may take to come up."""


class LabError(RuntimeError):
    """The lab could not be built; the text holds what the system said."""


@dataclass
class Machine:
    """One of the lab's machines; `run` starts a command in it."""

    name: str
    address: str
    folder: Path
    process: subprocess.Popen[bytes]
    pid: int
    """Of its first process, seen from outside."""

    @property
    def root(self) -> Path:
        """Its home folder, seen from outside."""
        return self.folder / "home"

    def inside(self, argv: Sequence[str]) -> list[str]:
        """`argv` as a command line for outside that runs in this machine."""
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--uts", "--net", "--pid"]
        return [*enter, "--wdns=/", "--", *argv]

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **how: object
    ) -> subprocess.Popen[str]:
        full = {**os.environ, "HOME": os.environ["HOME"], **(env or {})}
        return subprocess.Popen(self.inside(argv), env=full, text=True, **how)  # type: ignore[call-overload, no-any-return]

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """To its end, with what it said."""
        process = self.start(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def processes(self) -> dict[int, str]:
        """Command line of all that lives in it but its first process and sshd, by outer pid."""
        mine = os.readlink(f"/proc/{self.pid}/ns/pid")
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == self.pid:
                continue
            with contextlib.suppress(OSError):
                if os.readlink(entry / "ns/pid") != mine:
                    continue
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                if words and "sshd" not in words.split(" ")[0]:
                    found[int(entry.name)] = words
        return found

    def power_off(self) -> None:
        """As if the plug was pulled: nothing of it can say goodbye."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


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
            machine.power_off()
        if self._switch is not None:
            self._switch.kill()
            self._switch.wait()
            assert self._switch.stdout is not None
            self._switch.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def in_switch(self, *argv: str) -> None:
        """Run an `ip` or `tc` command where the bridge is."""
        assert self._switch is not None
        _run("nsenter", "--target", str(self._switch.pid), "--net", "--", *argv)

    def add(self, name: str, *, number: int | None = None) -> Machine:
        """A machine at 10.77.0.NUMBER that all others can log in to as its root user."""
        number = number or len(self.machines) + 1
        folder = self.folder / name
        self._furnish(folder)
        argv = [*_UNSHARE, sys.executable, "-I", "-S", str(INIT), name, str(folder), _home()]
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
        machine.power_off()
        del self.machines[machine.name]
        shutil.rmtree(machine.folder, ignore_errors=True)

    def link(self, machine: Machine) -> str:
        """The switch's end of the machine's cable."""
        return f"to-{machine.name}"

    def cut(self, machine: Machine) -> None:
        self.in_switch("ip", "link", "set", self.link(machine), "down")

    def mend(self, machine: Machine) -> None:
        self.in_switch("ip", "link", "set", self.link(machine), "up")

    def _make_key(self) -> None:
        key = self.folder / "key"
        if not key.exists():
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "host_key"))

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
        self.in_switch("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0",
                       "address", card, "netns", str(machine.pid))  # fmt: skip
        self.in_switch("ip", "link", "set", link, "master", "lab", "up")
        inside = ["nsenter", "--target", str(machine.pid), "--net", "--", "ip"]
        _run(*inside, "address", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
        _run(*inside, "link", "set", "eth0", "up")
        _run(*inside, "link", "set", "lo", "up")


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


def _home() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_dir


def _python_home() -> str:
    """The folder of the home that holds this Python, else nothing: the machines need it."""
    for place in (Path(sys.base_prefix), Path(sys.prefix)):
        if place.is_relative_to(_home()):
            return str(Path(_home()) / place.relative_to(_home()).parts[0])
    return ""


def _child_of(process: subprocess.Popen[bytes]) -> int:
    """What `unshare --fork` has forked, once it says that it is up."""
    assert process.stdout is not None
    if process.stdout.readline() != b"up\n":
        process.kill()
        raise LabError("a machine did not come up")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0])


def _run(*argv: str) -> None:
    result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    if result.returncode != 0:
        raise LabError(f"{' '.join(argv)}: {result.stderr.strip()}")


def _until(condition: object, what: str) -> None:
    assert callable(condition)
    deadline = time.monotonic() + BOOT_S
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"{what} did not come up")
        time.sleep(0.02)
