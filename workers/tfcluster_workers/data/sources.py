"""What TensorFlow Datasets knows about a data set: its builder, and the files it still needs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tfcluster_workers.data.errors import (
    DamagedDatasetError,
    DataError,
    UnavailableDatasetError,
    UnknownDatasetError,
)


def builder(name: str, folder: Path) -> Any:
    """The TFDS builder of `name`. Raises DataError."""
    tfds = library()

    from tfcluster_workers.data import synthetic_digits  # noqa: F401 (registers itself)

    try:
        return tfds.builder(name, data_dir=os.fspath(folder))
    except tfds.core.registered.DatasetNotFoundError:
        raise UnknownDatasetError(name, known(tfds)) from None
    except (ValueError, AssertionError, ImportError, OSError) as error:
        raise _told(name, folder, error) from error
    except Exception as error:
        # A file of the prepared folder that cannot be read: the protobuf's own error.
        if type(error).__name__ != "ParseError":
            raise
        raise DamagedDatasetError(
            name, folder / name.partition(":")[0], "dataset_info.json cannot be read"
        ) from error


def _told(name: str, folder: Path, error: Exception) -> DataError:
    """A name that cannot be read, a version or a configuration that does not exist."""
    said = " ".join(str(error).rpartition("'}\": ")[2].split())
    if isinstance(error, ValueError) and said.startswith("Parsing builder name"):
        return UnknownDatasetError(name, known(library()))
    if isinstance(error, (ValueError, AssertionError)):
        return UnknownDatasetError(name, reason=said.partition(" Here are")[0][:200])
    return UnavailableDatasetError(name, folder, f"{type(error).__name__}: {said[:200]}")


def known(tfds: Any) -> list[str]:
    """All names that need no network to be listed."""
    return list(tfds.list_builders(with_community_datasets=False))


def library() -> Any:
    """The module `tensorflow_datasets`. Raises DataError where it is missing or cannot work."""
    fix = f"{sys.executable} -m pip install tensorflow-datasets"
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise DataError(f"TensorFlow Datasets cannot be imported ({error}): {fix}") from error
    if not hasattr(tfds, "builder"):
        # It hides the error of its own import: seen with tensorflow-metadata 1.21 on TF 2.15.
        raise DataError(
            "TensorFlow Datasets is installed beside packages it cannot work with: "
            f"{fix} 'tensorflow-metadata<1.16' for TensorFlow 2.15"
        )
    return tfds


def missing(made: Any, downloads: Path) -> dict[str, str]:
    """URL → file name of each source that is neither downloaded nor put there by hand."""
    from tensorflow_datasets.core.download import resource

    by_hand = [downloads / "manual" / made.name, downloads / "manual"]
    return {
        url: info.filename or url.rpartition("/")[2]
        for url, info in (made.url_infos or {}).items()
        if not any(
            place.exists()
            for place in (
                *(folder / str(info.filename) for folder in by_hand),
                downloads / made.name / resource.get_dl_fname(url, info.checksum),
                downloads / resource.get_dl_fname(url, info.checksum),
            )
        )
    }
