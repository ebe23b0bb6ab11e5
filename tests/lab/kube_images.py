"""Images for pods, made in Python without a registry: docker-archives that `ctr` imports.

HOST has nothing but folders: its pods mount this machine's /usr, Python and the checkout, see
`host_template`. SMALL has its own Python and the launcher, see `kube_small`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfcluster.backends.kubernetes.run_pods import COORDINATOR_CONTAINER, TASK_CONTAINER

ROOT = Path(__file__).parents[2]
PAUSE = "localhost/pause:1"
HOST = "localhost/tfcluster-host:1"
USER = 1000
BUSYBOX = Path("/bin/busybox")
APPLETS = (
    "sh",
    "sleep",
    "cat",
    "echo",
    "env",
    "id",
    "kill",
    "ls",
    "nslookup",
    "ps",
    "true",
    "wget",
)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/bin:/sbin"
_PASSWD = f"root:x:0:0:root:/root:/bin/sh\nworker:x:{USER}:{USER}::/home/worker:/bin/sh\n"
_GROUP = f"root:x:0:\nworker:x:{USER}:\n"


class Layer:
    """A tar file in memory, with the same bytes for the same content."""

    def __init__(self) -> None:
        self._members: list[tuple[tarfile.TarInfo, bytes]] = []
        self._folders: set[str] = set()

    def file(self, name: str, content: bytes, mode: int = 0o644) -> None:
        info = self._new(name)
        info.size, info.mode = len(content), mode
        self._members.append((info, content))

    def copy(self, source: Path, name: str) -> None:
        """Add a file of this machine, readable by all."""
        mode = 0o755 if source.stat().st_mode & 0o111 else 0o644
        self.file(name, source.read_bytes(), mode)

    def link(self, name: str, target: str) -> None:
        info = self._new(name)
        info.type, info.linkname = tarfile.SYMTYPE, target
        self._members.append((info, b""))

    def folder(self, name: str, mode: int = 0o755, owner: int = 0) -> None:
        if name not in self._folders:
            self._folders.add(name)
            info = self._new(name)
            info.type, info.mode, info.uid, info.gid = tarfile.DIRTYPE, mode, owner, owner
            self._members.append((info, b""))

    def tree(self, top: Path) -> None:
        """Add all that is in a folder of this machine."""
        for path in sorted(top.rglob("*")):
            name = str(path.relative_to(top))
            if path.is_symlink():
                self.link(name, os.readlink(path))
            elif path.is_dir():
                self.folder(name)
            else:
                self.copy(path, name)

    def content(self) -> bytes:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for info, content in self._members:
                tar.addfile(info, io.BytesIO(content))
        return packed.getvalue()

    def _new(self, name: str) -> tarfile.TarInfo:
        if above := os.path.dirname(name):
            self.folder(above)
        return tarfile.TarInfo(name)


def users(layer: Layer) -> None:
    """Add what every image has: a user, its home, and folders to write to."""
    layer.file("etc/passwd", _PASSWD.encode())
    layer.file("etc/group", _GROUP.encode())
    layer.folder("tmp", 0o1777)
    layer.folder("home/worker", 0o755, USER)
    for name in ("proc", "sys", "dev", "run", "root"):
        layer.folder(name)


def busybox(layer: Layer) -> None:
    """Add a shell and a few tools, which need no library."""
    layer.copy(BUSYBOX, "bin/busybox")
    for name in APPLETS:
        layer.link(f"bin/{name}", "busybox")


def archive(path: Path, name: str, layers: Sequence[bytes], config: Mapping[str, Any]) -> None:
    """Write a docker-archive of one image."""
    ids = [hashlib.sha256(layer).hexdigest() for layer in layers]
    made = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": [f"PATH={PATH}"], **config},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{one}" for one in ids]},
        "history": [{"created_by": "tests"} for _ in ids],
    }
    about = json.dumps(made).encode()
    known_as = f"{hashlib.sha256(about).hexdigest()}.json"
    files = [f"{one}/layer.tar" for one in ids]
    manifest = json.dumps([{"Config": known_as, "RepoTags": [name], "Layers": files}]).encode()
    parts = [(known_as, about), *zip(files, layers, strict=True), ("manifest.json", manifest)]
    unfinished = path.with_suffix(".new")
    with tarfile.open(unfinished, "w") as tar:
        for part, content in parts:
            info = tarfile.TarInfo(part)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    unfinished.rename(path)


def pause_image(path: Path) -> None:
    """Write the image of the process that holds a pod's namespaces."""
    layer = Layer()
    users(layer)
    busybox(layer)
    archive(path, PAUSE, [layer.content()], {"Cmd": ["/bin/sleep", "2147483647"]})


def host_image(path: Path) -> None:
    """Write HOST, whose programs are this machine's."""
    layer = Layer()
    users(layer)
    for name in ("bin", "sbin", "lib", "lib64"):
        layer.link(name, f"usr/{name}")
    for name in ("usr", "work"):
        layer.folder(name)
    archive(path, HOST, [layer.content()], {"Cmd": ["/bin/sh"], "WorkingDir": "/tmp"})


def host_folders() -> list[Path]:
    """Return the folders that pods of HOST mount, read-only: programs, Pythons, the checkout."""
    found = [Path("/usr"), ROOT]
    for venv in (Path(sys.prefix), *ROOT.glob(".venv*")):
        for line in _lines(venv / "pyvenv.cfg"):
            name, _, value = line.partition("=")
            if name.strip() == "home":
                found += [venv, Path(value.strip()).resolve().parent]
    apart = [path for path in dict.fromkeys(found) if path.is_dir()]
    return [path for path in apart if not any(path.is_relative_to(p) for p in apart if p != path)]


def host_template() -> dict[str, Any]:
    """Return a `pod_template` for pods of HOST: their mounts, this Python, and the user 1000."""
    folders = {f"host-{number}": str(path) for number, path in enumerate(host_folders())}
    mounts = [{"name": n, "mountPath": path, "readOnly": True} for n, path in folders.items()]
    path = {"name": "PATH", "value": f"{sys.prefix}/bin:{PATH}"}
    return {
        "spec": {
            "securityContext": {"runAsUser": USER, "runAsGroup": USER, "runAsNonRoot": True},
            "containers": [
                {"name": name, "env": [path], "volumeMounts": mounts}
                for name in (TASK_CONTAINER, COORDINATOR_CONTAINER)
            ],
            "volumes": [
                {"name": name, "hostPath": {"path": path, "type": "Directory"}}
                for name, path in folders.items()
            ],
        }
    }


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
