"""What a bare node runs first, as `python3 -c SOURCE`: takes the bundle, then becomes the relay.

Standing alone on purpose: its source is sent before any other file of ours is there. stdin has
one line of JSON (digest, cache, folder, config); the answer is `HAVE` or `NEED`, and after `NEED`
come a line with a length and as many bytes of a zip: each piece is answered with `GOT`, the whole
with `HAVE`. From then on stdin and stdout are the relay's.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
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
    if not is_whole(folder):
        os.write(1, NEED)
        _unpack(_read_exactly(int(_read_line())), folder)
    drop_bytecode(folder)
    os.write(1, HAVE)
    os.umask(umask)
    sys.path.append(os.path.join(folder, "agent"))
    from tfcluster.agent.relay import main as relay

    relay({**order["config"], "cache": cache})


def _read_line() -> bytes:
    """Unbuffered: what follows the line belongs to somebody else."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise EOFError("the connection closed before the bundle came")
        line += byte
    return line


def _read_exactly(size: int) -> bytes:
    pieces = []
    while size:
        piece = os.read(0, min(size, 1 << 18))
        if not piece:
            raise EOFError("the connection closed within the bundle")
        pieces.append(piece)
        size -= len(piece)
        os.write(1, GOT)  # over a slow line this is all that tells that something happens
    return b"".join(pieces)


def _unpack(content: bytes, folder: str) -> None:
    import io
    import zipfile

    install(folder, zipfile.ZipFile(io.BytesIO(content)).extractall)


def install(folder: str, write: Callable[[str], object]) -> None:
    """Make `folder` whole, of what `write` puts into the folder that it is given; safe beside
    others that do the same. Raises OSError.

    A damaged one (a cleaner was at work) makes way for the new one.
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
            with contextlib.suppress(OSError):  # NFS locks no folder: others may come between
                fcntl.flock(lock, fcntl.LOCK_EX)
            if is_whole(folder):
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
        if not is_whole(folder):
            raise OSError(f"the bundle did not arrive whole in {folder}")
    finally:
        os.close(lock)
        shutil.rmtree(fresh, ignore_errors=True)  # a full disk is not to be filled by every try


def is_whole(folder: str) -> bool:
    """Whether the folder holds what its name says and nothing else, save for bytecode: the digest
    of `backends.bundle`.

    A folder that a cleaner or a full disk has left incomplete looks like any other.
    """
    with contextlib.suppress(OSError):
        os.utime(folder)  # it is in use: nobody prunes it from now on
    found = hashlib.sha256()
    try:
        for name in sorted(_names(folder)):
            with open(os.path.join(folder, name), "rb") as file:
                content = file.read()
            found.update(f"{name}\0{len(content)}\0".encode() + content)
    except OSError:
        return False
    return found.hexdigest()[:16] == os.path.basename(folder)


def _names(folder: str) -> list[str]:
    """Of files; and of links to folders, which cannot be read as files: Python would import from
    there what nobody has checked."""
    found = []
    for above, folders, names in os.walk(folder):
        names += [name for name in folders if os.path.islink(os.path.join(above, name))]
        folders[:] = [name for name in folders if name != _BYTECODE]
        found += [os.path.relpath(os.path.join(above, name), folder) for name in names]
    return found


def drop_bytecode(folder: str) -> None:
    """Take away what Python compiled here for earlier runs: it would run without a look at the
    sources beside it, and no digest covers it. This run compiles it once more."""
    for above, folders, _ in list(os.walk(folder)):
        if _BYTECODE in folders:
            old = os.path.join(os.path.dirname(folder), f".old-{os.urandom(6).hex()}")
            with contextlib.suppress(OSError):  # somebody else was faster
                os.rename(os.path.join(above, _BYTECODE), old)  # whole at once: others import
                _remove_files(old)


def _remove_files(folder: str) -> None:
    """And `folder`. What is no file stays for `agent.cache` to prune."""
    if os.path.islink(folder):
        os.unlink(folder)
        return
    for entry in list(os.scandir(folder)):
        os.unlink(entry.path)
    os.rmdir(folder)


if __name__ == "__main__":
    main()
