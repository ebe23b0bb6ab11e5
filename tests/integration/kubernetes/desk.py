"""A user of the cluster: a namespace, a kubeconfig, and a command line that starts runs there."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.integration.commandline import CommandLine
from tests.lab.dockerd import CGROUPS
from tests.lab.kube_files import kubeconfig
from tests.lab.kube_images import HOST, host_template
from tests.lab.kube_small import SMALL
from tests.lab.kubectl import Kubectl
from tests.lab.machine import until

OURS = "app.kubernetes.io/managed-by=tfcluster"
KINDS = "pods,jobs,statefulsets,services,secrets,networkpolicies"
HANG_S = 150.0
"""Seconds after which what pods are to do counts as hung: two clusters share two cores."""
ENDS_S = 150.0
"""Seconds after which an object of an ended run counts as left behind."""


class Desk:
    """A namespace for one test, removed at its end with all that is in it."""

    small = SMALL
    """An image with its own Python and the launcher, for a read-only root file system."""

    def __init__(self, shell: CommandLine, admin: Path, namespace: str) -> None:
        self.shell, self.namespace, self._admin = shell, namespace, admin
        self.server, self.authority = _cluster_of(admin)
        self._volumes = admin.parent / f"volumes-{namespace}"
        """All nodes have this folder; each has a /tmp of its own."""
        self.config = self._write("admin", _token_of(admin))
        self.kubectl = Kubectl(self.config)
        shell.env["KUBECONFIG"], shell.patience_s = str(self.config), HANG_S
        Kubectl(admin)("create", "namespace", namespace)
        # A pod is refused until its service account has a token, as the API server's cache knows.
        pod = ("run", "none", "--image=none", "--dry-run=server")
        until(lambda: self.kubectl.run(*pod).returncode == 0, "the service account's token")

    def runtime(self, **section: Any) -> dict[str, Any]:
        """Return a `runtime` of a spec whose pods have this machine's Python and TensorFlow.

        With `image=desk.small` they have their own Python, nothing of this machine, and no
        TensorFlow.
        """
        made: dict[str, Any] = {"image": HOST, "namespace": self.namespace}
        if section.get("image", HOST) == HOST:
            made["pod_template"] = host_template()
        return {"backend": "kubernetes", "kubernetes": {**made, **section}}

    def user(
        self, name: str, *, role: str = "edit", rules: Sequence[Mapping[str, Any]] | None = None
    ) -> Path:
        """Return the kubeconfig of a new user who may do what a ClusterRole allows, only here.

        `rules`: those of a Role of the user's own instead; an empty list allows nothing.
        """
        kind, group = "ClusterRole", "rbac.authorization.k8s.io"
        objects: list[dict[str, Any]] = [_object("v1", "ServiceAccount", name)]
        if rules is not None:
            kind, role = "Role", name
            objects.append({**_object(f"{group}/v1", kind, name), "rules": list(rules)})
        binding = _object(f"{group}/v1", "RoleBinding", name)
        subject = {"kind": "ServiceAccount", "name": name, "namespace": self.namespace}
        reference = {"apiGroup": group, "kind": kind, "name": role}
        objects.append({**binding, "roleRef": reference, "subjects": [subject]})
        self.kubectl.apply(*objects)
        config = self._write(name, until(lambda: self._token(name), f"a token of {name}"))
        first = ("get", "pods") if rules is None else _first_right(rules)
        if first:  # the API server's caches learn of a new role later than its user
            may = ("auth", "can-i", *first)
            until(lambda: Kubectl(config).run(*may).returncode == 0, f"the rights of {name}")
        return config

    def claim(self, name: str) -> Path:
        """Make a claim that pods on all nodes can write to; return its folder."""
        folder, volume = self._volumes / name, f"{name}-{self.namespace}"
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        size = {"storage": "1Gi"}
        claimed = {"namespace": self.namespace, "name": name}
        there = {"capacity": size, "hostPath": {"path": str(folder)}, "claimRef": claimed}
        asks = {"volumeName": volume, "resources": {"requests": size}}
        self.kubectl.apply(
            {**_object("v1", "PersistentVolume", volume), "spec": {**common, **there}},
            {**_object("v1", "PersistentVolumeClaim", name), "spec": {**common, **asks}},
        )
        phase = ("get", "pvc", name, "-o", "jsonpath={.status.phase}")
        until(lambda: self.kubectl(*phase) == "Bound", f"a volume for {name}")
        return folder

    def left(self) -> list[str]:
        """Return our objects that stay in the namespace."""
        return left_in(self.kubectl)

    def log(self, pod: str) -> str:
        """Return what a pod has written so far."""
        return self.kubectl.run("logs", pod).stdout

    def describe(self) -> str:
        """Return what shows why a test has failed: pods, their logs, events, runs' events."""
        texts = [self.kubectl.run("get", "pods", "-o", "wide").stdout]
        texts += [self.kubectl.run("get", "events", "--sort-by=.lastTimestamp").stdout[-4000:]]
        for folder in self._admin.parent.glob(f"n?/log/pods/{self.namespace}_*"):
            for log in folder.glob("*/*.log"):  # also of pods that a dead kubelet does not show
                texts += [f"{log}:\n{log.read_text(errors='replace')[-2000:]}"]
        for log in self.shell.home.glob("runs/*/events.jsonl"):
            texts += [f"{log}:\n{log.read_text(errors='replace')[-4000:]}"]
        return "\n".join(texts)

    def processes(self, pod: str) -> list[int]:
        """Return this machine's ids of the processes of a pod, without its sandbox's."""
        uid = self.kubectl("get", "pod", pod, "-o", "jsonpath={.metadata.uid}")
        pids = list[int]()
        for top in (CGROUPS / "pids").glob(f"{self._admin.parent.name}-*"):
            for folder, _, names in os.walk(top):  # which forgives that other pods end meanwhile
                if f"/pod{uid}/" in folder and "cgroup.procs" in names:
                    with contextlib.suppress(OSError):
                        pids += map(int, Path(folder, "cgroup.procs").read_text().split())
        return [pid for pid in pids if b"2147483647" not in command_line(pid)]

    def kill(self, pod: str) -> None:
        """Kill all processes of a pod."""
        for pid in self.processes(pod):
            with contextlib.suppress(ProcessLookupError):  # its first process took it along
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Remove the namespace and all in it, without waiting for graces, or for its end."""
        makers = "jobs,statefulsets"
        self.kubectl.run("delete", makers, "--all", "--cascade=orphan")  # they make no pods again
        self.kubectl("delete", "pods", "--all", "--grace-period=0", "--force", timeout=100)
        Kubectl(self._admin)("delete", "namespace", self.namespace, "--wait=false", timeout=100)
        for folder in self._volumes.glob("*"):
            volume = f"{folder.name}-{self.namespace}"
            Kubectl(self._admin)("delete", "persistentvolume", volume, "--wait=false", timeout=100)

    def _token(self, name: str) -> str:
        for secret in self.kubectl.json("get", "secrets")["items"]:
            notes = secret["metadata"].get("annotations", {})
            if notes.get("kubernetes.io/service-account.name") == name:
                return base64.b64decode(secret["data"]["token"]).decode()
        return ""

    def _write(self, name: str, bearer: str) -> Path:
        path = self.shell.root / f"kubeconfig-{name}"
        path.write_text(kubeconfig(self.server, bearer, self.authority, namespace=self.namespace))
        path.chmod(0o600)
        return path


def left_in(kubectl: Kubectl, *where: str) -> list[str]:
    """Return our objects that stay in a namespace: kubelets end pods in their own time."""
    deadline = time.monotonic() + ENDS_S
    while (left := objects_in(kubectl, *where)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


def objects_in(kubectl: Kubectl, *where: str) -> list[str]:
    """Return our objects that are in a namespace now."""
    return kubectl("get", *where, KINDS, "-l", OURS, "-o", "name").split()


def _object(version: str, kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}}


def _first_right(rules: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """Return a verb and a resource that a role with these rules allows; nothing without rules."""
    if not rules:
        return ()
    first = rules[0]
    group, resource = first["apiGroups"][0], first["resources"][0]
    return first["verbs"][0], f"{resource}.{group}" if group else resource


def _cluster_of(config: Path) -> tuple[str, Path]:
    cluster = _read(config)["clusters"][0]["cluster"]
    return cluster["server"], Path(cluster["certificate-authority"])


def _token_of(config: Path) -> str:
    return str(_read(config)["users"][0]["user"]["token"])


def _read(config: Path) -> Any:
    return json.loads(config.read_text())


def command_line(pid: int) -> bytes:
    """Return the words of a process, each with a zero; empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
