"""The programs of Kubernetes 1.20, the newest whose servers Debian can build.

They come from an archive beside the checkout if there is one, else from Debian's source package,
built once. Either way they are kept in the tests' cache. ``python -m tests.lab.kube_binaries`` gets
them before a test has a time limit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from .docker_images import cache, exclusive
from .machine import LabError

ROOT = Path(__file__).parents[2]
VERSION = "1.20.2"
ARCHIVE = f"shared/schedulers/k8s-{VERSION}-debian-amd64.tar.zst"
PROGRAMS = (
    *("kube-apiserver", "kube-controller-manager", "kube-scheduler"),
    *("kubelet", "kube-proxy", "kubectl"),
)
BUILD_TOOLS = "golang-go make rsync jq gcc libc6-dev dpkg-dev file procps"
UNPACK_S, BUILD_S = 300.0, 3600.0
_BUILD = f"""
set -eu
export DEBIAN_FRONTEND=noninteractive
sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources > sources.list.sources
apt() {{ apt-get -qq -o Dir::Etc::SourceParts=- -o Dir::Etc::SourceList="$PWD/src.sources" "$@"; }}
mv sources.list.sources src.sources
apt-get install -y -qq --no-install-recommends {BUILD_TOOLS} >/dev/null
mkdir -p lists/partial
apt -o Dir::State::Lists="$PWD/lists" update
apt -o Dir::State::Lists="$PWD/lists" source kubernetes
cd kubernetes-*/
export GOPATH=$PWD/.go CGO_ENABLED=0 GOCACHE=$PWD/../gocache HOME=$PWD/.. GO111MODULE=off
export KUBE_GIT_COMMIT=debian KUBE_GIT_TREE_STATE=archive KUBE_GIT_VERSION=v{VERSION}
export KUBE_GIT_MAJOR=1 KUBE_GIT_MINOR=20 PATH=/usr/lib/go/bin:$PATH
mkdir -p .go/src/k8s.io && ln -s ../../.. .go/src/k8s.io/kubernetes
make GOLDFLAGS="-s -w" WHAT="{" ".join(f"cmd/{name}" for name in PROGRAMS)}"
mv {" ".join(f"_output/bin/{name}" for name in PROGRAMS)} "$1"
"""
"""Debian's own Go builds Debian's own source: 10 minutes and 3 GB on two cores."""


def programs() -> Path:
    """Return the folder of the programs, filled now unless they are there."""
    folder = cache() / f"kubernetes-{VERSION}"
    with exclusive("kubernetes"):
        if not folder.exists():
            made = folder.with_suffix(".new")
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
            if archive := _archive():
                argv = ["tar", "--zstd", "-xf", str(archive), "-C", str(made)]
                _run(argv, made, UNPACK_S)
            else:
                _build(made)
            made.rename(folder)
    return folder


def _archive() -> Path | None:
    """Return the archive beside the checkout or beside a folder above it."""
    found = (above / ARCHIVE for above in ROOT.parents)
    return next((path for path in found if path.exists()), None)


def _build(folder: Path) -> None:
    tree = folder.with_suffix(".build")
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    _run(["sh", "-c", _BUILD, "build", str(folder)], tree, BUILD_S)
    shutil.rmtree(tree)


def _run(argv: list[str], folder: Path, limit_s: float) -> None:
    done = subprocess.run(
        argv, cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=limit_s
    )
    if done.returncode != 0:
        raise LabError(f"{argv[0]}: {done.stdout[-1500:]}{done.stderr[-1500:]}")


if __name__ == "__main__":
    programs()
