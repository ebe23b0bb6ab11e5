"""Finds the checkpoints that earlier runs have gathered, for jobs that use them.

A run is named as on tfcluster's command line: by its id, the last four characters of it, or its
name (the latest run of that name). A path works too: of a run folder, of any folder with
TensorFlow's `checkpoint` file, or of one checkpoint. Run folders are on the machine where the
`tfcluster` command ran.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfcluster_workers.errors import JobError

_RUN_ID = re.compile(r"(?P<name>.+)-(?P<started>\d{8}-\d{6})-(?P<suffix>\w{4})")
_PATH = re.compile(r'^all_model_checkpoint_paths: "(?P<path>.*)"$', re.MULTILINE)


class UnknownRunError(JobError):
    """A name that no run has."""

    def __init__(self, name: str, folder: Path, known: Sequence[str]) -> None:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        suggestion = f"; did you mean {' or '.join(near)}?" if near else ""
        super().__init__(
            f"no run named {name!r} in {folder}{suggestion} (`tfcluster ps -a` lists all runs; "
            "a checkpoint path works too)"
        )


class NoCheckpointError(JobError):
    """A run or folder without checkpoints of tf.train.Checkpoint."""

    def __init__(self, folder: Path, files: Sequence[str]) -> None:
        content = f"it holds {', '.join(files[:5])}" if files else "it is empty or does not exist"
        super().__init__(f"no checkpoint of tf.train.Checkpoint in {folder}: {content}")


def tfcluster_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return tfcluster's own folder; `runs` in it holds the run folders."""
    if chosen := environ.get("TFCLUSTER_HOME"):
        return Path(chosen).expanduser().absolute()
    return Path(environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "tfcluster"


def checkpoints(name: str) -> list[str]:
    """Return the prefixes of all existing checkpoints of the run or path `name`, oldest first.

    Raises UnknownRunError and NoCheckpointError.
    """
    folder = _folder(name)
    if Path(f"{folder}.index").is_file():
        return [str(folder)]
    if (folder / "state.json").is_file():  # a run's folder
        folder = folder / "checkpoints"
    if found := [prefix for prefix in _listed(folder) if os.path.isfile(f"{prefix}.index")]:
        return found
    files = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    raise NoCheckpointError(folder, files)


def _folder(name: str) -> Path:
    """Return the folder or the checkpoint prefix that `name` stands for."""
    path = Path(name).expanduser().absolute()
    if os.sep in name or name.startswith((".", "~")):
        if path.exists() or Path(f"{path}.index").is_file():
            return path
        raise JobError(f"{path} does not exist")
    runs = _runs()
    for part in ("id", "suffix", "name"):
        if matching := [run for run in runs if _id_part(run, part) == name]:
            return tfcluster_home() / "runs" / matching[-1]
    if path.exists():
        return path
    names = (_id_part(run, "name") for run in runs)
    raise UnknownRunError(name, tfcluster_home() / "runs", sorted({*runs, *names}))


def _runs() -> list[str]:
    """Return the ids of all runs in the order in which they were started."""
    folder = tfcluster_home() / "runs"
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(filter(_RUN_ID.fullmatch, names), key=lambda run: _id_part(run, "started"))


def _id_part(run: str, part: str) -> str:
    match = _RUN_ID.fullmatch(run)
    return run if part == "id" or match is None else match[part]


def _listed(folder: Path) -> list[str]:
    """Return the prefixes in TensorFlow's `checkpoint` file, without importing TensorFlow."""
    try:
        text = (folder / "checkpoint").read_text()
    except OSError:
        return []
    return [os.path.join(folder, path) for path in _PATH.findall(text)]
