"""One machine of the lab, from outside: what runs in it, its cable, its firewall, its mounts."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfcluster.agent.relay import PROCESS_NAME

CARD = "eth0"


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

    def kill_agents(self) -> None:
        """And their guards, the agents first: without a guard they would end their tasks."""
        for pid in reversed(self.agents()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def agents(self) -> list[int]:
        """Of each run the guard, its child, the agent, and then what helps it; by outer pid."""
        found = []
        for pid in sorted(self.processes()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if Path(f"/proc/{pid}/comm").read_text() == f"{PROCESS_NAME}\n":
                    found.append(pid)
        return found

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
        """As if the plug was pulled: nothing of it can say goodbye, no connection is closed."""
        if self.process.poll() is None:
            command(*self._in_network("ip", "link", "set", CARD, "down"))
        self.end()

    def end(self) -> None:
        """Kill all that runs in it; its kernel closes their connections."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def drop(self, sender: Machine, *, port: int | None) -> None:
        """Drop what comes from `sender` in silence, as a firewall does: all, or one TCP port."""
        for rule in self._drops(sender, port):
            command(*self._in_network("ip", "rule", "add", *rule))

    def accept(self, sender: Machine, *, port: int | None) -> None:
        """The end of `drop` with the same words."""
        for rule in self._drops(sender, port):
            command(*self._in_network("ip", "rule", "delete", *rule))

    def share(self, folder: Path, where: str) -> None:
        """Mount `folder` at `where` below its home, as a network file system would be."""
        (self.root / where).mkdir(parents=True, exist_ok=True)
        inside = ["nsenter", "--target", str(self.pid), "--mount", "--"]
        command(*inside, "mount", "--bind", str(folder), f"{home()}/{where}")

    def shape(self, mbit: float) -> None:
        """What it sends is held to `mbit` million bits a second; see `Lab.shape`."""
        command(*self._in_network("tc", *bucket(CARD, mbit)))

    def plug_in(self) -> None:
        """Its card gets its address."""
        command(*self._in_network("ip", "address", "add", f"{self.address}/24", "dev", CARD))
        command(*self._in_network("ip", "link", "set", CARD, "up"))
        command(*self._in_network("ip", "link", "set", "lo", "up"))
        # Rules of `drop` come before the one that gives packets to this machine itself.
        command(*self._in_network("ip", "rule", "add", "pref", "100", "lookup", "local"))
        command(*self._in_network("ip", "rule", "delete", "pref", "0"))

    def _drops(self, sender: Machine, port: int | None) -> list[list[str]]:
        rule = ["pref", "10", "iif", CARD, "from", sender.address]
        if port is None:
            return [[*rule, "blackhole"]]
        ends = ("sport", "dport")
        return [[*rule, "ipproto", "tcp", end, str(port), "blackhole"] for end in ends]

    def _in_network(self, *argv: str) -> list[str]:
        return ["nsenter", "--target", str(self.pid), "--net", "--", *argv]


def bucket(card: str, mbit: float) -> list[str]:
    """A token bucket that is not the bottleneck itself: 5 ms of burst, at least one full packet."""
    burst = max(64_000, int(mbit * 1e6 / 8 * 0.005))
    limits = ["rate", f"{mbit}mbit", "burst", str(burst), "latency", "50ms"]
    return ["qdisc", "replace", "dev", card, "root", "tbf", *limits]


def home() -> str:
    """The home folder of who runs the tests; each machine has its own at that place."""
    return pwd.getpwuid(os.getuid()).pw_dir


def command(*argv: str) -> None:
    """Run it to its end; LabError with what it said if it fails."""
    result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    if result.returncode != 0:
        raise LabError(f"{' '.join(argv)}: {result.stderr.strip()}")
