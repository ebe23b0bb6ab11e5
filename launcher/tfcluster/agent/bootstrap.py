"""The first program on a bare node: receives the bundle, checks it, then becomes the relay.

It runs as `python3 -c SOURCE` and imports nothing of tfcluster, because its source arrives before
any other file. stdin has one line of JSON (digest, cache, order); the answer is `HAVE` or
`NEED`. After `NEED` follow a line with a length and that many bytes of a zip: each piece is
answered with `GOT`, the whole with `HAVE`. From then on stdin and stdout are the relay's.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import sys
from collections.abc import Callable

HAVE = b"\x00tfcluster-bundle have\n"
NEED = b"\x00tfcluster-bundle need\n"
GOT = b"\x00tfcluster-bundle got\n"
_BYTECODE = "__pycache__"
_TRIES = 3


def main() -> None:
    umask = os.umask(0o077)
    order = json.loads(_read_line())
    cache = os.path.expanduser(order["cache"])
    os.makedirs(os.path.join(cache, "nodes"), exist_ok=True)
    with contextlib.suppress(OSError):
        os.chmod(cache, 0o700)
    folder = os.path.join(cache, "bundles", order["digest"])
    if not is_intact(folder):
        os.write(1, NEED)
        _unpack(_read_exactly(int(_read_line())), folder)
    drop_bytecode(folder)
    os.write(1, HAVE)
    os.umask(umask)
    sys.path.append(os.path.join(folder, "agent"))
    from tfcluster.agent.relay import main as relay

    relay({**order["order"], "cache": cache})


def _read_line() -> bytes:
    """Read one line, byte by byte: the bytes after it are for another reader."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise EOFError("the connection closed before the bundle arrived")
        line += byte
    return line


def _read_exactly(size: int) -> bytes:
    pieces = []
    while size:
        piece = os.read(0, min(size, 1 << 18))
        if not piece:
            raise EOFError("the connection closed in the middle of the bundle")
        pieces.append(piece)
        size -= len(piece)
        os.write(1, GOT)  # the only sign of progress over a slow connection
    return b"".join(pieces)


def _unpack(content: bytes, folder: str) -> None:
    import io
    import zipfile

    install(folder, zipfile.ZipFile(io.BytesIO(content)).extractall)


def install(folder: str, write: Callable[[str], object]) -> None:
    """Make `folder` complete: `write` fills a temporary folder, which then takes its place.

    Processes that install the same folder at once do not disturb each other. A damaged folder (a
    cleaner removed files) is replaced. Raises OSError.
    """
    import fcntl
    import shutil
    import tempfile

    cache = os.path.dirname(folder)
    os.makedirs(cache, exist_ok=True)
    lock = os.open(cache, os.O_RDONLY)
    fresh = ""
    try:
        for _ in range(_TRIES):
            with contextlib.suppress(OSError):  # NFS cannot lock a folder: others may interfere
                fcntl.flock(lock, fcntl.LOCK_EX)
            if is_intact(folder):
                return
            fresh = tempfile.mkdtemp(prefix=".new-", dir=cache)
            write(fresh)
            if os.path.lexists(folder):
                aside = tempfile.mkdtemp(prefix=".damaged-", dir=cache)
                with contextlib.suppress(FileNotFoundError):
                    os.rename(folder, os.path.join(aside, "x"))
                shutil.rmtree(aside, ignore_errors=True)
            try:
                os.rename(fresh, folder)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                shutil.rmtree(fresh, ignore_errors=True)
        if not is_intact(folder):
            raise OSError(f"the bundle in {folder} is incomplete")
    finally:
        os.close(lock)
        shutil.rmtree(fresh, ignore_errors=True)  # each retry would fill the disk a little more


def is_intact(folder: str) -> bool:
    """Return whether the folder's content has the digest that is its name (`backends.bundle`).

    Bytecode does not count. Only the digest shows that a cleaner or a full disk left the folder
    incomplete.
    """
    with contextlib.suppress(OSError):
        os.utime(folder)  # marked as in use: `files.cache` does not prune it now
    try:
        return digest_of(folder) == os.path.basename(folder)
    except OSError:
        return False


def digest_of(folder: str) -> str:
    """Return the digest of the folder's content. Raises OSError, also for a link to a folder."""
    digest = hashlib.sha256()
    for name in sorted(list_files(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            content = file.read()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def list_files(folder: str) -> list[str]:
    """Return the relative paths of all files but bytecode, and of links to folders.

    Such a link cannot be read as a file, so it fails the check: Python would import unchecked code
    through it.
    """
    paths = []
    for above, folders, names in os.walk(folder):
        names += [name for name in folders if os.path.islink(os.path.join(above, name))]
        folders[:] = [name for name in folders if name != _BYTECODE]
        paths += [os.path.relpath(os.path.join(above, name), folder) for name in names]
    return paths


def drop_bytecode(folder: str) -> None:
    """Remove the bytecode of earlier runs; this run compiles it again.

    Python could run it without reading the sources beside it, and no digest covers it.
    """
    for above, folders, _ in list(os.walk(folder)):
        if _BYTECODE in folders:
            old = os.path.join(os.path.dirname(folder), f".old-{os.urandom(6).hex()}")
            with contextlib.suppress(OSError):  # another process was faster
                os.rename(os.path.join(above, _BYTECODE), old)  # atomic: others may be importing
                _remove_files(old)


def _remove_files(folder: str) -> None:
    """Remove `folder` and the files in it; `files.cache` prunes anything else later."""
    if os.path.islink(folder):
        os.unlink(folder)
        return
    for entry in list(os.scandir(folder)):
        os.unlink(entry.path)
    os.rmdir(folder)


if __name__ == "__main__":
    main()
