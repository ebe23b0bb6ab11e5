"""A real docker daemon for tests, in namespaces of its own.

A second daemon on one host would remove the first one's bridge and firewall rules, and mounts,
shims and containers outlive a killed daemon. With separate network, mount and process namespaces
it disturbs nothing, and all of it ends with the first process of the namespaces, even if a test
fails. The daemon sees the host's files, so tests can mount them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .machine import LabError, command, until
from .machines import _child_of, _die_with_parent

TOOLS = ("dockerd", "debootstrap", "containerd", "runc", "iptables", "nsenter", "unshare", "ip")
SYSTEM = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
CGROUPS = Path("/sys/fs/cgroup")
STOP_S = 60.0
"""Seconds to wait for the daemon's exit: longer than it waits for its containers."""
_FIRST = "ip link set lo up; echo up; exec env --ignore-signal=CHLD sleep infinity"
"""The first process of the namespaces; ignoring SIGCHLD makes the kernel reap its children."""


@dataclass(frozen=True, slots=True)
class Docker:
    """The docker client, with the environment that leads it to its daemon."""

    env: Mapping[str, str]

    def __call__(
        self, *args: str, timeout: float = 60, env: Mapping[str, str] | None = None
    ) -> str:
        """Return the stdout of `docker ARGS`. Raises LabError with its stderr if it fails."""
        done = self.run(*args, timeout=timeout, env=env)
        if done.returncode != 0:
            raise LabError(f"docker {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def run(
        self, *args: str, timeout: float = 60, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `docker ARGS` to its end; `env` is added to the environment."""
        return subprocess.run(
            self._argv(args),
            env={**self.env, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        """Start `docker ARGS` with its stdout on a pipe."""
        return subprocess.Popen(self._argv(args), env=dict(self.env), stdout=subprocess.PIPE)

    def _argv(self, args: Sequence[str]) -> list[str]:
        return [shutil.which("docker", path=self.env["PATH"]) or "docker", *args]


def existing_daemon() -> Docker | None:
    """Return the client of this machine's own daemon (or DOCKER_HOST's), or None."""
    docker = Docker(os.environ)
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        if docker.run("version", timeout=20).returncode == 0:
            return docker
    return None


def missing_tools() -> list[str]:
    """Return the tools for a `Dockerd` that this machine lacks: see `.ci/packages`."""
    lacking = [tool for tool in TOOLS if not shutil.which(tool, path=_path())]
    return lacking if os.getuid() == 0 else ["root", *lacking]


@dataclass
class Dockerd:
    """A docker daemon. Use it as a context manager; it needs root."""

    folder: Path
    """A short path, because of the socket; removed at the end."""
    data_root: Path | None = None
    """The folder of images and containers; if given, it outlives this object."""
    live_restore: bool = False
    docker: Docker = field(init=False)
    _namespaces: subprocess.Popen[bytes] | None = field(init=False, default=None)
    _daemon: subprocess.Popen[bytes] | None = field(init=False, default=None)
    pid: int = field(init=False, default=0)
    """The host's id of the first process of the namespaces."""

    @property
    def socket(self) -> Path:
        return self.folder / "docker.sock"

    @property
    def env(self) -> Mapping[str, str]:
        """The environment in which `docker` uses this daemon."""
        return self.docker.env

    @property
    def log(self) -> Path:
        return self.folder / "dockerd.log"

    @property
    def is_up(self) -> bool:
        return self._daemon is not None and self._daemon.poll() is None

    def __enter__(self) -> Dockerd:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.docker = Docker(_environment(self.folder, f"unix://{self.socket}"))
        self._namespaces = subprocess.Popen(
            [*_UNSHARE, "sh", "-c", _FIRST],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PATH": _path()},
            preexec_fn=_die_with_parent,
            start_new_session=True,
        )
        try:
            self.pid = _child_of(self._namespaces)
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, *, live_restore: bool | None = None) -> None:
        """Start the daemon and wait until it answers.

        `live_restore`: containers outlive its next stop.
        """
        assert not self.is_up, "it is up already"
        if live_restore is not None:
            self.live_restore = live_restore
        config = self.folder / "daemon.json"
        config.write_text(json.dumps({"live-restore": self.live_restore}))
        with self.log.open("ab") as log:
            self._daemon = subprocess.Popen(
                self.inside([*self._command_line(config)]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"PATH": _path()},
                preexec_fn=_die_with_parent,
                start_new_session=True,
            )
        try:
            until(self._answers, "dockerd")
        except LabError as error:
            raise LabError(f"{error}: {self.log.read_text()[-2000:]}") from None

    def stop(self) -> None:
        """Stop it like `systemctl stop docker`: containers end, unless it has `live_restore`."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL; its containers keep running, even without `live_restore`."""
        self._end(signal.SIGKILL)

    def restart(self, *, live_restore: bool | None = None) -> None:
        self.stop()
        self.start(live_restore=live_restore)

    def inside(self, argv: Sequence[str]) -> list[str]:
        """Return a command line that runs `argv` in the daemon's namespaces."""
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--net", "--pid", "--wdns=/"]
        return [*enter, "--", *argv]

    def run(self, argv: Sequence[str], *, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run `argv` to its end on the containers' host."""
        return subprocess.run(
            self.inside(argv), capture_output=True, text=True, timeout=timeout, check=False
        )

    def close(self) -> None:
        """End every process and remove all data, except a `data_root` that was given."""
        if self.is_up and self.data_root is not None:
            with contextlib.suppress(LabError, subprocess.TimeoutExpired):
                self.clear()
                self.stop()
        for process in (self._namespaces, self._daemon):
            if process is not None:
                process.kill()
                process.wait()
        if self._namespaces is not None and self._namespaces.stdout is not None:
            self._namespaces.stdout.close()
        remove_cgroups(self._group)
        shutil.rmtree(self.folder, ignore_errors=True)

    def clear(self) -> None:
        """Remove every container, network and volume; images stay."""
        if containers := self.docker("ps", "--all", "--quiet").split():
            self.docker("rm", "--force", "--volumes", *containers)
        self.docker("network", "prune", "--force")
        self.docker("volume", "prune", "--force")

    @property
    def _group(self) -> str:
        return f"tests-{self.folder.name}"

    def _command_line(self, config: Path) -> Iterator[str]:
        yield from ("dockerd", "--config-file", str(config), "--host", f"unix://{self.socket}")
        yield from ("--data-root", str(self.data_root or self.folder / "data"))
        yield from ("--exec-root", str(self.folder / "exec"))
        yield from ("--pidfile", str(self.folder / "dockerd.pid"))
        yield from ("--cgroup-parent", f"/{self._group}", "--log-level", "warn")

    def _answers(self) -> bool:
        if not self.is_up:
            raise LabError("dockerd ended")
        return self.docker.run("version").returncode == 0

    def _end(self, number: signal.Signals) -> None:
        assert self._daemon is not None
        children = Path(f"/proc/{self._daemon.pid}/task/{self._daemon.pid}/children")
        for pid in children.read_text().split():  # nsenter does not forward signals
            os.kill(int(pid), number)
        self._daemon.wait(STOP_S)


_UNSHARE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=KILL"]
_UNSHARE += ["--mount-proc", "--propagation", "private", "--"]


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:{SYSTEM}"


def _environment(folder: Path, host: str) -> dict[str, str]:
    """Return an environment with a client that can build, without the user's docker settings."""
    (folder / "bin").mkdir(exist_ok=True)
    link = folder / "bin" / "docker"
    link.unlink(missing_ok=True)
    link.symlink_to(_client())
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DOCKER_")}
    path = f"{folder}/bin:{os.environ['PATH']}"
    return kept | {"PATH": path, "DOCKER_HOST": host, "DOCKER_CONFIG": str(folder / "config")}


def _client() -> Path:
    """Return the first client on PATH that can build; since 23.0 that needs the buildx plugin."""
    found = [Path(folder) / "docker" for folder in _path().split(":")]
    clients = [path for path in dict.fromkeys(found) if os.access(path, os.X_OK)]
    return next(
        (path for path in clients if _builds(path)), clients[0] if clients else Path("docker")
    )


def _builds(client: Path) -> bool:
    output = subprocess.run(
        [client, "--version"], capture_output=True, text=True, check=False
    ).stdout
    version = re.search(r"version (\d+)", output)
    if version and int(version[1]) < 23:
        return True
    return subprocess.run([client, "buildx", "version"], capture_output=True).returncode == 0


def remove_cgroups(name: str) -> None:
    """Remove empty cgroups, which the kernel keeps; those of recent processes empty slowly."""
    deadline = time.monotonic() + 30
    for root in [*CGROUPS.glob(f"*/{name}"), CGROUPS / name]:
        for folder, _, _ in os.walk(root, topdown=False):
            while Path(folder).exists() and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
                    break
                time.sleep(0.02)


__all__ = [
    "Docker",
    "Dockerd",
    "LabError",
    "command",
    "existing_daemon",
    "missing_tools",
    "remove_cgroups",
]
