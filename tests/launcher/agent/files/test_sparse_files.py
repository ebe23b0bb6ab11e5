"""Copies of sparse files have the same content, and their zeros take no disk space."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfcluster.agent.files import blobs
from tfcluster.agent.files.blobs import write_at
from tfcluster.checkpoints.copying import copy_verified
from tfcluster.checkpoints.recognition import Entry
from tfcluster.wire import remote_source

SIZE = 64 << 20
SLICE = 256 << 10


def disk_bytes(path: Path) -> int:
    """Return the bytes that a file takes on the disk."""
    return path.stat().st_blocks * 512


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """Create a file with holes, and some data before and between them."""
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.write(b"head")
        file.truncate(SIZE)
        file.seek(SIZE // 2 + 5)
        file.write(b"middle")
    if disk_bytes(path) > SIZE // 10:
        pytest.skip("this file system knows no holes")
    return path


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha512").hexdigest()


def slices(path: Path) -> list[bytes]:
    content = path.read_bytes()
    return [content[at : at + SLICE] for at in range(0, len(content), SLICE)]


def gathered(source: Path, target: Path) -> None:
    found = source.stat()
    copy_verified(source, target, Entry("a", found.st_size, found.st_mtime_ns))


def fetched_from_a_host(source: Path, target: Path) -> None:
    async def make_copy() -> None:
        async with await remote_source._Writer.open(target, 0, 0, asyncio.to_thread) as writer:
            for data in slices(source):
                await writer.add(data)
            await writer.settle()
            assert writer.digest == digest(source), "the digest of what is read back"

    asyncio.run(make_copy())


def sent_to_a_host(source: Path, target: Path) -> None:
    blob = blobs.Blob(str(target.parent), digest(source), SIZE)
    for number, data in enumerate(slices(source)):
        blob.add(number * SLICE, data)
    blob.finish()
    cached = str(target.parent / digest(source))
    assert disk_bytes(Path(cached)) < SIZE // 10
    blobs.copy(cached, digest(source), str(target), 0o600)


@pytest.mark.parametrize("make_copy", [gathered, fetched_from_a_host, sent_to_a_host])
def test_a_copy_of_a_sparse_file_is_sparse(
    sparse: Path, tmp_path: Path, make_copy: Callable[[Path, Path], None]
) -> None:
    target = tmp_path / "copy"
    make_copy(sparse, target)
    assert digest(target) == digest(sparse)
    assert target.stat().st_size == SIZE
    assert disk_bytes(target) < SIZE // 10


PIECES = st.lists(
    st.tuples(st.sampled_from([b"\0", b"x"]), st.integers(1, 200_000)), min_size=1, max_size=6
)


@given(pieces=PIECES, cut=st.integers(1, 300_000))
def test_any_written_bytes_are_read_back(
    pieces: list[tuple[bytes, int]], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = b"".join(byte * count for byte, count in pieces)
    path = tmp_path_factory.getbasetemp() / "written"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        for at in range(0, len(content), cut):
            write_at(fd, content[at : at + cut], at)
            assert os.fstat(fd).st_size == min(at + cut, len(content))
        assert os.pread(fd, len(content) + 1, 0) == content
    finally:
        os.close(fd)
