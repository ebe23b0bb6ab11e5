"""What can be wrong with the data: one family, so that a job tells any of it in one line.

DataError
├── UnknownDatasetError       TFDS has no data set of this name
├── UnfitDatasetError         it has, and these are not images with a label
├── UnavailableDatasetError   it cannot be fetched here
├── DamagedDatasetError       its folder is there and is not whole
├── DataFolderError           nothing can be written where it belongs
├── TooFewExamplesError       not even one global batch
└── TooFewFilesError          FILE sharding, and fewer files than workers
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
    """TFDS has no data set of this name."""

    def __init__(self, name: str, known: Sequence[str] = (), *, reason: str = "") -> None:
        nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.0)
        near = f"; nearest: {', '.join(nearest)}" if nearest else ""
        why = f": {reason}" if reason else ""
        super().__init__(f"no data set named {name!r}{why}{near}")


class UnfitDatasetError(DataError):
    """The jobs train on images of one size with one label each."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name} does not fit this job: {what}; mnist, fashion_mnist, cifar10 do")


class UnavailableDatasetError(DataError):
    """The data set cannot be fetched here."""

    def __init__(
        self, name: str, folder: Path, reason: str, *, files: Collection[str] = ()
    ) -> None:
        own = f", or its files ({', '.join(files)}) into {folder}/downloads/manual/{name}"
        super().__init__(
            f"{name} is not in {folder}, and could not be prepared there: {reason}; "
            f"copy {folder}/{name} from a machine that has it{own if files else ''}; {OFFLINE}"
        )


class DamagedDatasetError(DataError):
    """A prepared folder that is not whole: copied in part, or damaged."""

    def __init__(self, name: str, folder: Path, what: str) -> None:
        super().__init__(
            f"{name} in {folder} is damaged: {what}; to prepare it anew: rm -r {folder}"
        )


class DataFolderError(DataError):
    """The folder of the data sets cannot be used."""

    def __init__(self, folder: Path, what: str) -> None:
        super().__init__(
            f"{folder}: {what}; choose another folder with --data-dir or TFDS_DATA_DIR"
        )


class TooFewExamplesError(DataError, ValueError):
    """Not even one global batch."""

    def __init__(self) -> None:
        super().__init__("the data set has fewer examples than one global batch")


class TooFewFilesError(DataError):
    """FILE sharding gives each worker whole files, and there are not enough of them."""

    def __init__(self, name: str, files: int, workers: int) -> None:
        super().__init__(
            f"--shard-policy file needs a file for each of the {workers} workers, and {name} has "
            f"{files}; use --shard-policy data, which deals out the examples"
        )
