"""Prepares a data set once per node, before the tasks start; a second call finds it prepared.

    python -m tfcluster_workers.data.prepare --dataset synthetic_digits [--data-dir DIR]

The default for DIR is $TFDS_DATA_DIR, else TFDS's own default. Preparing is atomic: a data set is
made in a staging folder and moved to its place when it is complete.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import io
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from tfcluster_workers.data import network, sources
from tfcluster_workers.data.errors import (
    DamagedDatasetError,
    DataError,
    DataFolderError,
    UnavailableDatasetError,
)

RECORD_FRAME = 16
"""Bytes that TFRecord adds to each example (two lengths of 8 and two checksums of 4)."""


def data_dir(option: str | None = None) -> Path:
    """Return the folder of the data sets: `option`, else $TFDS_DATA_DIR, else TFDS's default."""
    folder = option or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    if "://" in folder:
        raise DataFolderError(Path(folder), "a URL; data sets need a folder on this node")
    return Path(folder).expanduser()


def prepare(name: str, folder: Path) -> tuple[Any, float]:
    """Prepare `name` in `folder`; return its builder and the seconds it took (0: it was there).

    Concurrent calls on a node wait for the first one. Raises DataError.
    """
    builder = sources.builder(name, folder)
    if is_prepared(builder):
        return builder, 0.0
    started = time.monotonic()
    with _locked(folder, name):
        if not is_prepared(sources.builder(name, folder)):
            _make(name, folder)
    return sources.builder(name, folder), time.monotonic() - started


def is_prepared(builder: Any) -> bool:
    """Return whether the whole data set is on this disk. Raises DamagedDatasetError for a part."""
    place = Path(builder.data_path)
    if not place.is_dir():
        return False
    if not builder.info.splits:
        raise DamagedDatasetError(builder.name, place, "dataset_info.json is missing")
    for split in builder.info.splits.values():
        sizes = {path: _size(Path(path)) for path in split.filepaths}
        missing = [Path(path).name for path, size in sizes.items() if size is None]
        if missing:
            raise DamagedDatasetError(builder.name, place, f"{missing[0]} is missing")
        needed = split.num_bytes + RECORD_FRAME * split.num_examples
        if str(split.filename_template.filetype_suffix) == "tfrecord" and needed > sum(
            size or 0 for size in sizes.values()
        ):
            reason = f"the files of {split.name} are truncated"
            raise DamagedDatasetError(builder.name, place, reason)
    return True


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _make(name: str, folder: Path) -> None:
    """Prepare `name` in a staging folder and move it to its place in one step."""
    # Another node may share this disk without sharing locks: the name holds this node's.
    staging = folder / f".preparing-{_file_name(name)}-{socket.gethostname()}"
    shutil.rmtree(staging, ignore_errors=True)  # left by a killed process
    try:
        builder = sources.builder(name, staging)
        _download(builder, name, folder)
        _move(Path(builder.data_path), folder / Path(builder.data_path).relative_to(staging))
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _move(prepared: Path, place: Path) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        os.rename(prepared, place)
    except OSError as error:
        if not place.is_dir():  # else another node was faster
            raise _unwritable(place, error) from error


def _unwritable(folder: Path, error: OSError) -> DataFolderError:
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)  # the message holds the folder's name
    reason = "no space left" if is_full else f"cannot be written ({error.strerror})"
    return DataFolderError(folder, reason)


def _download(builder: Any, name: str, folder: Path) -> None:
    import tensorflow  # noqa: F401 (TFDS would import it in several threads at once)
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    downloads = folder / "downloads"
    missing = sources.missing(builder, downloads)
    manual_dir = downloads / "manual" / builder.name
    config = tfds.download.DownloadConfig(
        manual_dir=manual_dir if manual_dir.is_dir() else None,
        # mnist and fashion_mnist have files of the same names: TFDS would use the extracted files
        # of one for the other.
        extract_dir=downloads / "extracted" / builder.name,
    )
    try:
        network.require(missing)
        size = sum(int(builder.url_infos[url].size) for url in missing) / 2**20
        to_download = f", {size:.0f} MiB to download" if missing else ""
        print(f"preparing {name} in {folder}{to_download}", flush=True)
        # TFDS would print the staging folder, which is moved afterwards.
        with network.request_timeouts(), redirect_stdout(io.StringIO()):
            builder.download_and_prepare(download_dir=downloads, download_config=config)
    except DataError:
        raise
    except Exception as error:
        if _is_full(error):
            free = f"{shutil.disk_usage(folder).free / 2**20:.0f} MiB"
            reason = f"no space left for {name} ({free} free)"
            raise DataFolderError(folder, reason) from error
        raise UnavailableDatasetError(
            name, folder, _reason(error), files=sorted(missing.values())
        ) from error


def _reason(error: BaseException) -> str:
    if isinstance(error, network.UnreachableError):
        return str(error)
    message = str(error).partition(":\n* Expected")[0]  # without the numbers of a wrong checksum
    return f"{type(error).__name__}: {' '.join(message.split())[:300]}"


def _is_full(error: BaseException) -> bool:
    message = str(error).lower()
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or (
        "no space left" in message or "not enough disk space" in message
    )


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "_." else "-" for letter in name)


@contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    """Hold this node's lock for preparing `name` during the block."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / f".prepare-{_file_name(name)}.lock", "w")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise _unwritable(folder, error) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepare the data set that the command line names and print the result."""
    parser = argparse.ArgumentParser(description="Prepare a TFDS data set on this node.")
    parser.add_argument("--dataset", default="synthetic_digits", metavar="NAME")
    parser.add_argument("--data-dir", metavar="DIR", help="default: $TFDS_DATA_DIR")
    args = parser.parse_args(arguments)
    # SIGTERM ends it as Ctrl-C does, so that incomplete files are removed.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        builder, seconds = prepare(args.dataset, data_dir(args.data_dir))
    except DataError as error:
        sys.exit(f"prepare: {error}")
    result = f"prepared in {seconds:.1f} s" if seconds else "already there"
    splits = builder.info.splits.items()
    sizes = ", ".join(f"{name} {split.num_examples}" for name, split in splits)
    print(f"{args.dataset} {result}: {builder.data_path} ({sizes})", flush=True)


if __name__ == "__main__":
    main()
