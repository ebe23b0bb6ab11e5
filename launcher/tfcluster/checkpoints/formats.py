"""Whether a single file is whole by its own format: what a dead writer leaves is not."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

from tfcluster.agent import foreign_json

_TABLE_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
"""Ends every ``.index``: TensorFlow writes it as a LevelDB table (tsl/lib/io/format.h)."""
_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def fault(path: Path) -> str:
    """What is wrong with this file, empty when nothing is. Raises OSError."""
    if path.suffix == ".index":
        return "" if _tail(path, 8) == _TABLE_MAGIC else "its index is cut off"
    if path.suffix == ".keras":
        return _fault_in_zip(path)
    if path.suffix in (".h5", ".hdf5"):
        return _fault_in_hdf5(path)
    if path.name == "training_metadata.json":
        return _fault_in_json(path)
    return ""


def _tail(path: Path, count: int) -> bytes:
    with path.open("rb") as reader:
        reader.seek(max(0, path.stat().st_size - count))
        return reader.read(count)


def _fault_in_zip(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except (zipfile.BadZipFile, EOFError, NotImplementedError):
        return "it is no whole zip archive"
    return f"its part {broken} is damaged" if broken else ""


def _fault_in_hdf5(path: Path) -> str:
    """The superblock names the end of the file (HDF5 file format, section II.A)."""
    with path.open("rb") as reader:
        head = reader.read(64)
    if len(head) < 64 or not head.startswith(_HDF5_SIGNATURE):
        return "it is no HDF5 file"
    version = head[8]
    at, size_of_offsets = (40, head[13]) if version < 2 else (28, head[9])
    at += 4 if version == 1 else 0
    if size_of_offsets != 8:
        return ""
    end = int.from_bytes(head[at : at + 8], "little")
    return "" if end <= path.stat().st_size else "it is cut off"


def _fault_in_json(path: Path) -> str:
    try:
        foreign_json.parse(path.read_bytes())
    except ValueError:
        return "it is no whole JSON"
    return ""
