"""The start of a pod's agent before a coordinator comes, by a fork of the seat (`pod_seat`).

The seat has nothing but its own modules; the bundle and the order are files beside it. The fork
unpacks the bundle where a relay would, and becomes `agent.early_agent` with the code in it. It is
no new interpreter: two pods that start on two cores would wait a tenth of a second for theirs.

Where the image has the same tfcluster installed, the bundle's folder is made of links to it: to
unpack and to compile the bundle takes 0.14 s of a core, for which TensorFlow's imports would wait.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.machinery
import json
import os
import socket
import sys

from tfcluster.agent.containers.pod_connection import leave_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BUNDLE, ORDERS = "bundle.zip", "preload.json"
"""Files beside the seat: the bundle, and ``{"digest": …, "orders": […], "of": {NODE: NUMBER}}``
with a `catalogue.Preload` for each node."""
_PARTS = (
    ("tfcluster", "agent", "agent/tfcluster/agent"),
    ("tfcluster", "__init__.py", "agent/tfcluster/__init__.py"),
    ("tfcluster_workers", "", "workers/tfcluster_workers"),
)
"""The parts of each package that a bundle has, and their places in it (`backends.bundle`)."""
_BACKLOG = 8


def early_socket() -> str:
    """Return the path of the socket on which the early agent of this pod waits."""
    return os.path.expanduser("~/.cache/tfcluster/early")


def fork_agent(folder: str, node: str, *, closes: list[int]) -> int:
    """Fork the agent of `node`, without the descriptors `closes`; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        leave_session()
        for descriptor in closes:
            os.close(descriptor)
        _become_agent(folder, node)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def _become_agent(folder: str, node: str) -> None:
    """Listen, make the bundle's folder, and wait with its code for `agent.relay`."""
    umask, path = os.umask(0o077), early_socket()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(_BACKLOG)  # a relay that comes from now on waits for this process
    with open(os.path.join(folder, ORDERS), "rb") as file:
        orders = json.load(file)
    code = _unpack(os.path.join(folder, BUNDLE), orders["digest"])
    os.umask(umask)
    early_agent = _load("tfcluster.agent.early_agent", code)
    early_agent.wait(listener, orders["orders"][orders["of"][node]])


def _unpack(bundle: str, digest: str) -> str:
    """Return the folder of the agent's code, where a relay would unpack it."""
    bootstrap = _load("tfcluster.agent.bootstrap", os.path.join(bundle, "agent"))
    folder = os.path.join(os.path.expanduser("~/.cache/tfcluster"), "bundles", digest)

    def fill(fresh: str) -> None:
        with contextlib.suppress(OSError):
            _link_installed(fresh)
            if bootstrap.digest_of(fresh, follows_links=True) == digest:
                return
        import shutil
        import zipfile

        shutil.rmtree(fresh)
        os.mkdir(fresh)
        with zipfile.ZipFile(bundle) as archive:
            archive.extractall(fresh)

    if not bootstrap.is_intact(folder, follows_links=True):
        bootstrap.install(folder, fill, follows_links=True)
    return os.path.join(folder, "agent")


def _link_installed(folder: str) -> None:
    """Link what a bundle has of the installed packages to its places; nothing without them."""
    places = _package_places()
    specs = [importlib.machinery.PathFinder.find_spec(name, places) for name, _, _ in _PARTS]
    for spec, (_, part, target) in zip(specs, _PARTS):
        if spec is not None and spec.origin is not None:
            link = os.path.join(folder, target)
            os.makedirs(os.path.dirname(link), exist_ok=True)
            os.symlink(os.path.join(os.path.dirname(spec.origin), part), link)


def _package_places() -> list[str]:
    """Return where this Python would find packages: it runs without them (-S).

    `site` itself would run what `.pth` files say, in a process that becomes the agent.
    """
    import site

    venv = os.path.dirname(os.path.dirname(sys.executable))
    is_venv = os.path.exists(os.path.join(venv, "pyvenv.cfg"))
    places = []
    for folder in site.getsitepackages([venv] * is_venv + [sys.prefix, sys.exec_prefix]):
        places.append(folder)
        for file in glob.glob(os.path.join(glob.escape(folder), "*.pth")):
            with open(file, errors="replace") as lines:
                paths = [line.strip() for line in lines if not line.startswith(("#", "import"))]
            places += [os.path.join(folder, path) for path in paths if path]
    return places


def _load(module: str, place: str) -> Any:
    """Import a module of tfcluster from `place`; those of the seat are forgotten."""
    sys.path[0] = place
    for name in [each for each in sys.modules if each.partition(".")[0] == "tfcluster"]:
        del sys.modules[name]
    return importlib.import_module(module)
