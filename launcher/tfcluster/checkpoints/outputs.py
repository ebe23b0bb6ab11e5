"""Files that scripts write into their working directory: gather those that `checkpoints.outputs`
names, and report other new ones.

Scripts that do not use TFCLUSTER_CHECKPOINT_DIR write there. The named files are copied to the
run folder, also after a failure; for other new files the user is shown the option to gather them.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePosixPath

from tfcluster.agent.error_text import describe_error
from tfcluster.checkpoints.completeness import Entry
from tfcluster.checkpoints.copying import (
    SourceChangedError,
    Stopped,
    never,
    raise_if_cancelled,
    replace_verified,
)
from tfcluster.checkpoints.file_formats import find_output_damage
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
    home: Path | None = None
    """The home of all runs, which is ignored if it is in the working directory."""


def list_before(workdir: Path, *, home: Path | None = None) -> WorkdirBefore:
    """Return the files of the working directory before the first task starts, except in `home`."""
    paths = _visible_files(workdir, home)
    return WorkdirBefore(workdir, None if paths is None else frozenset(paths), home)


def describe_new_files(before: WorkdirBefore, *, gathered: Iterable[str] = ()) -> str:
    """Return a sentence about new files and the option that gathers them, or ""."""
    now = None if before.paths is None else _visible_files(before.workdir, before.home)
    if now is None or before.paths is None:
        return ""
    new = _named_by_folder(set(now) - before.paths - set(gathered), before.paths)
    if not new:
        return ""
    named = new[:_MOST_NAMED]
    globs = json.dumps([f"{name}**" if name.endswith("/") else name for name in named])
    shown = join_first(new, _MOST_NAMED)
    option = shlex.quote(f"checkpoints.outputs={globs}")
    return f"New files in the working directory: {shown}. To gather them: --set {option}"


def gather_outputs(
    workdir: Path, globs: Sequence[str], destination: Path, *, stopped: Stopped = never
) -> Outputs:
    """Copy the files that `globs` match below `workdir` to the same paths below `destination`.

    A link is followed only if its target is inside the working directory. Raises CancelledError,
    and OSError for the destination's disk.
    """
    root = workdir.resolve()
    files, unreadable, notes = set[str](), set[str](), list[str]()

    def failed(error: OSError) -> None:
        unreadable.add(Path(error.filename).relative_to(root).as_posix())

    for pattern in globs:
        matches = _matches(root, pattern, stopped)
        if not matches:
            notes.append(f"checkpoints.outputs: nothing matches {pattern}")
        for match in matches:
            if match.resolve().is_relative_to(root):
                files.update(_files_of(root, match, failed, stopped))
            else:
                name = match.relative_to(root)
                notes.append(f"checkpoints.outputs: {name} links out of the working directory")
        if "**" in pattern and matches:  # a glob skips folders it cannot read
            for _ in os.walk(root / _before_wildcards(pattern), onerror=failed):
                raise_if_cancelled(stopped)
    notes += map(_unreadable_note, sorted(unreadable))
    files = {path for path in files if not _TEMPORARY.search(path)}
    copied = [path for path in sorted(files) if _copy(root, path, destination, notes, stopped)]
    return Outputs(tuple(copied), tuple(notes))


def describe_damage(
    destination: Path, copied: Iterable[str], *, stopped: Stopped = never
) -> tuple[str, ...]:
    """Return a sentence for each copied file that is not whole, of those that say so.

    The task that wrote it may have been killed meanwhile, or another task wrote it, too. Raises
    CancelledError and OSError.
    """
    found = ((path, find_output_damage(destination / path, stopped=stopped)) for path in copied)
    return tuple(
        f"checkpoints.outputs: {path} was copied, but is damaged: {damage}"
        for path, damage in found
        if damage
    )


def matching(entries: Iterable[Entry], globs: Sequence[str]) -> Outputs:
    """Return the files of another machine's folder that `globs` match, from its listing.

    A glob that matches a folder means everything in it.
    """
    files, notes, known, unreadable = set[str](), list[str](), list[str](), list[str]()
    for entry in entries:
        if not entry.path.endswith("/"):
            if not _TEMPORARY.search(entry.path):
                known.append(entry.path)
        elif entry.is_unreadable:
            unreadable.append(entry.path.rstrip("/"))
    for pattern in globs:
        regex = re.compile(_as_regex(pattern))
        found = [path for path in known if regex.match(path)]
        if not found:
            notes.append(f"checkpoints.outputs: nothing matches {pattern}")
        files.update(found)
        for path in unreadable:  # it may hold files that the glob matches
            is_below = f"{path}/".startswith(_before_wildcards(pattern))
            if regex.match(path) or ("**" in pattern and is_below):
                notes.append(_unreadable_note(path))
    notes = list(dict.fromkeys(notes))
    return Outputs(tuple(sorted(files)), tuple(notes))


def _before_wildcards(pattern: str) -> str:
    """Return the folder, with a slash, that holds everything the pattern can match."""
    fixed = takewhile(lambda part: not set("*?[") & set(part), pattern.split("/")[:-1])
    return "".join(f"{part}/" for part in fixed)


def _unreadable_note(folder: str) -> str:
    return f"checkpoints.outputs: {folder} cannot be read: nothing in it was copied"


def _as_regex(pattern: str) -> str:
    """Translate a glob as `Path.glob` reads it: ``**`` is any number of folders, ``*`` one name."""
    parts = []
    for part in pattern.rstrip("/").split("/"):
        if part == "**":
            parts.append(r"(?:[^/]+/)*")
        else:
            name = fnmatch.translate(part).removeprefix("(?s:").removesuffix(r")\Z")
            parts.append(name.replace(".*", "[^/]*") + "/")
    whole = "".join(parts)
    return whole.removesuffix("/") + r"(?:/.*)?\Z" if whole.endswith("/") else whole + r".*\Z"


def _matches(root: Path, pattern: str, stopped: Stopped) -> list[Path]:
    """Return what `pattern` matches; an absolute pattern, or one with ``..``, matches nothing."""
    parts = PurePosixPath(pattern)
    if parts.is_absolute() or ".." in parts.parts or not parts.parts:
        return []
    found = []
    with contextlib.suppress(OSError, ValueError):
        for match in root.glob(pattern):
            raise_if_cancelled(stopped)
            found.append(match)
    return sorted(found)


def _files_of(
    root: Path, match: Path, failed: Callable[[OSError], None], stopped: Stopped
) -> Iterable[str]:
    """Yield the matched file, or every file in the matched folder, relative to `root`.

    `failed` is called for each folder that cannot be read.
    """
    if match.is_file():
        yield match.relative_to(root).as_posix()
        return
    for folder, _, names in os.walk(match, onerror=failed):
        for name in names:
            raise_if_cancelled(stopped)
            path = Path(folder, name)
            if path.is_file() and path.resolve().is_relative_to(root):
                yield path.relative_to(root).as_posix()


def _copy(root: Path, path: str, destination: Path, notes: list[str], stopped: Stopped) -> bool:
    source = (root / path).resolve()
    target = destination / path
    try:
        found = source.stat()
        entry = Entry(path, found.st_size, found.st_mtime_ns)
        replace_verified(source, target, entry, stopped=stopped)
    except (SourceChangedError, FileNotFoundError) as error:
        notes.append(f"checkpoints.outputs: {path} was not copied: {describe_error(error)}")
        return False
    return True


def _visible_files(workdir: Path, home: Path | None) -> list[str] | None:
    """Return files that may be results, or None if there are too many.

    Hidden files and those behind a link to a folder are left out. A start waits for this, so it
    reads no more than names.
    """
    found: list[str] = []
    folders = [""]
    while folders and len(found) <= _MOST_FILES:
        inside = folders.pop()
        entries = [
            one for one in _entries(f"{workdir}/{inside}") if not _IGNORED_NAMES.fullmatch(one.name)
        ]
        if inside and any(one.name == "pyvenv.cfg" for one in entries):
            continue  # a virtual environment
        for one in entries:
            if not _leads_to_a_folder(one):
                found.append(inside + one.name)
            elif not one.is_symlink() and one.path != str(home):
                folders.append(f"{inside}{one.name}/")
    return None if len(found) > _MOST_FILES else found


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
