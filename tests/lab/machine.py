"""One machine of the lab, seen from outside: its processes, network card, firewall and mounts."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfcluster.agent.processes import AGENT_NAME, start_time

CARD = "eth0"
HANG_S = 90.0


class LabError(RuntimeError):
    """A part of the lab could not be built; the text holds the system's message."""


def until(condition: Callable[[], object], what: str, hang_s: float = HANG_S) -> Any:
    """Call `condition` until it returns something true, and return that."""
    deadline = time.monotonic() + hang_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise LabError(f"waited {hang_s} s for {what}")
        time.sleep(0.05)
    return found


def kill(pids: Iterable[int]) -> None:
    """Kill processes and wait until they are gone.

    The command line of a killed process vanishes first, its sockets some time later: a daemon that
    started in between would find its port taken.
    """
    killed = list(pids)
    for pid in killed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in killed), f"the end of {killed}")


def completed(
    process: subprocess.Popen[str], *, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Wait for the end of a process with pipes, which is killed if the wait fails."""
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@dataclass
class Machine:
    """A machine of the lab; `run` runs a command in it."""

    name: str
    address: str
    folder: Path
    process: subprocess.Popen[bytes]
    pid: int
    """The host's id of its first process."""

    @property
    def root(self) -> Path:
        """The home folder's path on the host."""
        return self.folder / "home"

    def inside(self, argv: Sequence[str]) -> list[str]:
        """Return a command line for the host that runs `argv` in this machine."""
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
        """Run `argv` in this machine to its end, with its output captured."""
        process = self.start(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        return completed(process, timeout=timeout)

    def kill_agents(self) -> None:
        """Kill all agents, then their guards; an agent without a guard would end its tasks."""
        for pid in reversed(self.agents()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def agents(self) -> list[int]:
        """Return the host's pids of guard, agent (its child) and helpers of each run, in order."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if Path(f"/proc/{pid}/comm").read_text() == f"{AGENT_NAME}\n":
                    found.append((start_time(pid), pid))  # pids begin again after the highest
        return [pid for _, pid in sorted(found)]

    def processes(self) -> dict[int, str]:
        """Return pid → command line of its processes, without the first one and sshd."""
        namespace = os.readlink(f"/proc/{self.pid}/ns/pid")
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == self.pid:
                continue
            with contextlib.suppress(OSError):
                if os.readlink(entry / "ns/pid") != namespace:
                    continue
                command_line = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                )
                if command_line and "sshd" not in command_line.split(" ")[0]:
                    found[int(entry.name)] = command_line
        return found

    def power_off(self) -> None:
        """Cut the network and kill everything, so that no connection is closed properly."""
        if self.process.poll() is None:
            command(*self.in_network("ip", "link", "set", CARD, "down"))
        self.end()

    def end(self) -> None:
        """Kill all its processes; the kernel closes their connections.

        A machine that was ended before has no pid: another process may have it by now.
        """
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def drop(self, sender: Machine, *, port: int | None) -> None:
        """Drop packets from `sender` silently, like a firewall: all, or those of one TCP port."""
        for rule in self._drop_rules(sender, port):
            command(*self.in_network("ip", "rule", "add", *rule))

    def accept(self, sender: Machine, *, port: int | None) -> None:
        """Undo a `drop` with the same arguments."""
        for rule in self._drop_rules(sender, port):
            command(*self.in_network("ip", "rule", "delete", *rule))

    def share(self, folder: Path, where: str) -> None:
        """Mount `folder` at `where` below its home, like a network file system."""
        (self.root / where).mkdir(parents=True, exist_ok=True)
        inside = ["nsenter", "--target", str(self.pid), "--mount", "--"]
        command(*inside, "mount", "--bind", str(folder), f"{home()}/{where}")

    def shape(self, mbit: float) -> None:
        """Limit what it sends to `mbit` Mbit/s; see `Lab.shape`."""
        command(*self.in_network("tc", *bucket(CARD, mbit)))

    def plug_in(self) -> None:
        """Configure its network card and its address."""
        command(*self.in_network("ip", "address", "add", f"{self.address}/24", "dev", CARD))
        command(*self.in_network("ip", "link", "set", CARD, "up"))
        command(*self.in_network("ip", "link", "set", "lo", "up"))
        # The rules of `drop` must precede the rule that delivers packets to the machine itself.
        command(*self.in_network("ip", "rule", "add", "pref", "100", "lookup", "local"))
        command(*self.in_network("ip", "rule", "delete", "pref", "0"))

    def _drop_rules(self, sender: Machine, port: int | None) -> list[list[str]]:
        rule = ["pref", "10", "iif", CARD, "from", sender.address]
        if port is None:
            return [[*rule, "blackhole"]]
        ends = ("sport", "dport")
        return [[*rule, "ipproto", "tcp", end, str(port), "blackhole"] for end in ends]

    def in_network(self, *argv: str) -> list[str]:
        return ["nsenter", "--target", str(self.pid), "--net", "--", *argv]


def bucket(card: str, mbit: float) -> list[str]:
    """Return `tc` arguments for a token bucket with a burst of 5 ms, at least one full packet."""
    burst = max(64_000, int(mbit * 1e6 / 8 * 0.005))
    limits = ["rate", f"{mbit}mbit", "burst", str(burst), "latency", "50ms"]
    return ["qdisc", "replace", "dev", card, "root", "tbf", *limits]


def home() -> str:
    """Return the home folder of the user who runs the tests; each machine mounts its own there."""
    return pwd.getpwuid(os.getuid()).pw_dir


def command(*argv: str) -> None:
    """Run a command to its end. Raises LabError with its stderr if it fails."""
    result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=HANG_S)
    if result.returncode != 0:
        raise LabError(f"{' '.join(argv)}: {result.stderr.strip()}")
