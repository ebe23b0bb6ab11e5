"""A file that is not whole is recognised by its own format, for checkpoints and for outputs."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tfcluster.checkpoints.copying import CancelledError
from tfcluster.checkpoints.damage import find_damage, find_output_damage

from .files import write_hdf5, write_keras


@pytest.fixture
def records() -> bytes:
    """Return a file of TFRecordWriter: an empty record, and `one`."""
    empty = bytes.fromhex("000000000000000029039807d8ea82a2")
    return empty + bytes.fromhex("0300000000000000b099490e") + b"one" + bytes.fromhex("01405508")


COMPRESSED = {
    "zlib": "789c636680800d333df9f2f352191d42390019e30384",
    "gzip": "1f8b0800000000000003636680800d333df9f2f352191d4239009554336313000000",
}
"""Files of TFRecordWriter with `TFRecordOptions(compression_type=…)`."""


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecords", "mnist.tfrecord-00000-of-00002"])
def test_a_tfrecord_file_is_whole_up_to_its_last_record(
    tmp_path: Path, records: bytes, name: str
) -> None:
    path = tmp_path / name
    expected = {
        records: "",
        b"": "",
        records[:-1]: "its last record is truncated",
        records[:20]: "its last record, at byte 16, is truncated",
        records[:16] + b"\x04" + records[17:]: "the record at byte 16 is damaged",
        records + b"\0" * 12: "the record at byte 35 is damaged",
    }
    for content, damage in expected.items():
        path.write_bytes(content)
        assert find_output_damage(path) == damage


@pytest.mark.parametrize("kind", list(COMPRESSED))
def test_a_compressed_tfrecord_file_says_nothing(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a.tfrecord").write_bytes(bytes.fromhex(COMPRESSED[kind]))
    assert find_output_damage(tmp_path / "a.tfrecord") == ""


@pytest.mark.parametrize("name", ["model.keras", "model.pt", "arrays.npz", "plots.zip"])
def test_a_zip_is_whole_with_the_checksums_of_its_parts(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_keras(path)
    assert find_output_damage(path) == ""
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert find_output_damage(path) == "it is not a complete zip archive"
    part = zipfile.ZipFile(tmp_path / "other.zip", "w")
    part.writestr("weights", b"12345")
    part.close()
    path.write_bytes((tmp_path / "other.zip").read_bytes().replace(b"12345", b"12X45"))
    assert find_output_damage(path) == "its part weights is damaged"


def test_an_hdf5_file_is_whole_or_begins_with_a_block_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    write_hdf5(path)
    assert find_output_damage(path) == ""
    whole = path.read_bytes()
    path.write_bytes(b"notes".ljust(512, b"\0") + whole)
    assert find_output_damage(path) == ""
    path.write_bytes(whole[:-1])
    assert find_output_damage(path) == "it is truncated"
    path.write_bytes(b"")
    assert find_output_damage(path) == "it is not an HDF5 file"


def test_an_index_is_that_of_a_checkpoint_only_beside_its_data(tmp_path: Path) -> None:
    path = tmp_path / "vectors.index"
    path.write_bytes(b"of another library")
    assert find_output_damage(path) == ""
    (tmp_path / "vectors.data-00000-of-00001").touch()
    assert find_output_damage(path) == find_damage(path) == "its index is truncated"


def test_other_files_say_nothing(tmp_path: Path) -> None:
    for name in ("table.csv", "records.tfrecord.md5", "weights"):
        (tmp_path / name).write_text("x")
        assert find_output_damage(tmp_path / name) == ""


@pytest.mark.parametrize("name", ["arrays.npz", "a.tfrecord"])
def test_a_check_of_a_large_file_can_be_cancelled(
    tmp_path: Path, records: bytes, name: str
) -> None:
    path = tmp_path / name
    if name.endswith("npz"):
        write_keras(path)
    else:
        path.write_bytes(records)
    with pytest.raises(CancelledError):
        find_output_damage(path, stopped=lambda: True)
