"""Asks TensorFlow Datasets (TFDS) for a data set's builder and for the files it still needs."""

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
    """Return the TFDS builder of `name`. Raises DataError."""
    tfds = library()

    from tfcluster_workers.data import synthetic_digits  # noqa: F401 (registers itself)

    try:
        return tfds.builder(name, data_dir=os.fspath(folder))
    except tfds.core.registered.DatasetNotFoundError:
        raise UnknownDatasetError(name, known(tfds)) from None
    except (ValueError, AssertionError, ImportError, OSError) as error:
        raise _builder_error(name, folder, error) from error
    except Exception as error:
        # protobuf's own error for a file of the prepared folder that cannot be read
        if type(error).__name__ != "ParseError":
            raise
        raise DamagedDatasetError(
            name, folder / name.partition(":")[0], "dataset_info.json cannot be read"
        ) from error


def _builder_error(name: str, folder: Path, error: Exception) -> DataError:
    """Return the DataError for a malformed name, or an unknown version or configuration."""
    message = " ".join(str(error).rpartition("'}\": ")[2].split())
    if isinstance(error, ValueError) and message.startswith("Parsing builder name"):
        return UnknownDatasetError(name, known(library()))
    if isinstance(error, (ValueError, AssertionError)):
        return UnknownDatasetError(name, reason=message.partition(" Here are")[0][:200])
    return UnavailableDatasetError(name, folder, f"{type(error).__name__}: {message[:200]}")


def known(tfds: Any) -> list[str]:
    """Return all names that TFDS lists without a network."""
    return list(tfds.list_builders(with_community_datasets=False))


def library() -> Any:
    """Return the module `tensorflow_datasets`. Raises DataError if it cannot be used."""
    fix = f"{sys.executable} -m pip install tensorflow-datasets"
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise DataError(f"TensorFlow Datasets cannot be imported ({error}): {fix}") from error
    if not hasattr(tfds, "builder"):
        # TFDS hides the error of its own import: seen with tensorflow-metadata 1.21 on TF 2.15.
        raise DataError(
            "TensorFlow Datasets does not work with other installed packages; for TensorFlow 2.15: "
            f"{fix} 'tensorflow-metadata<1.16'"
        )
    return tfds


def missing(builder: Any, downloads: Path) -> dict[str, str]:
    """Return URL → file name of each source that is neither downloaded nor copied there by hand."""
    from tensorflow_datasets.core.download import resource

    manual_dirs = [downloads / "manual" / builder.name, downloads / "manual"]
    return {
        url: info.filename or url.rpartition("/")[2]
        for url, info in (builder.url_infos or {}).items()
        if not any(
            place.exists()
            for place in (
                *(folder / str(info.filename) for folder in manual_dirs),
                downloads / builder.name / resource.get_dl_fname(url, info.checksum),
                downloads / resource.get_dl_fname(url, info.checksum),
            )
        )
    }
