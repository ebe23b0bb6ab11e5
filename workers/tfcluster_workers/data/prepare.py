"""Prepares a data set once per node, before the gang starts; a second call finds it ready.

    python -m tfcluster_workers.data.prepare --dataset synthetic_digits [--data-dir DIR]

DIR is $TFDS_DATA_DIR, else TFDS's own default.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from tfcluster_workers.data.errors import DataError, UnavailableDatasetError, UnknownDatasetError

__all__ = ["UnavailableDatasetError", "UnknownDatasetError", "builder", "data_dir", "prepare"]


def data_dir(asked: str | None = None) -> Path:
    """Where data sets live: `asked`, else $TFDS_DATA_DIR, else TFDS's default."""
    chosen = asked or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return Path(chosen).expanduser()


def builder(name: str, folder: Path) -> Any:
    """The TFDS builder of `name`. Raises UnknownDatasetError."""
    import tensorflow_datasets as tfds

    from tfcluster_workers.data import synthetic_digits  # noqa: F401 (registers itself)

    try:
        return tfds.builder(name, data_dir=os.fspath(folder))
    except tfds.core.registered.DatasetNotFoundError:
        known = tfds.list_builders(with_community_datasets=False)  # those would need the network
        raise UnknownDatasetError(name, known) from None


def prepare(name: str, folder: Path) -> tuple[Any, float]:
    """Make sure `name` is in `folder`; its builder, and the seconds it took (0 if it was there).

    Tasks that come here together wait for the first. Raises UnknownDatasetError and
    UnavailableDatasetError.
    """
    found = builder(name, folder)
    if is_prepared(found):
        return found, 0.0
    started = time.monotonic()
    with _alone(folder, name):
        found = builder(name, folder)
        if not is_prepared(found):
            _fetch(found, name, folder)
    return found, time.monotonic() - started


def is_prepared(found: Any) -> bool:
    """Whether all of the data set is on this disk."""
    return bool(found.info.splits) and Path(found.data_path).is_dir()


def _fetch(found: Any, name: str, folder: Path) -> None:
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    try:
        _require_network(found)
        found.download_and_prepare()
    except Exception as error:
        raise UnavailableDatasetError(name, folder, error) from error


def _require_network(found: Any) -> None:
    """Fail at once where none of the hosts can be resolved: TFDS would retry for minutes."""
    hosts = {urlsplit(url).hostname for url in found.url_infos or ()}
    if not hosts or getproxies():
        return
    failure: OSError | None = None
    for host in hosts:
        try:
            socket.getaddrinfo(host, 443)
        except OSError as error:
            failure = error
        else:
            return
    if failure is not None:
        raise failure


@contextmanager
def _alone(folder: Path, name: str) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f".prepare-{name.replace('/', '-')}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepare what the command line names and say what was done."""
    parser = argparse.ArgumentParser(description="Prepare a TFDS data set on this node.")
    parser.add_argument("--dataset", default="synthetic_digits", metavar="NAME")
    parser.add_argument("--data-dir", metavar="DIR", help="default: $TFDS_DATA_DIR")
    # A job's own arguments may follow: the launcher hands the same list to both.
    options, _ = parser.parse_known_args(arguments)
    folder = data_dir(options.data_dir)
    try:
        found, seconds = prepare(options.dataset, folder)
    except DataError as error:
        sys.exit(f"prepare: {error}")
    done = f"prepared in {seconds:.1f} s" if seconds else "already there"
    sizes = ", ".join(f"{name} {split.num_examples}" for name, split in found.info.splits.items())
    print(f"{options.dataset} {done}: {found.data_path} ({sizes})", flush=True)


if __name__ == "__main__":
    main()
