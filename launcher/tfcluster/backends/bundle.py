"""The code that a node needs (agent and workers) as one content-addressed bundle.

The bundle's folder has two roots, ``agent/tfcluster/…`` and ``workers/tfcluster_workers/…``, so
that the partial `tfcluster` in it never hides an installed one from a task.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import os
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tfcluster
from tfcluster.agent import bootstrap
from tfcluster.agent.error_text import reason_of
from tfcluster.agent.net.private_folders import make_private
from tfcluster.errors import SetupError

_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Bundle:
    """The bundle's files, by path below its folder."""

    files: Mapping[str, bytes]
    digest: str
    """16 hexadecimal digits of a SHA-256 over names and contents; the name of the folder."""

    @functools.cached_property
    def zip_bytes(self) -> bytes:
        """The bundle as a zip file, built on demand; the same bytes for the same files."""
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in self.files.items():
                info = zipfile.ZipInfo(name, _EPOCH)
                info.external_attr = 0o644 << 16
                archive.writestr(info, content, zipfile.ZIP_DEFLATED)
        return stream.getvalue()


@functools.cache
def build() -> Bundle:
    """Return the bundle of the installed packages; tfcluster_workers is read, never imported.

    It is built once per process: an upgrade while a run starts must not give its nodes two
    different bundles.
    """
    launcher = Path(tfcluster.__file__).parent
    paths = {"agent/tfcluster/__init__.py": launcher / "__init__.py"}
    for root, folder in (("agent/tfcluster", launcher / "agent"), ("workers", workers_folder())):
        for name in bootstrap.list_files(str(folder)):
            paths[f"{root}/{folder.name}/{name}"] = folder / name
    files = {name: paths[name].read_bytes() for name in sorted(paths)}
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return Bundle(files, digest.hexdigest()[:16])


def workers_folder() -> Path:
    """Return the folder of the installed tfcluster_workers. Raises SetupError."""
    package = importlib.util.find_spec("tfcluster_workers")
    if package is None or not package.submodule_search_locations:
        raise SetupError(
            "tfcluster_workers is not installed beside tfcluster",
            fix="install the tfcluster wheel again; it holds both",
        )
    return Path(package.submodule_search_locations[0])


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return ``${XDG_CACHE_HOME:-~/.cache}/tfcluster/bundles``."""
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "tfcluster" / "bundles"


def unpack(bundle: Bundle, cache: Path) -> Path:
    """Return the bundle's folder, written unless it is there complete; processes may do so at once.

    If `cache` cannot be written, a private folder below the temp directory is used. Raises
    SetupError if that is impossible, too.
    """
    try:
        return _unpack(bundle, cache)
    except OSError:
        return _unpack(bundle, _private_temp_folder())


def _private_temp_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"tfcluster-{os.getuid()}"
    try:
        make_private(str(folder))
    except OSError as error:
        raise SetupError(
            f"{folder} cannot hold tfcluster's code: {reason_of(error)}",
            fix="make ~/.cache writable, or set XDG_CACHE_HOME",
        ) from error
    return folder / "bundles"


def _unpack(bundle: Bundle, cache: Path) -> Path:
    folder = cache / bundle.digest
    if bootstrap.is_intact(str(folder)):
        bootstrap.drop_bytecode(str(folder))
        return folder
    bootstrap.install(str(folder), partial(_write, bundle))
    return folder


def _write(bundle: Bundle, folder: str) -> None:
    for name, content in bundle.files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    Path(folder).chmod(0o755)
