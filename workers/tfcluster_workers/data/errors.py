"""Errors with the data of a job, as one family, so that a job reports each of them in one line.

DataError
├── UnknownDatasetError       TFDS has no data set of this name
├── UnfitDatasetError         the data set has no images with a label
├── UnavailableDatasetError   the data set cannot be downloaded here
├── DamagedDatasetError       the prepared folder is incomplete or damaged
├── DataFolderError           the folder of the data sets cannot be used
├── TooFewExamplesError       fewer examples than one global batch
└── TooFewFilesError          FILE sharding with fewer files than workers
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from pathlib import Path

from tfcluster_workers.errors import JobError

OFFLINE = "--dataset synthetic_digits needs no network"


class DataError(JobError):
    """A problem with the data that the user can fix."""


class UnknownDatasetError(DataError):
    """A name that TFDS has no data set for."""

    def __init__(self, name: str, known: Sequence[str] = (), *, reason: str = "") -> None:
        nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.0)
        near = f"; nearest: {', '.join(nearest)}" if nearest else ""
        why = f": {reason}" if reason else ""
        super().__init__(f"no data set named {name!r}{why}{near}")


class UnfitDatasetError(DataError):
    """A data set that is not images of one size with one label each, as the jobs need."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"{name} does not work with this job: {reason}; mnist, fashion_mnist and cifar10 do"
        )


class UnavailableDatasetError(DataError):
    """A data set that cannot be downloaded here."""

    def __init__(
        self, name: str, folder: Path, reason: str, *, files: Collection[str] = ()
    ) -> None:
        manual = f", or its files ({', '.join(files)}) into {folder}/downloads/manual/{name}"
        super().__init__(
            f"{name} is not in {folder}, and could not be prepared there: {reason}; "
            f"copy {folder}/{name} from a machine that has it{manual if files else ''}; {OFFLINE}"
        )


class DamagedDatasetError(DataError):
    """A prepared folder that is incomplete or damaged."""

    def __init__(self, name: str, folder: Path, reason: str) -> None:
        super().__init__(
            f"{name} in {folder} is damaged: {reason}; to have it prepared again: rm -r {folder}"
        )


class DataFolderError(DataError):
    """A folder of data sets that cannot be used."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(
            f"{folder}: {reason}; choose another folder with --data-dir or TFDS_DATA_DIR"
        )


class TooFewExamplesError(DataError, ValueError):
    """Fewer examples than one global batch."""

    def __init__(self) -> None:
        super().__init__("the data set has fewer examples than one global batch")


class TooFewFilesError(DataError):
    """FILE sharding with fewer files than workers; it gives each worker whole files."""

    def __init__(self, name: str, files: int, workers: int) -> None:
        super().__init__(
            f"--shard-policy file needs a file for each of the {workers} workers, and {name} has "
            f"{files}; use --shard-policy data, which splits each batch by example"
        )
