"""The machines of the lab's Kubernetes: one with the control plane, and the nodes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from . import kube_files as files
from .dockerd import CGROUPS
from .kube_images import PAUSE
from .machine import HANG_S, LabError, Machine, command, completed, kill, until
from .machines import NETWORK, Lab

PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
CONTROL = "control"
SWITCH = f"{NETWORK}.254"
"""The address at which the switch, and so the cluster's users, are on the network."""
CONTROLLERS = ("blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "hugetlb", "memory",
               "pids", "systemd")  # fmt: skip


class KubeMachines:
    """The machines of one cluster, and the daemons on them."""

    def __init__(self, folder: Path, names: Sequence[str], cpus: int) -> None:
        self.folder, self.names, self.cpus = folder, names, cpus
        self.lab = Lab(folder / "machines")

    def start(self) -> None:
        """Start the network and the machine of the control plane."""
        self.lab.__enter__()
        self.lab.in_switch("ip", "address", "add", f"{SWITCH}/24", "dev", "lab")
        self.lab.add(CONTROL, number=files.CONTROL, sshd=False)

    def add_node(self, name: str, images: Iterable[Path]) -> None:
        """Start a node, with images; one that was switched off has its disk."""
        machine = self.lab.add(name, number=self._number(name), sshd=False)
        node = self.folder / name
        for part in ("containerd", "cni", "kubelet", "pki", "log", "lib", "lib-work"):
            (node / part).mkdir(parents=True, exist_ok=True)
        self._make_private(machine, node)
        self._connect(machine)
        self._make_groups(name)
        (node / "containerd.toml").write_text(files.containerd_config(node, PAUSE))
        (node / "cni" / "pods.conflist").write_text(files.cni_config(node, self._number(name)))
        config = files.kubelet_config(self.folder, machine.address, self._group(name), self.cpus)
        (node / "kubelet.yaml").write_text(config)
        self.serve(name, "containerd", ["containerd", "-c", str(node / "containerd.toml")])
        until(lambda: self.run(["ctr", "version"], at=name).returncode == 0, "containerd")
        for image in images:
            self._import(name, image)
        self.start_kubelet(name)
        self.serve(name, "kube-proxy", files.proxy(self.folder, name))

    def start_kubelet(self, name: str) -> None:
        address = self.lab.machines[name].address
        self.serve(name, "kubelet", files.kubelet(self.folder, name, address))

    # -- processes

    def run(
        self, argv: Sequence[str], *, at: str, timeout: float = HANG_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a machine of the cluster to its end."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return completed(self._popen(at, argv, **pipes), timeout=timeout)

    def serve(self, at: str, name: str, argv: Sequence[str]) -> None:
        """Start a daemon, which ends with its machine; its log is kept with the cluster."""
        with (self.folder / "log" / f"{name}-{at}").open("ab") as log:
            # A shell that goes at once, so that no test has the daemon as a child.
            wrapped = ["sh", "-c", 'exec setsid "$@" &', "sh", *argv]
            self._popen(at, wrapped, stdout=log, stderr=log).wait(HANG_S)

    def pids(self, at: str, program: str) -> list[int]:
        """Return this machine's ids of a daemon, at most one."""
        if at not in self.lab.machines:
            return []
        found = self.lab.machines[at].processes()
        return [pid for pid, line in found.items() if line.split(" ")[0] == program]

    def kill(self, at: str, program: str) -> None:
        """Kill a daemon and wait for its end."""
        kill(self.pids(at, program))

    def _popen(self, at: str, argv: Sequence[str], **how: Any) -> subprocess.Popen[str]:
        env = {"PATH": f"{self.folder}/bin:{PATH}", "AWS_EC2_METADATA_DISABLED": "true"}
        how = {"stdin": subprocess.DEVNULL, "text": True, **how}
        inside = self.lab.machines[at].inside(argv)
        return subprocess.Popen(inside, env={**env, "HOME": str(self.folder)}, **how)

    # -- how a machine becomes a node

    def _number(self, name: str) -> int:
        return self.names.index(name) + 1

    def _group(self, name: str) -> str:
        return f"{self.folder.name}-{name}"

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

    def _connect(self, machine: Machine) -> None:
        """Route between pods of all nodes, and from the control plane to pods."""
        for name, other in self.lab.machines.items():
            if name == machine.name:
                continue
            self._route(other, f"{files.PODS}.{self._number(machine.name)}.0/24", machine.address)
            if name in self.names:
                self._route(machine, f"{files.PODS}.{self._number(name)}.0/24", other.address)
        self._route(machine, "default", files.API)
        sysctl = ["net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0"]
        command(*_in_network(machine), "sysctl", "-qw", *sysctl)
        bridged = "net.bridge.bridge-nf-call-iptables=1"
        subprocess.run(
            [*_in_network(machine), "sysctl", "-qw", bridged], capture_output=True, check=False
        )

    def _route(self, machine: Machine, target: str, via: str) -> None:
        command(*_in_network(machine), "ip", "route", "replace", target, "via", via)

    def _make_groups(self, name: str) -> None:
        group = self._group(name)
        for root in (CGROUPS / controller for controller in CONTROLLERS):
            if root.is_dir():
                (root / group).mkdir(exist_ok=True)
        cpuset = CGROUPS / "cpuset"
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (cpuset / setting).exists():
                (cpuset / group / setting).write_text((cpuset / setting).read_text())


def _in_network(machine: Machine) -> list[str]:
    return ["nsenter", "--target", str(machine.pid), "--net", "--"]
