"""A real Kubernetes cluster for tests: a control plane and nodes, on machines of the lab.

Each machine has a network, a host name, processes, mounts, /run and /tmp of its own. All of it ends
with the machines, even if the test process is killed; clusters run side by side. What a killed
test process leaves is files, see `kube_folder`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from . import kube_files as files
from .kube_door import Door
from .kube_folder import authority, cluster_folder, fill
from .kube_images import host_image, pause_image
from .kube_machines import CONTROL, PATH, KubeMachines
from .kube_small import small_image
from .kubectl import Kubectl
from .machine import HANG_S, LabError, until

__all__ = ["KubeCluster", "Kubectl", "LabError", "missing_tools", "until"]

TOOLS = ("containerd", "runc", "etcd", "iptables", "conntrack", "ethtool", "ip", "unshare", "zstd",
         "nsenter", "openssl", "busybox")  # fmt: skip
PLUGINS = Path("/usr/lib/cni/bridge")
MANAGER = "kube-controller-manager"
DNS = Path(__file__).with_name("kube_dns.py")


def missing_tools() -> list[str]:
    """Return the tools that this machine lacks; `.ci/packages` knows their packages."""
    lacking = [tool for tool in TOOLS if not shutil.which(tool, path=PATH)]
    lacking += [] if PLUGINS.exists() else ["containernetworking-plugins"]
    return lacking if os.getuid() == 0 else ["root", *lacking]


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
    machines: KubeMachines = field(init=False)
    door: Door = field(init=False)
    _ends: ExitStack = field(init=False, default_factory=ExitStack)

    def __enter__(self) -> KubeCluster:
        with self._ends:
            self.folder = self._ends.enter_context(cluster_folder())
            self.machines = KubeMachines(self.folder, self.names, self.cpus)
            self._ends.callback(self.machines.lab.close)
            with self._explained():
                self._start()
            self._ends = self._ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End every process of the cluster and remove its folder."""
        self._ends.close()

    # -- who uses it

    @property
    def names(self) -> list[str]:
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    @property
    def config(self) -> Path:
        """The administrator's kubeconfig, which leads here from this machine's own network."""
        return self.folder / "kubeconfig"

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(self.config)

    def run(
        self, argv: Sequence[str], *, at: str = CONTROL, timeout: float = HANG_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a machine of the cluster to its end."""
        return self.machines.run(argv, at=at, timeout=timeout)

    def ready(self) -> dict[str, bool]:
        """Return node → whether it is ready and takes pods, as the API server says.

        A controller takes the taints from a node some time after that is ready again.
        """
        found = {}
        for node in self.kubectl.json("get", "nodes")["items"]:
            conditions = {c["type"]: c["status"] for c in node["status"].get("conditions", ())}
            is_ready = conditions.get("Ready") == "True" and not node["spec"].get("taints")
            found[node["metadata"]["name"]] = is_ready
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
        """Kill the API server: connections end, and new ones are refused.

        And the controllers: those that outlive it take nodes for silent, and delete their pods,
        while they still wait for their next try to read how the nodes are.
        """
        self.door.close()
        self.machines.kill(CONTROL, MANAGER)
        self.machines.kill(CONTROL, "kube-apiserver")

    def start_api_server(self) -> None:
        """Start the API server, wait until it answers, and start the controllers."""
        with self._explained():
            self._start_api_server()
            self._start_controllers()

    def kill_kubelet(self, name: str) -> None:
        """Kill a node's kubelet; its containers go on."""
        self.machines.kill(name, "kubelet")

    def start_kubelet(self, name: str) -> None:
        """Undo `kill_kubelet`."""
        self.machines.start_kubelet(name)

    def cut(self, name: str) -> None:
        """Unplug a machine's cable: it and its pods go on, and nobody hears from them.

        Without `control` nobody reaches the API server: connections hang, and new ones, too.
        """
        self.machines.lab.cut(self.machines.lab.machines[name])
        if name == CONTROL:
            self.door.fall_silent()

    def repair(self, name: str) -> None:
        """Undo `cut`."""
        self.machines.lab.repair(self.machines.lab.machines[name])
        if name == CONTROL and self.machines.pids(CONTROL, "kube-apiserver"):
            self.door.open()

    def power_off(self, name: str) -> None:
        """End a node: no connection is closed."""
        self.machines.lab.machines[name].power_off()
        self.machines.lab.remove(self.machines.lab.machines[name])

    def boot(self, name: str) -> None:
        """Start a node after `power_off`; its containers have ended."""
        self.machines.add_node(name, ())

    def restore(self) -> None:
        """Undo all faults and wait until all nodes are ready."""
        self.repair(CONTROL)
        if not self.machines.pids(CONTROL, "kube-apiserver"):
            self.start_api_server()
        elif not self.machines.pids(CONTROL, MANAGER):
            self._start_controllers()
        for name in self.names:
            if name not in self.machines.lab.machines:
                self.boot(name)
            self.repair(name)
            if not self.machines.pids(name, "kubelet"):
                self.start_kubelet(name)
            self.kubectl("uncordon", name)
        self.wait_for_ready()

    # -- how it is made

    def _start(self) -> None:
        fill(self.folder, self.names)
        images = self._make_images()
        self.machines.start()
        self.machines.serve(CONTROL, "etcd", files.etcd(self.folder))
        self.door = Door(self.machines.lab.switch, (files.API, 6443))
        self._ends.callback(self.door.remove)
        self.door.open()
        server, admin = f"https://127.0.0.1:{self.door.port}", files.token("admin")
        self.config.write_text(files.kubeconfig(server, admin, authority(self.folder)))
        self._start_api_server()
        self._start_controllers()
        self._start_control_plane()
        for name in self.names:
            self.machines.add_node(name, images)
        self.wait_for_ready()
        account = ("-n", "default", "get", "serviceaccount", "default")
        until(lambda: self.kubectl.run(*account).returncode == 0, "the first service account")

    def _make_images(self) -> list[Path]:
        pause_image(self.folder / "images" / "pause.tar")
        host_image(self.folder / "images" / "host.tar")
        small_image(self.folder / "images" / "small.tar")
        return [*sorted((self.folder / "images").iterdir()), *self.images]

    def _start_control_plane(self) -> None:
        self.machines.serve(CONTROL, "kube-scheduler", files.scheduler(self.folder))
        names = [sys.executable, "-I", str(DNS), files.API, "https://127.0.0.1:6443"]
        self.machines.serve(CONTROL, "dns", [*names, files.token("dns")])
        self.kubectl.apply(*files.first_objects())

    def _start_controllers(self) -> None:
        manager = files.controller_manager(self.folder, self.silence_s)
        self.machines.serve(CONTROL, MANAGER, manager)

    def _start_api_server(self) -> None:
        self.machines.serve(CONTROL, "kube-apiserver", files.api_server(self.folder, self.grace_s))
        self.door.open()
        ready = ("get", "--raw", "/readyz")
        until(lambda: self.kubectl.run(*ready).returncode == 0, "the API server")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Add the ends of the daemons' logs to an error of the block."""
        try:
            yield
        except BaseException as error:
            for log in sorted((self.folder / "log").glob("*")):
                error.add_note(f"{log.name}: {log.read_text(errors='replace')[-1500:]}")
            raise
