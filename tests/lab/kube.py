"""A real Kubernetes cluster for tests: a control plane and nodes, on machines of the lab.

Each machine has a network, a host name, processes, mounts, /run and /tmp of its own. All of it ends
with the machines, even if the test process is killed; clusters run side by side. What a killed
test process leaves is files: control groups and the folder, which the next cluster removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from . import kube_files as files
from .dockerd import CGROUPS, remove_cgroups
from .kube_binaries import programs
from .kube_door import Door
from .kube_images import PAUSE, host_image, pause_image
from .machine import LabError, Machine, command, completed
from .machines import Lab

__all__ = ["KubeCluster", "Kubectl", "LabError", "missing_tools", "until"]

TOOLS = ("containerd", "runc", "etcd", "iptables", "conntrack", "ethtool", "ip", "unshare", "zstd",
         "nsenter", "openssl", "busybox")  # fmt: skip
PLUGINS = Path("/usr/lib/cni/bridge")
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
FOLDERS, PREFIX = Path("/var/tmp"), "kube-"
HANG_S = 90.0
DNS = Path(__file__).with_name("kube_dns.py")
CONTROLLERS = ("blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "hugetlb", "memory",
               "pids", "systemd")  # fmt: skip


def missing_tools() -> list[str]:
    """Return the tools that this machine lacks; `.ci/run` knows their packages."""
    lacking = [tool for tool in TOOLS if not shutil.which(tool, path=PATH)]
    lacking += [] if PLUGINS.exists() else ["containernetworking-plugins"]
    return lacking if os.getuid() == 0 else ["root", *lacking]


@dataclass(frozen=True, slots=True)
class Kubectl:
    """The client of 1.20 with one kubeconfig; users need not have it."""

    config: Path

    def __call__(self, *args: str, given: object = None, timeout: float = HANG_S) -> str:
        """Return the stdout of `kubectl ARGS`; `given`: an object for its stdin, as JSON."""
        done = self.run(*args, given=given, timeout=timeout)
        if done.returncode != 0:
            raise LabError(f"kubectl {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def run(
        self, *args: str, given: object = None, timeout: float = HANG_S
    ) -> subprocess.CompletedProcess[str]:
        argv = [str(programs() / "kubectl"), f"--kubeconfig={self.config}", *args]
        text = None if given is None else json.dumps(given)
        return subprocess.run(
            argv, input=text, capture_output=True, text=True, timeout=timeout, check=False
        )

    def json(self, *args: str) -> Any:
        return json.loads(self(*args, "-o", "json"))

    def apply(self, *objects: Mapping[str, Any]) -> None:
        self("apply", "-f", "-", given={"apiVersion": "v1", "kind": "List", "items": objects})


@dataclass
class KubeCluster:
    """Kubernetes with the nodes n1, n2, …. Use it as a context manager; it needs root."""

    nodes: int = 2
    cpus: int = 2
    """The CPUs that each node gives to pods, by their requests."""
    silence_s: int = 10
    """Seconds of silence after which a node is not ready; Kubernetes' default is 40."""
    grace_s: int = 5
    """Seconds after which pods of such a node are deleted; Kubernetes' default is 300."""
    images: Sequence[Path] = ()
    """More docker-archives for the nodes."""
    folder: Path = field(init=False)
    lab: Lab = field(init=False)
    door: Door = field(init=False)
    _lock: IO[str] | None = field(init=False, default=None)

    def __enter__(self) -> KubeCluster:
        remove_leftovers()
        programs()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=FOLDERS))
        self.folder.chmod(0o755)
        self._lock = (self.folder / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.lab = Lab(self.folder / "machines")
        try:
            self._start()
        except BaseException as error:
            self._explain(error)
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of the cluster and remove its folder."""
        if hasattr(self, "door"):
            self.door.close()
        self.lab.close()
        _remove(self.folder)
        if self._lock is not None:
            self._lock.close()

    # -- who uses it

    @property
    def names(self) -> list[str]:
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    @property
    def config(self) -> Path:
        """The administrator's kubeconfig, which leads here from this machine's own network."""
        return self.folder / "kubeconfig"

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.door.port}"

    @property
    def authority(self) -> Path:
        return self.folder / "pki" / "api.crt"

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(self.config)

    def control(self) -> Machine:
        return self.lab.machines["control"]

    def run(
        self, argv: Sequence[str], *, at: str = "control", timeout: float = HANG_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a machine of the cluster to its end."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return completed(self._popen(at, argv, **pipes), timeout=timeout)

    def ready(self) -> dict[str, bool]:
        """Return node → whether it is ready, as the API server says."""
        found = {}
        for node in self.kubectl.json("get", "nodes")["items"]:
            conditions = {c["type"]: c["status"] for c in node["status"]["conditions"]}
            found[node["metadata"]["name"]] = conditions.get("Ready") == "True"
        return found

    def wait_for_ready(self, *names: str, ready: bool = True) -> None:
        """Wait until nodes (all if none is named) are ready, or are not."""
        wanted = names or self.names
        until(
            lambda: all((self.ready().get(name) is True) == ready for name in wanted),
            f"nodes {wanted} {'ready' if ready else 'not ready'}",
        )

    # -- faults

    def kill_api_server(self) -> None:
        """Kill the API server: connections end, and new ones are refused."""
        self.door.close()
        self._kill("control", "kube-apiserver")

    def start_api_server(self) -> None:
        """Start the API server and wait until it answers."""
        self._serve("control", "kube-apiserver", files.api_server(self.folder, self.grace_s))
        self.door.open()
        until(lambda: self.kubectl.run("get", "--raw", "/readyz").returncode == 0, "the API server")

    def kill_kubelet(self, name: str) -> None:
        """Kill a node's kubelet; its containers go on."""
        self._kill(name, "kubelet")

    def start_kubelet(self, name: str) -> None:
        address = self.lab.machines[name].address
        self._serve(name, "kubelet", files.kubelet(self.folder, name, address))

    def cut(self, name: str) -> None:
        """Unplug a node's cable: it and its pods go on, and nobody hears from them."""
        self.lab.cut(self.lab.machines[name])

    def repair(self, name: str) -> None:
        """Undo `cut`."""
        self.lab.repair(self.lab.machines[name])

    def power_off(self, name: str) -> None:
        """End a node: no connection is closed."""
        self.lab.machines[name].power_off()
        self.lab.remove(self.lab.machines[name])

    def boot(self, name: str) -> None:
        """Start a node after `power_off`; its containers have ended."""
        self._add_node(name)

    def restore(self) -> None:
        """Undo all faults and wait until all nodes are ready."""
        if not self._pids("control", "kube-apiserver"):
            self.start_api_server()
        for name in self.names:
            if name not in self.lab.machines:
                self.boot(name)
            self.repair(name)
            if not self._pids(name, "kubelet"):
                self.start_kubelet(name)
            self.kubectl("uncordon", name)
        self.wait_for_ready()

    # -- how it is made

    def _start(self) -> None:
        for name in ("log", "pki", "conf", "etcd", "images", "bin"):
            (self.folder / name).mkdir()
        self._take_programs()
        (self.folder / "etcd").chmod(0o700)
        (self.folder / "resolv.conf").write_text(f"nameserver {files.API}\n")
        (self.folder / "tokens").write_text(files.tokens(self.names))
        self._make_keys()
        self._write_configs()
        self.lab.__enter__()
        control = self.lab.add("control", number=files.CONTROL, sshd=False)
        self._serve("control", "etcd", files.etcd(self.folder))
        self.door = Door(control.pid, 6443)
        self.door.open()
        server, dns = self.server, files.token("dns")
        admin = files.kubeconfig(server, files.token("admin"), self.authority)
        self.config.write_text(admin)
        self.door.close()
        pause_image(self.folder / "images" / "pause.tar")
        host_image(self.folder / "images" / "host.tar")
        self.start_api_server()
        self._serve("control", "kube-controller-manager",
                    files.controller_manager(self.folder, self.silence_s))  # fmt: skip
        self._serve("control", "kube-scheduler", files.scheduler(self.folder))
        argv = [sys.executable, "-I", str(DNS), files.API, "https://127.0.0.1:6443", dns]
        self._serve("control", "dns", argv)
        self.kubectl.apply(*files.first_objects())
        for name in self.names:
            self._add_node(name)
        self.wait_for_ready()
        account = ("-n", "default", "get", "serviceaccount", "default")
        until(lambda: self.kubectl.run(*account).returncode == 0, "the first service account")

    def _add_node(self, name: str) -> None:
        number = self.names.index(name) + 1
        machine = self.lab.add(name, number=number, sshd=False)
        node = self.folder / name
        for part in ("containerd", "cni", "kubelet", "pki", "log", "lib", "lib-work"):
            (node / part).mkdir(parents=True, exist_ok=True)
        self._make_private(machine, node)
        self._connect(machine, number)
        self._make_groups(name)
        (node / "containerd.toml").write_text(files.containerd_config(node, PAUSE))
        (node / "cni" / "pods.conflist").write_text(files.cni_config(node, number))
        config = files.kubelet_config(self.folder, machine.address, self._group(name), self.cpus)
        (node / "kubelet.yaml").write_text(config)
        self._serve(name, "containerd", ["containerd", "-c", str(node / "containerd.toml")])
        until(lambda: self.run(["ctr", "version"], at=name).returncode == 0, "containerd")
        for image in (*sorted((self.folder / "images").iterdir()), *self.images):
            self._import(name, image)
        self.start_kubelet(name)
        self._serve(name, "kube-proxy", files.proxy(self.folder, name))

    def _import(self, name: str, image: Path) -> None:
        done = self.run(["ctr", "-n", "k8s.io", "images", "import", str(image)], at=name)
        if done.returncode != 0:
            raise LabError(f"ctr images import: {done.stderr.strip()}")

    def _make_private(self, machine: Machine, node: Path) -> None:
        """Hide this machine's /run, /var/lib and /var/log, where nodes write at fixed paths."""
        layers = f"lowerdir=/var/lib,upperdir={node}/lib,workdir={node}/lib-work"
        for argv in (
            ["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"],
            ["mount", "-t", "overlay", "overlay", "-o", layers, "/var/lib"],
            ["mount", "--bind", str(node / "log"), "/var/log"],
        ):
            command("nsenter", "--target", str(machine.pid), "--mount", "--", *argv)

    def _connect(self, machine: Machine, number: int) -> None:
        """Route between pods of all nodes, and from the control plane to pods."""
        for name, other in self.lab.machines.items():
            if name == machine.name:
                continue
            self._ip(other, "route", "replace", f"{files.PODS}.{number}.0/24", "via",
                     machine.address)  # fmt: skip
            if name in self.names:
                its = f"{files.PODS}.{self.names.index(name) + 1}.0/24"
                self._ip(machine, "route", "replace", its, "via", other.address)
        self._ip(machine, "route", "replace", "default", "via", files.API)
        sysctl = ["net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0"]
        command(*_in_network(machine), "sysctl", "-qw", *sysctl)
        bridged = "net.bridge.bridge-nf-call-iptables=1"
        subprocess.run(
            [*_in_network(machine), "sysctl", "-qw", bridged], capture_output=True, check=False
        )

    def _make_groups(self, name: str) -> None:
        group = self._group(name)
        for root in (CGROUPS / controller for controller in CONTROLLERS):
            if root.is_dir():
                (root / group).mkdir(exist_ok=True)
        cpuset = CGROUPS / "cpuset"
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (cpuset / setting).exists():
                (cpuset / group / setting).write_text((cpuset / setting).read_text())

    def _take_programs(self) -> None:
        """Link the programs into the cluster's folder: a machine has a home of its own."""
        for program in programs().iterdir():
            try:
                os.link(program, self.folder / "bin" / program.name)
            except OSError:  # another file system
                shutil.copy(program, self.folder / "bin" / program.name)

    def _make_keys(self) -> None:
        pki = self.folder / "pki"
        names = f"subjectAltName=IP:127.0.0.1,IP:{files.API},IP:10.96.0.1,DNS:localhost"
        names += ",DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
        new = ["-newkey", "rsa:2048", "-nodes", "-days", "365", "-subj", "/CN=lab"]
        keys = ["-keyout", str(pki / "api.key"), "-out", str(pki / "api.crt")]
        command("openssl", "req", "-x509", *new, *keys, "-addext", names)
        command("openssl", "genrsa", "-out", str(pki / "accounts.key"), "2048")

    def _write_configs(self) -> None:
        for name in ("kube-controller-manager", "kube-scheduler", "kube-proxy", *self.names):
            config = files.kubeconfig(
                f"https://{files.API}:6443", files.token(name), self.authority
            )
            (self.folder / "conf" / name).write_text(config)

    # -- processes

    def _group(self, name: str) -> str:
        return f"{self.folder.name}-{name}"

    def _popen(self, at: str, argv: Sequence[str], **how: Any) -> subprocess.Popen[str]:
        env = {"PATH": f"{self.folder}/bin:{PATH}", "AWS_EC2_METADATA_DISABLED": "true"}
        how = {"stdin": subprocess.DEVNULL, "text": True, **how}
        inside = self.lab.machines[at].inside(argv)
        return subprocess.Popen(inside, env={**env, "HOME": str(self.folder)}, **how)

    def _serve(self, at: str, name: str, argv: Sequence[str]) -> None:
        """Start a daemon, which ends with its machine; its log is kept with the cluster."""
        with (self.folder / "log" / f"{name}-{at}").open("ab") as log:
            # A shell that goes at once, so that no test has the daemon as a child.
            wrapped = ["sh", "-c", 'exec setsid "$@" &', "sh", *argv]
            self._popen(at, wrapped, stdout=log, stderr=log).wait(HANG_S)

    def _pids(self, at: str, program: str) -> list[int]:
        if at not in self.lab.machines:
            return []
        found = self.lab.machines[at].processes()
        return [pid for pid, line in found.items() if line.split(" ")[0] == program]

    def _kill(self, at: str, program: str) -> None:
        for pid in self._pids(at, program):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not self._pids(at, program), f"the end of {program}")

    def _ip(self, machine: Machine, *argv: str) -> None:
        command(*_in_network(machine), "ip", *argv)

    def _explain(self, error: BaseException) -> None:
        """Add the ends of the daemons' logs to an error."""
        for log in sorted((self.folder / "log").glob("*")):
            error.add_note(f"{log.name}: {log.read_text(errors='replace')[-1500:]}")


def remove_leftovers() -> None:
    """Remove the files of clusters whose test process was killed: nobody holds their lock."""
    for folder in FOLDERS.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), (folder / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)


def _remove(folder: Path) -> None:
    for name in _groups(folder.name):
        remove_cgroups(name)
    shutil.rmtree(folder, ignore_errors=True)


def _groups(prefix: str) -> Iterator[str]:
    yield from {path.name for path in CGROUPS.glob(f"*/{prefix}-*")}


def _in_network(machine: Machine) -> list[str]:
    return ["nsenter", "--target", str(machine.pid), "--net", "--"]


def until(condition: Callable[[], object], what: str, hang_s: float = HANG_S) -> Any:
    """Call `condition` until it returns something true, and return that."""
    deadline = time.monotonic() + hang_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise LabError(f"waited {hang_s} s for {what}")
        time.sleep(0.1)
    return found
