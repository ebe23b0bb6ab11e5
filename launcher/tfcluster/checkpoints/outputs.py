"""Other files a run leaves: gather the ones asked for, and notice the ones nobody asked for.

Scripts that know nothing of TFCLUSTER_CHECKPOINT_DIR write into their working directory. What
`checkpoints.outputs` names there is copied to the run folder, also after a failure; what is new
there and was not named is said with the cure.
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
    go_on,
    never,
    replace_verified,
)

_NO_RESULT = re.compile(r"\..*|__pycache__|node_modules|.*\.(pyc|tmp|swp)|core", re.DOTALL)
_MOST_FILES = 20_000
"""A working directory with more is a data set, and looking for news in it too slow."""
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Outputs:
    """What was copied, relative to the destination, and what should be said."""

    files: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkdirBefore:
    """The files that were there before the run; None: too many to remember."""

    workdir: Path
    paths: frozenset[str] | None
    ours: Path | None = None
    """The home of all runs, which may lie in the working directory and holds no news."""


def remember(workdir: Path, *, ours: Path | None = None) -> WorkdirBefore:
    """Look at the working directory before the first task starts, except below `ours`."""
    paths = _visible_files(workdir, ours)
    return WorkdirBefore(workdir, None if paths is None else frozenset(paths), ours)


def news(before: WorkdirBefore, *, gathered: Iterable[str] = ()) -> str:
    """One sentence with the cure about files that appeared, "" when there is nothing to say."""
    now = None if before.paths is None else _visible_files(before.workdir, before.ours)
    if now is None or before.paths is None:
        return ""
    new = _named_by_folder(set(now) - before.paths - set(gathered), before.paths)
    if not new:
        return ""
    named, more = new[:_MOST_NAMED], len(new) - _MOST_NAMED
    globs = json.dumps([f"{name}**" if name.endswith("/") else name for name in named])
    shown = ", ".join(named) + (f" and {more} more" if more > 0 else "")
    option = shlex.quote(f"checkpoints.outputs={globs}")
    return f"New files in the working directory: {shown}. To gather them: --set {option}"


def gather_outputs(
    workdir: Path, globs: Sequence[str], destination: Path, *, stopped: Stopped = never
) -> Outputs:
    """Copy what the globs match below `workdir` to the same places below `destination`.

    Raises CancelledError, and OSError for the destination's disk. A link is followed only where
    it leads to something inside the working directory.
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
                notes.append(f"checkpoints.outputs: {match.relative_to(root)} leads elsewhere")
        if "**" in pattern and matches:  # a glob passes over what it cannot read
            for _ in os.walk(root / _before_wildcards(pattern), onerror=failed):
                go_on(stopped)
    notes += map(_not_read, sorted(unreadable))
    copied = [path for path in sorted(files) if _copy(root, path, destination, notes, stopped)]
    return Outputs(tuple(copied), tuple(notes))


def matching(entries: Iterable[Entry], globs: Sequence[str]) -> Outputs:
    """Of the files of a folder that only another machine can see, those that the globs name;
    a glob that names a folder means all that is in it."""
    files, notes, known, unreadable = set[str](), list[str](), list[str](), list[str]()
    for entry in entries:
        if not entry.path.endswith("/"):
            known.append(entry.path)
        elif entry.is_unreadable:
            unreadable.append(entry.path.rstrip("/"))
    for pattern in globs:
        means = re.compile(_as_regex(pattern))
        found = [path for path in known if means.match(path)]
        if not found:
            notes.append(f"checkpoints.outputs: nothing matches {pattern}")
        files.update(found)
        for path in unreadable:  # of what is in such a folder nothing is known
            is_below = f"{path}/".startswith(_before_wildcards(pattern))
            if means.match(path) or ("**" in pattern and is_below):
                notes.append(_not_read(path))
    notes = list(dict.fromkeys(notes))
    return Outputs(tuple(sorted(files)), tuple(notes))


def _before_wildcards(pattern: str) -> str:
    """The folder, with a slash, in which everything lies that the pattern can match."""
    fixed = takewhile(lambda part: not set("*?[") & set(part), pattern.split("/")[:-1])
    return "".join(f"{part}/" for part in fixed)


def _not_read(folder: str) -> str:
    return f"checkpoints.outputs: {folder} cannot be read: nothing in it was copied"


def _as_regex(pattern: str) -> str:
    """As `Path.glob` reads it: ``**`` is any number of folders, ``*`` stays within one name."""
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
    """What the pattern matches; an absolute one or one with ``..`` matches nothing."""
    parts = PurePosixPath(pattern)
    if parts.is_absolute() or ".." in parts.parts or not parts.parts:
        return []
    found = []
    with contextlib.suppress(OSError, ValueError):
        for match in root.glob(pattern):
            go_on(stopped)
            found.append(match)
    return sorted(found)


def _files_of(
    root: Path, match: Path, failed: Callable[[OSError], None], stopped: Stopped
) -> Iterable[str]:
    """The matched file, or every file in the matched folder, relative to `root`; `failed` is
    called for each folder that cannot be read."""
    if match.is_file():
        yield match.relative_to(root).as_posix()
        return
    for folder, _, names in os.walk(match, onerror=failed):
        for name in names:
            go_on(stopped)
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


def _visible_files(workdir: Path, ours: Path | None) -> list[str] | None:
    """Files that may be results, without hidden ones and those behind a link to a folder; None
    when there are too many. A start waits for it, so it asks of each no more than its name."""
    found: list[str] = []
    folders = [""]
    while folders and len(found) <= _MOST_FILES:
        inside = folders.pop()
        entries = [
            one for one in _entries(f"{workdir}/{inside}") if not _NO_RESULT.fullmatch(one.name)
        ]
        if inside and any(one.name == "pyvenv.cfg" for one in entries):
            continue  # an environment
        for one in entries:
            if not _leads_to_a_folder(one):
                found.append(inside + one.name)
            elif not one.is_symlink() and one.path != str(ours):
                folders.append(f"{inside}{one.name}/")
    return None if len(found) > _MOST_FILES else found


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """None where it cannot be read."""
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
    """A folder that is new as a whole is named once, ``outputs/``."""
    old_folders = {str(parent) for path in before for parent in PurePosixPath(path).parents}
    named = set()
    for path in new:
        fresh = [p for p in PurePosixPath(path).parents if str(p) not in (*old_folders, ".")]
        named.add(f"{fresh[-1]}/" if fresh else path)
    return sorted(named)
