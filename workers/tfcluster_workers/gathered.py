"""Finds the checkpoints that runs have gathered, for jobs that begin where others ended.

A run is named as on tfcluster's own command line (its id, the last four characters, its name: the
latest of that name), or by a path: of a run's folder, of any folder with TensorFlow's `checkpoint`
file, of one checkpoint. Run folders are on the machine where `tfcluster` was typed.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfcluster_workers.errors import JobError

_RUN_ID = re.compile(r"(?P<name>.+)-(?P<when>\d{8}-\d{6})-(?P<mark>\w{4})")
_PATH = re.compile(r'^all_model_checkpoint_paths: "(?P<path>.*)"$', re.MULTILINE)


class UnknownRunError(JobError):
    """No run of this name."""

    def __init__(self, asked: str, home: Path, known: Sequence[str]) -> None:
        near = difflib.get_close_matches(asked, known, n=3, cutoff=0.4)
        also = f"; did you mean {' or '.join(near)}?" if near else ""
        super().__init__(
            f"no run is known as {asked!r} in {home / 'runs'}{also} (`tfcluster ps -a` lists all; "
            "a path of checkpoints can be named, too)"
        )


class NoCheckpointError(JobError):
    """There is nothing to load."""

    def __init__(self, folder: Path, held: Sequence[str]) -> None:
        what = f"it holds {', '.join(held[:5])}" if held else "it is empty or not there"
        super().__init__(f"no checkpoint of tf.train.Checkpoint in {folder}: {what}")


def home(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder that tfcluster keeps its runs in."""
    if chosen := environ.get("TFCLUSTER_HOME"):
        return Path(chosen).expanduser().absolute()
    return Path(environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "tfcluster"


def checkpoints(asked: str) -> list[str]:
    """The prefixes of all checkpoints that `asked` means and that are there, oldest first.

    Raises UnknownRunError and NoCheckpointError.
    """
    folder = _folder(asked)
    if Path(f"{folder}.index").is_file():
        return [str(folder)]
    if (folder / "state.json").is_file():  # a run's folder
        folder = folder / "checkpoints"
    if found := [prefix for prefix in _listed(folder) if os.path.isfile(f"{prefix}.index")]:
        return found
    held = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    raise NoCheckpointError(folder, held)


def _folder(asked: str) -> Path:
    """The folder, or the prefix, that `asked` means."""
    path = Path(asked).expanduser().absolute()
    if os.sep in asked or asked.startswith((".", "~")):
        if path.exists() or Path(f"{path}.index").is_file():
            return path
        raise JobError(f"there is no {path}")
    runs = _runs()
    for part in ("id", "mark", "name"):
        if fitting := [run for run in runs if _part(run, part) == asked]:
            return home() / "runs" / fitting[-1]
    if path.exists():
        return path
    raise UnknownRunError(asked, home(), sorted({*runs, *(_part(run, "name") for run in runs)}))


def _runs() -> list[str]:
    """The ids of all runs, by the time they were started."""
    folder = home() / "runs"
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(filter(_RUN_ID.fullmatch, names), key=lambda run: _part(run, "when"))


def _part(run: str, part: str) -> str:
    found = _RUN_ID.fullmatch(run)
    return run if part == "id" or found is None else found[part]


def _listed(folder: Path) -> list[str]:
    """What TensorFlow's own `checkpoint` file names, without importing TensorFlow."""
    try:
        text = (folder / "checkpoint").read_text()
    except OSError:
        return []
    return [os.path.join(folder, path) for path in _PATH.findall(text)]
