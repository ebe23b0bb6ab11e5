"""The damage of checkpoints and outputs, as far as the format of each file tells of it."""

from __future__ import annotations

import functools
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from tfcluster.agent import foreign_json
from tfcluster.checkpoints.copying import CHUNK, Stopped, never, raise_if_cancelled

_TABLE_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
"""The last bytes of every ``.index``, which is a LevelDB table (tsl/lib/io/format.h)."""

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_HDF5_PLACES = (0, 512, 1024, 2048, 4096)
"""Offsets of the signature: a user block may come before it (HDF5 file format, section II.A)."""

_TFRECORD = re.compile(r".*\.tf(record(s)?|rec)(-\d+-of-\d+)?")
_COMPRESSED = (b"\x1f\x8b", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
"""The first bytes of gzip and zlib data: TFRecordOptions compress whole files, under any name."""
_RECORD_HEAD = struct.Struct("<QI")
_CRC_OF_DATA = 4


def find_damage(path: Path, *, stopped: Stopped = never) -> str:
    """Return what is wrong with the format of a checkpoint's file, or "".

    Raises OSError and CancelledError.
    """
    if path.suffix == ".index":
        return "" if _tail(path, 8) == _TABLE_MAGIC else "its index is truncated"
    if path.name == "training_metadata.json":
        return _damage_in_json(path)
    check = _CHECKPOINTS.get(path.suffix)
    return check(path, stopped) if check is not None else ""


def find_output_damage(path: Path, *, stopped: Stopped = never) -> str:
    """Return what is wrong with the format of any file that a job has written, or "".

    Raises OSError and CancelledError.
    """
    if _TFRECORD.fullmatch(path.name):
        return _damage_in_records(path, stopped)
    if path.suffix in (".zip", ".npz"):
        return _damage_in_zip(path, stopped)
    if path.suffix == ".index" and not [*path.parent.glob(f"{path.stem}.data-*-of-*")]:
        return ""  # no checkpoint's
    return find_damage(path, stopped=stopped)


def _tail(path: Path, count: int) -> bytes:
    with path.open("rb") as reader:
        reader.seek(max(0, path.stat().st_size - count))
        return reader.read(count)


def _damage_in_zip(path: Path, stopped: Stopped) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            for part in archive.infolist():
                if not _is_whole(archive, part, stopped):
                    return f"its part {part.filename} is damaged"
    except (zipfile.BadZipFile, EOFError, NotImplementedError):
        return "it is not a complete zip archive"
    return ""


def _damage_in_torch_file(path: Path, stopped: Stopped) -> str:
    """Check a zip archive; the format before torch 1.6 is a pickle, of which nothing is known."""
    with path.open("rb") as reader:
        is_zip = reader.read(4) == b"PK\x03\x04"
    return _damage_in_zip(path, stopped) if is_zip else ""


def _is_whole(archive: zipfile.ZipFile, part: zipfile.ZipInfo, stopped: Stopped) -> bool:
    """Return whether a part's checksum is right, which `zipfile` checks at the part's end."""
    try:
        with archive.open(part) as reader:
            while reader.read(CHUNK):
                raise_if_cancelled(stopped)
    except (zipfile.BadZipFile, zlib.error):
        return False
    return True


def _damage_in_hdf5(path: Path, stopped: Stopped) -> str:
    """Check a file's size against the superblock (HDF5 file format, section II.A)."""
    with path.open("rb") as reader:
        head = reader.read(64)
        if len(head) < 64 or not head.startswith(_HDF5_SIGNATURE):
            return "" if _has_user_block(reader) else "it is not an HDF5 file"
    version = head[8]
    at, size_of_offsets = (40, head[13]) if version < 2 else (28, head[9])
    at += 4 if version == 1 else 0
    if size_of_offsets != 8:
        return ""
    end = int.from_bytes(head[at : at + 8], "little")
    return "" if end <= path.stat().st_size else "it is truncated"


def _has_user_block(reader: BinaryIO) -> bool:
    for place in _HDF5_PLACES:
        reader.seek(place)
        if reader.read(len(_HDF5_SIGNATURE)) == _HDF5_SIGNATURE:
            return True
    return False


def _damage_in_json(path: Path) -> str:
    try:
        foreign_json.parse_json(path.read_bytes())
    except ValueError:
        return "it is not valid JSON"
    return ""


def _damage_in_records(path: Path, stopped: Stopped) -> str:
    """Check the framing of a TFRecord file: each record's length, and the length's checksum.

    A record is its length (8 bytes) with a masked CRC-32C, the data, and theirs
    (tsl/lib/io/record_writer.h). The checksums of the data would take a second per 10 MB here.
    """
    size, at = path.stat().st_size, 0
    with path.open("rb") as reader:
        while at < size:
            raise_if_cancelled(stopped)
            reader.seek(at)
            head = reader.read(_RECORD_HEAD.size)
            if len(head) < _RECORD_HEAD.size:
                return f"its last record, at byte {at}, is truncated"
            length, checksum = _RECORD_HEAD.unpack(head)
            if masked_crc32c(head[:8]) != checksum:
                is_compressed = at == 0 and head.startswith(_COMPRESSED)
                return "" if is_compressed else f"the record at byte {at} is damaged"
            at += _RECORD_HEAD.size + length + _CRC_OF_DATA
    return "" if at == size else "its last record is truncated"


@functools.cache
def _crc32c_table() -> tuple[int, ...]:
    """Return the table of Castagnoli's polynomial, reversed (RFC 3720, appendix B.4)."""

    def entry(number: int) -> int:
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        return number

    return tuple(map(entry, range(256)))


def masked_crc32c(data: bytes) -> int:
    """Return the checksum in TensorFlow's files of records (tsl/lib/hash/crc32c.h)."""
    table, crc = _crc32c_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


_CHECKPOINTS: dict[str, Callable[[Path, Stopped], str]] = {
    ".keras": _damage_in_zip,
    ".h5": _damage_in_hdf5,
    ".hdf5": _damage_in_hdf5,
    ".pt": _damage_in_torch_file,
    ".pth": _damage_in_torch_file,
}
