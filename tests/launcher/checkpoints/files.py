"""Small fakes of TensorFlow's checkpoint files, with the real names, order and end markers."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tfcluster.checkpoints.recognition import Entry

INDEX_END = struct.pack("<Q", 0xDB4775248B80FB57)
HDF5_HEAD = b"\x89HDF\r\n\x1a\n" + bytes([0, 0, 0, 0, 0, 8, 8, 0]) + bytes(24)


def listing(*rows: str | tuple[str, int] | tuple[str, int, int]) -> tuple[Entry, ...]:
    """Return a listing with one file per row.

    A row is ``"name"``, ``("name", size)`` or ``("name", size, time)``; the default size is 10,
    the default time 1.
    """
    return tuple(Entry(*((row, 10, 1) if isinstance(row, str) else (*row, 1)[:3])) for row in rows)


def prefix(name: str, shards: int = 1) -> tuple[str, ...]:
    """Return the file names of a TensorFlow checkpoint."""
    data = (f"{name}.data-{i:05d}-of-{shards:05d}" for i in range(shards))
    return (*data, f"{name}.index")


def write_prefix(
    folder: Path, name: str, *, content: bytes = b"weights", shards: int = 1, saved: float = 0
) -> None:
    """Write a checkpoint, data before index; `saved` sets the mtime of all its files."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in prefix(name, shards):
        body = content + (INDEX_END if path.endswith(".index") else b"")
        (folder / path).write_bytes(body)
        if saved:
            os.utime(folder / path, (saved, saved))


def latest(folder: Path) -> str | None:
    """Return the path that `tf.train.latest_checkpoint` would read."""
    path = folder / "checkpoint"
    if not path.exists():
        return None
    return path.read_text().splitlines()[0].removeprefix('model_checkpoint_path: "').rstrip('"')


def delete_prefix(folder: Path, name: str, shards: int = 1) -> None:
    for path in reversed(prefix(name, shards)):
        (folder / path).unlink()


def flip_a_bit(path: Path) -> None:
    """Damage a file as a bad disk does: size and time stay."""
    found, data = path.stat(), bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def write_keras(path: Path, content: str = "weights") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.weights.h5", content)


def write_hdf5(path: Path, *, missing: int = 0) -> None:
    """Write a file with HDF5's superblock, truncated by `missing` bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    size = 200
    head = HDF5_HEAD + struct.pack("<Q", size)
    path.write_bytes((head + bytes(size))[: size - missing])


def write_saved_model(folder: Path) -> None:
    write_prefix(folder / "variables", "variables")
    (folder / "saved_model.pb").write_bytes(b"graph")
    (folder / "fingerprint.pb").write_bytes(b"print")


def write_keras_3_backup(folder: Path, number: int) -> Iterator[None]:
    """Write a backup as Keras 3's `BackupAndRestore` does: in place, weights before metadata.

    The function yields after every write, so that a test can check what a reader finds then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights, metadata = folder / "latest.weights.h5", folder / "training_metadata.json"
    whole = HDF5_HEAD + struct.pack("<Q", 200) + number.to_bytes(8, "little") * 100
    states = [(weights, whole[:size]) for size in (0, 500, len(whole))]
    states += [(metadata, b""), (metadata, b'{"epoch": %d, "batch": 0}' % number)]
    for place, (path, content) in enumerate(states):
        path.write_bytes(content)
        os.utime(path, ns=(0, 1000 * number + place))  # file times have a resolution of a few ms
        yield


def read_keras_3_backup(folder: Path) -> tuple[int, int]:
    """Return the numbers with which weights and metadata were written."""
    weights = (folder / "latest.weights.h5").read_bytes()[-8:]
    metadata = json.loads((folder / "training_metadata.json").read_text())
    return int.from_bytes(weights, "little"), metadata["epoch"]
