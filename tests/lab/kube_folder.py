"""The folder of a cluster: its programs, keys and configuration.

A killed test process leaves the folder and control groups; the next cluster removes both.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from . import kube_files as files
from .docker_images import exclusive
from .dockerd import CGROUPS, remove_cgroups
from .kube_binaries import programs
from .machine import command

FOLDERS, PREFIX = Path("/var/tmp"), "kube-"
FOLDERS_LOCK = "kubernetes-folders"
"""Who holds this lock (`exclusive`) makes folders, and removes those of killed processes."""
_PARTS = ("log", "pki", "conf", "etcd", "images", "bin")


@contextmanager
def cluster_folder() -> Iterator[Path]:
    """Yield a new folder, and remove those of clusters whose test process was killed."""
    with exclusive(FOLDERS_LOCK):
        _remove_leftovers()
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=FOLDERS))
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        _remove(folder)
        os.close(lock)


def fill(folder: Path, nodes: Sequence[str]) -> None:
    """Write what the machines of a cluster read."""
    for part in _PARTS:
        (folder / part).mkdir()
    (folder / "etcd").chmod(0o700)
    (folder / "resolv.conf").write_text(f"nameserver {files.API}\n")
    (folder / "tokens").write_text(files.tokens(nodes))
    _take_programs(folder / "bin")
    _make_keys(folder / "pki")
    for name in ("kube-controller-manager", "kube-scheduler", "kube-proxy", *nodes):
        server = f"https://{files.API}:6443"
        config = files.kubeconfig(server, files.token(name), authority(folder))
        (folder / "conf" / name).write_text(config)


def authority(folder: Path) -> Path:
    """Return the certificate that the API server's users trust."""
    return folder / "pki" / "api.crt"


def _take_programs(place: Path) -> None:
    """Link the programs into the cluster's folder: a machine has a home of its own."""
    for program in programs().iterdir():
        try:
            os.link(program, place / program.name)
        except OSError:  # another file system
            shutil.copy(program, place / program.name)


def _make_keys(place: Path) -> None:
    names = f"subjectAltName=IP:127.0.0.1,IP:{files.API},IP:10.96.0.1,DNS:localhost"
    names += ",DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
    new = ["-newkey", "rsa:2048", "-nodes", "-days", "365", "-subj", "/CN=lab"]
    keys = ["-keyout", str(place / "api.key"), "-out", str(place / "api.crt")]
    command("openssl", "req", "-x509", *new, *keys, "-addext", names)
    command("openssl", "genrsa", "-out", str(place / "accounts.key"), "2048")


def _remove_leftovers() -> None:
    """Remove what nobody holds the lock of."""
    for folder in FOLDERS.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), (folder / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)


def _remove(folder: Path) -> None:
    for name in {path.name for path in CGROUPS.glob(f"*/{folder.name}-*")}:
        remove_cgroups(name)
    shutil.rmtree(folder, ignore_errors=True)
