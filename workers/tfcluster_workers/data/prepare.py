"""Prepares a data set once per node, before the gang starts; a second call finds it ready.

    python -m tfcluster_workers.data.prepare --dataset synthetic_digits [--data-dir DIR]

DIR is $TFDS_DATA_DIR, else TFDS's own default. Whole or not at all: a data set is made in a folder
of its own and moved to its place when it is done.
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


def data_dir(asked: str | None = None) -> Path:
    """Where data sets live: `asked`, else $TFDS_DATA_DIR, else TFDS's default."""
    chosen = asked or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    if "://" in chosen:
        raise DataFolderError(Path(chosen), "data sets are prepared in a folder of this node")
    return Path(chosen).expanduser()


def prepare(name: str, folder: Path) -> tuple[Any, float]:
    """Make sure `name` is in `folder`; its builder, and the seconds it took (0 if it was there).

    Tasks that come here together wait for the first. Raises DataError.
    """
    found = sources.builder(name, folder)
    if is_prepared(found):
        return found, 0.0
    started = time.monotonic()
    with _alone(folder, name):
        if not is_prepared(sources.builder(name, folder)):
            _make(name, folder)
    return sources.builder(name, folder), time.monotonic() - started


def is_prepared(found: Any) -> bool:
    """Whether all of the data set is on this disk. Raises DamagedDatasetError for a part of it."""
    place = Path(found.data_path)
    if not place.is_dir():
        return False
    if not found.info.splits:
        raise DamagedDatasetError(found.name, place, "dataset_info.json is missing")
    for split in found.info.splits.values():
        sizes = {path: _size(Path(path)) for path in split.filepaths}
        missing = [Path(path).name for path, size in sizes.items() if size is None]
        if missing:
            raise DamagedDatasetError(found.name, place, f"{missing[0]} is missing")
        needed = split.num_bytes + RECORD_FRAME * split.num_examples
        if str(split.filename_template.filetype_suffix) == "tfrecord" and needed > sum(
            size or 0 for size in sizes.values()
        ):
            raise DamagedDatasetError(found.name, place, f"the files of {split.name} are cut off")
    return True


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _make(name: str, folder: Path) -> None:
    """Prepare `name` in a folder beside its place, and move it there in one step."""
    # Another node may share this disk without sharing locks: the folder is of this node.
    staging = folder / f".preparing-{_plain(name)}-{socket.gethostname()}"
    shutil.rmtree(staging, ignore_errors=True)  # of one that was killed
    try:
        made = sources.builder(name, staging)
        _fetch(made, name, folder)
        _move(Path(made.data_path), folder / Path(made.data_path).relative_to(staging))
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _move(made: Path, place: Path) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        os.rename(made, place)
    except OSError as error:
        if not place.is_dir():  # else: another node was faster
            raise _unwritable(place, error) from error


def _unwritable(folder: Path, error: OSError) -> DataFolderError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    what = "no space left" if full else f"cannot be written ({error.strerror})"
    return DataFolderError(folder, what)


def _fetch(made: Any, name: str, folder: Path) -> None:
    import tensorflow  # noqa: F401 (TFDS would import it in several threads at once)
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    downloads = folder / "downloads"
    missing = sources.missing(made, downloads)
    own = downloads / "manual" / made.name
    config = tfds.download.DownloadConfig(
        manual_dir=own if own.is_dir() else None,
        # mnist and fashion_mnist name their files alike: TFDS would take what it has extracted of
        # one for the other.
        extract_dir=downloads / "extracted" / made.name,
    )
    try:
        network.require(missing)
        size = sum(int(made.url_infos[url].size) for url in missing) / 2**20
        fetching = f", {size:.0f} MiB to fetch" if missing else ""
        print(f"preparing {name} in {folder}{fetching}", flush=True)
        # TFDS would name the folder that is moved afterwards.
        with network.impatient(), redirect_stdout(io.StringIO()):
            made.download_and_prepare(download_dir=downloads, download_config=config)
    except DataError:
        raise
    except Exception as error:
        if _is_full(error):
            raise DataFolderError(folder, f"no room for {name} ({_free(folder)} free)") from error
        raise UnavailableDatasetError(
            name, folder, _reason(error), files=sorted(missing.values())
        ) from error


def _reason(error: BaseException) -> str:
    if isinstance(error, network.UnreachableError):
        return str(error)
    said = str(error).partition(":\n* Expected")[0]  # of a wrong checksum, the numbers
    return f"{type(error).__name__}: {' '.join(said.split())[:300]}"


def _is_full(error: BaseException) -> bool:
    said = str(error).lower()
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or (
        "no space left" in said or "not enough disk space" in said
    )


def _free(folder: Path) -> str:
    return f"{shutil.disk_usage(folder).free / 2**20:.0f} MiB"


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "_." else "-" for letter in name)


@contextmanager
def _alone(folder: Path, name: str) -> Iterator[None]:
    """Nobody else on this node prepares `name` during the block."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / f".prepare-{_plain(name)}.lock", "w")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise _unwritable(folder, error) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepare what the command line names and say what was done."""
    parser = argparse.ArgumentParser(description="Prepare a TFDS data set on this node.")
    parser.add_argument("--dataset", default="synthetic_digits", metavar="NAME")
    parser.add_argument("--data-dir", metavar="DIR", help="default: $TFDS_DATA_DIR")
    options = parser.parse_args(arguments)
    # Ends as Ctrl-C does, so that what is half done is removed.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        found, seconds = prepare(options.dataset, data_dir(options.data_dir))
    except DataError as error:
        sys.exit(f"prepare: {error}")
    done = f"prepared in {seconds:.1f} s" if seconds else "already there"
    sizes = ", ".join(f"{name} {split.num_examples}" for name, split in found.info.splits.items())
    print(f"{options.dataset} {done}: {found.data_path} ({sizes})", flush=True)


if __name__ == "__main__":
    main()
