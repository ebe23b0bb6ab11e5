"""The code that other machines get a copy of: what git tracks, and what it does not ignore."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import posixpath
import secrets
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfcluster.errors import SurroundingsError
from tfcluster.nodes import git_files
from tfcluster.nodes.git_files import is_credential
from tfcluster.nodes.hub import Hub
from tfcluster.plan import remote_paths
from tfcluster.plan.plan import NodePlan, Plan
from tfcluster.wire.file_transfer import RemoteFiles, Sent

MOST_BYTES = 200 * 1000 * 1000
MOST_FILES = 50_000
"""What a host lists and makes within seconds; more is data."""
MARK = ".tfcluster-mark-"
"""Begins the names of files that only tell whether a host sees this folder itself."""
_NEVER = frozenset({".git", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache"})
"""Folders that are no code, where there is no git to say so."""
_GIT = frozenset({".git"})
_MOST_NAMED = 5
_IN_ONE = 0.9
"""A folder is named by the one below it that holds so much of it."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files to send, and the paths that stay here without having been ignored."""

    files: tuple[Sent, ...]
    credentials: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    def warnings(self) -> Iterator[str]:
        """Sentences about what stays here."""
        if self.credentials:
            named = _first_of(self.credentials)
            yield (
                f"not sent to other machines because they look like credentials: {named}; a job"
                " that needs one there names it in job.include"
            )
        if self.unreadable:
            named = _first_of(self.unreadable)
            yield (
                f"not sent to other machines because they cannot be read here: {named}; make them"
                " readable, or have git ignore them"
            )


def _first_of(paths: Sequence[str]) -> str:
    more = len(paths) - _MOST_NAMED
    return ", ".join(paths[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def snapshot(
    workdir: Path, include: Sequence[str] = (), *, withheld: Sequence[str] = ()
) -> Snapshot:
    """Return what of `workdir` to send.

    `include`: globs of what is sent even where git ignores it or it looks like a credential;
    `withheld`: paths that are not sent unless `include` names them. What git tracks is sent
    whatever its name: to commit it was the user's decision.

    Raises SurroundingsError above 200 MB or 50,000 files, for a glob that finds nothing, and
    where git does not answer or `workdir` itself cannot be read.
    """
    listed = git_files.names(workdir) or _all(workdir)
    secret = {Path(path).resolve() for path in withheld}
    credentials = {name for name in listed.untracked if _is_credential(workdir, name)}
    code = (listed.tracked | listed.untracked) - credentials
    found = {name for name in code if not (secret and (workdir / name).resolve() in secret)}
    unreadable = set(listed.unreadable)
    included = {name for glob in include for name in _matching(workdir, glob, unreadable)}
    found = {one for name in found | included for one in _as_copied(workdir, name)}
    files = list[Sent]()
    for name in sorted(found):
        try:
            if (sent := _sent(workdir, name)) is not None:
                files.append(sent)
        except PermissionError:
            unreadable.add(name)
    _check_size(workdir, files)
    kept = {name for name in credentials - included if (workdir / name).resolve() not in secret}
    return Snapshot(tuple(files), tuple(sorted(kept)), tuple(sorted(unreadable)))


def _is_credential(workdir: Path, name: str) -> bool:
    """By its own name, or by that of the file a link leads to."""
    path = workdir / name
    return is_credential(name) or (
        os.path.islink(path) and is_credential(path.resolve().as_posix().lstrip("/"))
    )


def _all(workdir: Path) -> git_files.Listed:
    """Where there is no git to say what is code. Raises SurroundingsError."""
    unreadable = set[str]()
    found = frozenset(_below(workdir, workdir, _NEVER, unreadable))
    if "." in unreadable:
        raise SurroundingsError(
            f"the working directory {workdir} cannot be read",
            fix="make it readable, or set job.workdir to another folder",
        )
    return git_files.Listed(frozenset(), found, frozenset(unreadable))


def _below(top: Path, workdir: Path, never: frozenset[str], unreadable: set[str]) -> Iterator[str]:
    """Yield files and links below `top`, outside folders called one of `never`; the folders that
    cannot be read go into `unreadable`."""

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            unreadable.add(os.path.relpath(error.filename, workdir))

    for folder, folders, names in os.walk(top, onerror=note):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = sorted(set(folders) - never)
        for name in [*names, *links]:
            yield os.path.relpath(os.path.join(folder, name), workdir)


def _matching(workdir: Path, pattern: str, unreadable: set[str]) -> Iterator[str]:
    """What a glob finds, of folders all that is in them. Raises SurroundingsError for nothing."""
    if (fault := include_fault(workdir, pattern)) is not None:
        raise SurroundingsError(f"job.include: {fault[0]}", fix=fault[1])
    for path in workdir.glob(pattern):
        if os.path.isdir(path):
            below = _below(path, workdir, _GIT, unreadable)
        else:
            below = iter([str(path.relative_to(workdir))])
        yield from (name for name in below if ".git" not in name.split("/"))


def include_fault(workdir: Path, pattern: str) -> tuple[str, str] | None:
    """What is wrong with a glob of ``job.include`` and what to do; None where it finds a file."""
    if pattern.startswith("/") or ".." in pattern.split("/"):
        return (
            f"{pattern} leads out of the workdir, {workdir}",
            "write it relative to job.workdir, or set job.workdir to a folder that holds both",
        )
    try:
        with contextlib.suppress(OSError):  # a name that no file can have
            if next(iter(workdir.glob(pattern)), None) is not None:
                return None
    except ValueError as error:
        return f"{pattern} is not a glob: {error}", 'write for example "data/**/*.csv"'
    return (
        f"nothing in {workdir} matches {pattern}",
        "correct it, or take it out of the spec; * does not cross folders, ** does",
    )


def _as_copied(workdir: Path, name: str) -> Iterator[str]:
    """`name`, and where it lies behind a link that stays one: the link, and what it leads to."""
    parts = name.split("/")
    for length in range(1, len(parts)):
        folder = workdir.joinpath(*parts[:length])
        if os.path.islink(folder) and (target := _link_inside(workdir, folder)) is not None:
            yield "/".join(parts[:length])
            above = "/".join(parts[: length - 1])
            led = posixpath.normpath(posixpath.join(above, target, *parts[length:]))
            yield from _as_copied(workdir, led)
            return
    yield name


def _sent(workdir: Path, name: str) -> Sent | None:
    """None for what is neither a file nor a link to one: a socket, a link to a folder elsewhere.

    Raises PermissionError for a file that cannot be read.
    """
    path = workdir / name
    if path.name.startswith(MARK):
        return None
    try:
        if os.path.islink(path) and (target := _link_inside(workdir, path)) is not None:
            return Sent(name, path, link=target)
        found = path.stat()
    except PermissionError:
        raise
    except OSError:
        return None  # deleted, but not yet for git
    if not stat.S_ISREG(found.st_mode):
        return None
    if not os.access(path, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return Sent(name, path, stat.S_IMODE(found.st_mode) & 0o755)


def _link_inside(workdir: Path, path: Path) -> str | None:
    """A link that leads to something in the copy stays one; of others the content is sent.

    One that goes up again after it went down may, over other links, lead anywhere.
    """
    target = os.readlink(path)
    led = Path(os.path.normpath(path.parent / target))
    stays = led.is_relative_to(workdir) and not goes_up_late(target)
    return target if stays and not os.path.isabs(target) else None


def goes_up_late(target: str) -> bool:
    """Whether a ``..`` of a link's target follows a name."""
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = next((n for n, part in enumerate(parts) if part != ".."), len(parts))
    return ".." in parts[ups:]


def _size(path: Path) -> int:
    """In bytes. What was removed since it was listed weighs nothing: it is told when it is read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _check_size(workdir: Path, files: Iterable[Sent]) -> None:
    sizes = {file.path: _size(file.source) for file in files if file.link is None}
    total = sum(sizes.values())
    if total <= MOST_BYTES and len(sizes) <= MOST_FILES:
        return
    if total > MOST_BYTES:
        largest = [f"{name} ({size / 1e6:.0f} MB)" for name, size in _heaviest(sizes)]
        much = f"{total / 1e6:.0f} MB to send to other hosts, more than {MOST_BYTES / 1e6:.0f}"
    else:
        largest = [f"{name} ({n} files)" for name, n in _heaviest(dict.fromkeys(sizes, 1))]
        much = f"{len(sizes)} files to send to other hosts, more than {MOST_FILES}"
    raise SurroundingsError(
        f"{workdir} holds {much}: {', '.join(largest)}",
        fix="have git ignore what is not code (.gitignore), or set job.workdir; data that each"
        " host has goes into runtime.hosts.H.data_dir",
    )


def _heaviest(sizes: dict[str, int]) -> list[tuple[str, int]]:
    """The three folders (with a slash) and files of the workdir that weigh most, heaviest first."""
    weights: Counter[str] = Counter()
    for path, size in sizes.items():
        parts = path.split("/")
        for length in range(1, len(parts)):
            weights["/".join(parts[:length]) + "/"] += size
        weights[path] += size
    top = [name for name in weights if "/" not in name.rstrip("/")]
    named = sorted(top, key=weights.__getitem__, reverse=True)[:3]
    narrowed = [_narrowed(name, weights) for name in named]
    return [(name, weights[name]) for name in narrowed]


def _narrowed(name: str, weights: Counter[str]) -> str:
    """`name`, or the folder below it in which nearly all of it lies."""
    while name.endswith("/"):
        depth = name.count("/")
        below = [n for n in weights if n.startswith(name) and n.rstrip("/").count("/") == depth]
        heavy = [n for n in below if n.endswith("/") and weights[n] >= _IN_ONE * weights[name]]
        if not heavy:
            break
        name = heavy[0]
    return name


async def find(plan: Plan, hub: Hub, nodes: Iterable[NodePlan]) -> None:
    """Have those of `nodes` that see the workdir work in it; maybe it is where the spec says."""
    far = [node for node in nodes if hub.site(node.name).is_remote]
    if not far:
        return
    with marked(Path(plan.workdir)) as mark:
        if mark is not None:
            await asyncio.gather(*(_look(hub, node, mark) for node in far))


async def _look(hub: Hub, node: NodePlan, mark: Mark) -> None:
    named = remote_paths.chosen_folder(node.workdir)
    with contextlib.suppress(OSError):  # a lost node will be told of
        found = await mark.seen_by(hub.files(node.name), [named] if named else [])
        if found is not None:
            hub.share_code(node, found)


@dataclass(frozen=True, slots=True)
class Mark:
    """A file in a folder of this machine that nobody else could have made."""

    folder: str
    name: str
    text: str
    inode: int

    async def seen_by(self, node: RemoteFiles, elsewhere: Sequence[str] = ()) -> str | None:
        """Under which name the node sees the folder: its own, or one of `elsewhere`.

        None: it does not, or may not write there. Names and times can be equal on two machines
        that were installed from one image; a text that was just thrown cannot. Raises
        FarFilesError.
        """
        folders = [self.folder, *elsewhere]
        return await node.find_shared_folder(
            folders, name=self.name, text=self.text, inode=self.inode
        )


@contextlib.contextmanager
def marked(folder: Path) -> Iterator[Mark | None]:
    """Put a mark into `folder` for as long as it is looked for; None where it takes none."""
    text = secrets.token_hex(16)
    path = folder / f"{MARK}{text[:12]}"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except OSError:
        yield None
        return
    try:
        with open(fd, "w") as file:
            file.write(text)
            inode = os.fstat(fd).st_ino
        yield Mark(str(folder), path.name, text, inode)
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
