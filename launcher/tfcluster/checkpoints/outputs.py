"""Files that scripts write into their working directory: gather those that `checkpoints.outputs`
names, and report other new ones.

Scripts that do not use TFCLUSTER_CHECKPOINT_DIR write there. The named files are copied to the
run folder, also after a failure; for other new files the user is shown the option to gather them.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tfcluster.agent.error_text import describe_error
from tfcluster.checkpoints.copying import LocalSource, Source, SourceChangedError, Stopped, never
from tfcluster.checkpoints.damage import find_output_damage
from tfcluster.checkpoints.recognition import Entry
from tfcluster.errors import join_first

_IGNORED_NAMES = re.compile(
    r"\..*|__pycache__|node_modules|workertemp_.*|.*\.(pyc|tmp|swp)|core", re.DOTALL
)
_TEMPORARY = re.compile(r"(^|/)workertemp_[^/]*/")
"""Paths in folders of a save in progress, which a killed task leaves behind."""
_MOST_FILES = 20_000
"""A working directory with more files holds a data set; searching it for new files is too slow."""
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Outputs:
    """The files to copy, or copied (relative paths), and notes for the user."""

    files: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkdirBefore:
    """The files of a working directory before the run."""

    workdir: Path
    paths: frozenset[str] | None
    """The relative paths; None if there are too many."""
    ignored: frozenset[str] = frozenset()
    """Folders that are ignored if they are in the working directory: the home of all runs, the
    storage of checkpoints."""


def list_before(workdir: Path, *, ignored: Iterable[Path] = ()) -> WorkdirBefore:
    """Return the files of the working directory before the first task starts, except `ignored`."""
    folders = frozenset(map(str, ignored))
    paths = _visible_files(workdir, folders)
    return WorkdirBefore(workdir, None if paths is None else frozenset(paths), folders)


def describe_new_files(before: WorkdirBefore, *, gathered: Iterable[str] = ()) -> str:
    """Return a sentence about new files and the option that gathers them, or ""."""
    files = None if before.paths is None else _visible_files(before.workdir, before.ignored)
    if files is None or before.paths is None:
        return ""
    new = _named_by_folder(set(files) - before.paths - set(gathered), before.paths)
    if not new:
        return ""
    named = new[:_MOST_NAMED]
    globs = json.dumps([f"{name}**" if name.endswith("/") else name for name in named])
    shown = join_first(new, _MOST_NAMED)
    option = shlex.quote(f"checkpoints.outputs={globs}")
    return f"New files in the working directory: {shown}. To gather them: --set {option}"


def gather_outputs(
    workdir: Path | Source, globs: Sequence[str], destination: Path, *, stopped: Stopped = never
) -> Outputs:
    """Copy the files that `globs` match in a working directory to the same paths elsewhere.

    Links are not followed. Raises CancelledError, and OSError for the destination's disk.
    """
    if isinstance(workdir, Path):  # which may hold a data set as well
        parts = [pattern.rstrip("/").split("/") for pattern in globs]
        source: Source = LocalSource(
            workdir,
            most=None,
            enters=lambda folder: any(_may_match_below(folder, each) for each in parts),
        )
    else:
        source = workdir
    entries = {entry.path: entry for entry in source.scan(stopped=stopped)}
    matched = matching(entries.values(), globs)
    copied, notes = list[str](), list(matched.notes)
    for path in matched.files:
        try:
            source.copy(entries[path], destination / path, stopped=stopped)
            copied.append(path)
        except SourceChangedError as error:
            notes.append(f"checkpoints.outputs: {path} was not copied: {describe_error(error)}")
    return Outputs(tuple(copied), tuple(notes))


def describe_damage(
    destination: Path, copied: Iterable[str], *, stopped: Stopped = never
) -> tuple[str, ...]:
    """Return a sentence for each copied file that is not whole, of those that say so.

    The task that wrote it may have been killed meanwhile, or another task wrote it, too. Raises
    CancelledError and OSError.
    """
    damages = ((path, find_output_damage(destination / path, stopped=stopped)) for path in copied)
    return tuple(
        f"checkpoints.outputs: {path} was copied, but is damaged: {damage}"
        for path, damage in damages
        if damage
    )


def matching(entries: Iterable[Entry], globs: Sequence[str]) -> Outputs:
    """Return the files of a listing that `globs` match; a folder means everything in it."""
    files, notes, known, unreadable = set[str](), list[str](), list[str](), list[str]()
    for entry in entries:
        if not entry.path.endswith("/"):
            if not _TEMPORARY.search(entry.path):
                known.append(entry.path)
        elif entry.is_unreadable:
            unreadable.append(entry.path.rstrip("/"))
    for pattern in globs:
        parts = pattern.rstrip("/").split("/")
        matched = [path for path in known if _matches(path.split("/"), parts)]
        if not matched:
            notes.append(f"checkpoints.outputs: nothing matches {pattern}")
        files.update(matched)
        notes += (
            f"checkpoints.outputs: {path} cannot be read: nothing in it was copied"
            for path in unreadable
            if _may_match_below(path, parts)
        )
    return Outputs(tuple(sorted(files)), tuple(dict.fromkeys(notes)))


def _may_match_below(folder: str, pattern: Sequence[str]) -> bool:
    """Return whether a pattern, by its parts, may match something in a folder."""
    for name, part in zip(folder.split("/"), pattern, strict=False):
        if part == "**":
            return True
        if not fnmatch.fnmatchcase(name, part):
            return False
    return True


def _matches(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether a pattern matches a file or a folder above it, each given by its parts.

    ``**`` is any number of folders, as in `Path.glob`, and ``*`` one name.
    """
    if not pattern or not path:
        return not pattern
    if pattern[0] == "**":
        return any(_matches(path[n:], pattern[1:]) for n in range(len(path)))
    return fnmatch.fnmatchcase(path[0], pattern[0]) and _matches(path[1:], pattern[1:])


def _visible_files(workdir: Path, ignored: Collection[str]) -> list[str] | None:
    """Return files that may be results, or None if there are too many.

    Hidden files and those behind a link to a folder are left out. A start waits for this, so it
    reads no more than names.
    """
    files: list[str] = []
    folders = [""]
    while folders and len(files) <= _MOST_FILES:
        inside = folders.pop()
        listed = _entries(f"{workdir}/{inside}")
        entries = [entry for entry in listed if not _IGNORED_NAMES.fullmatch(entry.name)]
        if inside and any(entry.name == "pyvenv.cfg" for entry in entries):
            continue  # a virtual environment
        for entry in entries:
            if not _leads_to_a_folder(entry):
                files.append(inside + entry.name)
            elif not entry.is_symlink() and entry.path not in ignored:
                folders.append(f"{inside}{entry.name}/")
    return None if len(files) > _MOST_FILES else files


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder; none if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _leads_to_a_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _named_by_folder(new: set[str], before: frozenset[str]) -> list[str]:
    """Return the new paths; a new folder is named once, as ``outputs/``."""
    old_folders = {str(parent) for path in before for parent in PurePosixPath(path).parents}
    named = set()
    for path in new:
        new_folders = [p for p in PurePosixPath(path).parents if str(p) not in (*old_folders, ".")]
        named.add(f"{new_folders[-1]}/" if new_folders else path)
    return sorted(named)
