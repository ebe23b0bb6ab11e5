"""What can be wrong with the data: one family, so that a job tells any of it in one line.

DataError
├── UnknownDatasetError       TFDS has no data set of this name
├── UnavailableDatasetError   it cannot be fetched or written here
├── TooFewExamplesError       not even one global batch
└── TooFewFilesError          FILE sharding, and fewer files than workers
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from tfcluster_workers.errors import JobError


class DataError(JobError):
    """Something about the data that the user can mend."""


class UnknownDatasetError(DataError):
    """TFDS has no data set of this name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.0)
        super().__init__(f"no data set named {name!r}; nearest: {', '.join(nearest)}")


class UnavailableDatasetError(DataError):
    """The data set cannot be fetched here."""

    def __init__(self, name: str, folder: Path, cause: BaseException) -> None:
        super().__init__(
            f"{name} is not in {folder} and could not be fetched "
            f"({type(cause).__name__}: {str(cause)[:200]}); "
            "copy it there, or use --dataset synthetic_digits, which needs no network"
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
