"""What a bare node runs first, as `python3 -c SOURCE`: takes the bundle, then becomes the relay.

Standing alone on purpose: its source is sent before any other file of ours is there. stdin has
one line of JSON (digest, cache, folder, config); the answer is `HAVE` or `NEED`, and after `NEED`
come a line with a length and as many bytes of a zip. From then on stdin and stdout are the
relay's.
"""

from __future__ import annotations

import json
import os
import sys

HAVE = b"\x00tfcluster-bundle have\n"
NEED = b"\x00tfcluster-bundle need\n"


def main() -> None:
    order = json.loads(_read_line())
    cache = os.path.expanduser(order["cache"])
    folder = os.path.join(cache, "bundles", order["digest"])
    if os.path.isdir(folder):
        os.write(1, HAVE)
    else:
        os.write(1, NEED)
        _unpack(_read_exactly(int(_read_line())), folder)
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
    return b"".join(pieces)


def _unpack(content: bytes, folder: str) -> None:
    import io
    import shutil
    import tempfile
    import zipfile

    cache = os.path.dirname(folder)
    os.makedirs(cache, exist_ok=True)
    fresh = tempfile.mkdtemp(prefix=".new-", dir=cache)
    zipfile.ZipFile(io.BytesIO(content)).extractall(fresh)
    try:
        os.rename(fresh, folder)
    except OSError:
        shutil.rmtree(fresh)  # somebody else was faster
        if not os.path.isdir(folder):
            raise


if __name__ == "__main__":
    main()
