"""Code sync: the snapshot of the workdir that other machines get."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import posixpath
import re
import shlex
import stat
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from tfcluster import kinds
from tfcluster.agent.error_text import describe_error
from tfcluster.errors import SetupError, join_first
from tfcluster.plans.plan import Plan
from tfcluster.rundir.paths import home
from tfcluster.wire.file_trees import FileToSend

MAX_BYTES = 200 * 1000 * 1000
MAX_FILES = 50_000
"""The number of files that a host lists and writes within seconds; more is data, not code."""
MARK = ".tfcluster-mark-"
"""Prefix of the files that show whether a host sees this folder itself (`shared_workdirs`)."""
_NO_CODE = frozenset({".git", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache"})
"""Folders that are skipped without git."""
_GIT = frozenset({".git"})
_MAX_NAMED = 5
_NARROWING_SHARE = 0.9
"""A subfolder with at least this share of a folder's weight is named in its place."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files to send, and paths that are not sent although git does not ignore them."""

    files: tuple[FileToSend, ...]
    credentials: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    """Links to folders outside of the workdir."""

    def warnings(self) -> Iterator[str]:
        """Yield sentences about what is not sent."""
        if self.outside:
            named = join_first(self.outside, _MAX_NAMED)
            yield (
                f"not sent to other machines because they are links to folders outside of the"
                f" workdir: {named}; if the job needs one, name it in job.include"
            )
        if self.credentials:
            named = join_first(self.credentials, _MAX_NAMED)
            yield (
                f"not sent to other machines because they look like credentials: {named}; if the"
                " job needs one, name it in job.include"
            )
        if self.unreadable:
            named = join_first(self.unreadable, _MAX_NAMED)
            yield (
                f"not sent to other machines because they cannot be read here: {named}; make them"
                " readable, or have git ignore them"
            )


def snapshot_of(plan: Plan) -> Snapshot:
    """Return the files of the workdir that a run of `plan` needs. Raises SetupError."""
    data_fix = kinds.get(plan.nodes[0].backend).data_fix
    workdir, withheld = Path(plan.workdir), plan.withheld
    return snapshot(workdir, plan.include, withheld=withheld, data_fix=data_fix)


def snapshot(
    workdir: Path,
    include: Sequence[str] = (),
    *,
    withheld: Sequence[str] = (),
    data_fix: str = kinds.BackendKind.data_fix,
) -> Snapshot:
    """Return the files of `workdir` to send: those that git tracks or does not ignore.

    Runs are no code: TFCLUSTER_HOME is not sent where it is in the workdir.

    `include`: globs of files to send even if git ignores them or they look like credentials;
    `withheld`: paths that are not sent unless `include` names them; `data_fix`: what to do with
    data (`kinds.BackendKind`). Files that git tracks are sent whatever their names: committing them
    was the user's decision.

    A link whose target is outside of `workdir` would send a file that nobody has put there: it is
    refused, unless `include` names it.

    Raises SetupError for such a link to a file, above 200 MB or 50,000 files, for a glob that
    matches nothing, and if git fails or `workdir` itself cannot be read.
    """
    listed = _list_with_git(workdir) or _list_without_git(workdir)
    secret = {Path(path).resolve() for path in withheld}
    credentials = {name for name in listed.untracked if _is_credential(workdir, name)}
    runs = os.path.relpath(home(), workdir) + "/"
    code = listed.tracked.union(
        name for name in listed.untracked - credentials if not name.startswith(runs)
    )
    own = {name for name in code if not (secret and (workdir / name).resolve() in secret)}
    unreadable = set(listed.unreadable)
    included = {name for glob in include for name in _match(workdir, glob, unreadable)}
    asked = {above for name in included for above in (name, *map(str, Path(name).parents))}
    outside = {name for name in own - asked if _leads_out(workdir, name)}
    folders = {name for name in outside if (workdir / name).is_dir()}
    _require_inside(workdir, sorted(outside - folders))
    names = {path for name in own | included for path in _with_links(workdir, name)}
    files = list[FileToSend]()
    for name in sorted(names):
        try:
            if (sent := _sent(workdir, name)) is not None:
                files.append(sent)
        except PermissionError:
            unreadable.add(name)
    _check_size(workdir, files, data_fix)
    kept = {name for name in credentials - included if (workdir / name).resolve() not in secret}
    return Snapshot(
        tuple(files), tuple(sorted(kept)), tuple(sorted(unreadable)), tuple(sorted(folders))
    )


def _leads_out(workdir: Path, name: str) -> bool:
    """Return whether `name` is a link to something that exists outside of the workdir."""
    path = workdir / name
    if not os.path.islink(path) or _link_inside(workdir, path) is not None:
        return False
    return os.path.exists(path) and not path.resolve().is_relative_to(workdir.resolve())


def _require_inside(workdir: Path, links: Sequence[str]) -> None:
    """Raise SetupError if there are links to files outside of the workdir."""
    if links:
        named = join_first(
            [f"{link} → {os.readlink(workdir / link)}" for link in links], _MAX_NAMED
        )
        raise SetupError(
            f"links lead out of the working directory {workdir}: {named}",
            fix="put the files there, or have git ignore the links; if the job needs the content,"
            " name the links in job.include, or set job.workdir to a folder that holds both",
        )


def _is_credential(workdir: Path, name: str) -> bool:
    """Return whether the name, or the target of the link `name`, looks like a credential."""
    path = workdir / name
    return _is_named_like_credential(name) or (
        os.path.islink(path) and _is_named_like_credential(path.resolve().as_posix().lstrip("/"))
    )


def _list_without_git(workdir: Path) -> _Listing:
    """Return all files outside of `_NO_CODE`; raises SetupError."""
    unreadable = set[str]()
    files = frozenset(_walk(workdir, workdir, _NO_CODE, unreadable))
    if "." in unreadable:
        raise SetupError(
            f"the working directory {workdir} cannot be read",
            fix="make it readable, or set job.workdir to another folder",
        )
    return _Listing(frozenset(), files, frozenset(unreadable))


def _walk(top: Path, workdir: Path, skipped: frozenset[str], unreadable: set[str]) -> Iterator[str]:
    """Yield files and links below `top`, relative to `workdir`, without folders named in `skipped`.

    Folders that cannot be read are added to `unreadable`.
    """

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            unreadable.add(os.path.relpath(error.filename, workdir))

    for folder, folders, names in os.walk(top, onerror=note):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = sorted(set(folders) - skipped)
        for name in [*names, *links]:
            yield os.path.relpath(os.path.join(folder, name), workdir)


def _match(workdir: Path, pattern: str, unreadable: set[str]) -> Iterator[str]:
    """Yield the files that a glob matches, including all files in matching folders.

    Raises SetupError if it matches nothing.
    """
    if (problem := include_problem(workdir, pattern)) is not None:
        message, fix = problem
        raise SetupError(f"job.include: {message}", fix=fix)
    for path in workdir.glob(pattern):
        if os.path.isdir(path):
            below = _walk(path, workdir, _GIT, unreadable)
        else:
            below = iter([str(path.relative_to(workdir))])
        yield from (name for name in below if ".git" not in name.split("/"))


def include_problem(workdir: Path, pattern: str) -> tuple[str, str] | None:
    """Return the problem of a glob of ``job.include`` and its fix; None if it matches a file."""
    if pattern.startswith("/") or ".." in pattern.split("/"):
        return (
            f"{pattern} leads out of the workdir, {workdir}",
            "write it relative to job.workdir, or set job.workdir to a folder that holds both",
        )
    try:
        with contextlib.suppress(OSError):  # such as a name that is too long
            if next(iter(workdir.glob(pattern)), None) is not None:
                return None
    except ValueError as error:
        return f"{pattern} is not a glob: {error}", 'write for example "data/**/*.csv"'
    return (
        f"nothing in {workdir} matches {pattern}",
        "correct it, or remove it from the spec; * does not cross folders, ** does",
    )


def _with_links(workdir: Path, name: str) -> Iterator[str]:
    """Yield `name`; for a path through a link that stays one, yield the link and the real path."""
    parts = name.split("/")
    for length in range(1, len(parts)):
        folder = workdir.joinpath(*parts[:length])
        if os.path.islink(folder) and (target := _link_inside(workdir, folder)) is not None:
            yield "/".join(parts[:length])
            above = "/".join(parts[: length - 1])
            real = posixpath.normpath(posixpath.join(above, target, *parts[length:]))
            yield from _with_links(workdir, real)
            return
    yield name


def _sent(workdir: Path, name: str) -> FileToSend | None:
    """Return how to send `name`; None for a socket, or a link to a folder outside the workdir.

    Raises PermissionError for a file that cannot be read.
    """
    path = workdir / name
    if path.name.startswith(MARK):
        return None
    try:
        if os.path.islink(path) and (target := _link_inside(workdir, path)) is not None:
            return FileToSend(name, path, link=target)
        status = path.stat()
    except PermissionError:
        raise
    except OSError:
        return None  # deleted, but still in git's index
    if not stat.S_ISREG(status.st_mode):
        return None
    if not os.access(path, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return FileToSend(name, path, stat.S_IMODE(status.st_mode) & 0o755)


def _link_inside(workdir: Path, path: Path) -> str | None:
    """Return the target of a link that stays a link in the copy; None if its content is sent.

    A link stays if it leads to something in the copy. A target that goes up after it went down
    may, over other links, lead anywhere.
    """
    target = os.readlink(path)
    real = Path(os.path.normpath(path.parent / target))
    below = itertools.dropwhile(lambda part: part in ("", ".", ".."), target.split("/"))
    stays = real.is_relative_to(workdir) and ".." not in below
    return target if stays and not os.path.isabs(target) else None


def _size(path: Path) -> int:
    """Return the size in bytes; 0 for a file that was removed meanwhile, which reading reports."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _check_size(workdir: Path, files: Iterable[FileToSend], data_fix: str) -> None:
    sizes = {file.path: _size(file.source) for file in files if file.link is None}
    total = sum(sizes.values())
    if total <= MAX_BYTES and len(sizes) <= MAX_FILES:
        return
    if total > MAX_BYTES:
        largest = [f"{name} ({size / 1e6:.0f} MB)" for name, size in _heaviest(sizes)]
        excess = f"{total / 1e6:.0f} MB to send to other hosts, more than {MAX_BYTES / 1e6:.0f}"
    else:
        largest = [f"{name} ({n} files)" for name, n in _heaviest(dict.fromkeys(sizes, 1))]
        excess = f"{len(sizes)} files to send to other hosts, more than {MAX_FILES}"
    raise SetupError(
        f"{workdir} holds {excess}: {', '.join(largest)}",
        fix=f"have git ignore what is not code (.gitignore), or set job.workdir; {data_fix}",
    )


def _heaviest(sizes: dict[str, int]) -> list[tuple[str, int]]:
    """Return the three heaviest folders (with a slash) and files of the workdir."""
    weights: Counter[str] = Counter()
    for path, size in sizes.items():
        parts = path.split("/")
        for length in range(1, len(parts)):
            weights["/".join(parts[:length]) + "/"] += size
        weights[path] += size
    top = [name for name in weights if "/" not in name.rstrip("/")]
    named = sorted(top, key=weights.__getitem__, reverse=True)[:3]
    narrowed = [_narrow(name, weights) for name in named]
    return [(name, weights[name]) for name in narrowed]


def _narrow(name: str, weights: Counter[str]) -> str:
    """Return `name`, or the folder below it that holds nearly all of its weight."""
    while name.endswith("/"):
        depth = name.count("/")
        below = [n for n in weights if n.startswith(name) and n.rstrip("/").count("/") == depth]
        heavy = [
            n for n in below if n.endswith("/") and weights[n] >= _NARROWING_SHARE * weights[name]
        ]
        if not heavy:
            break
        name = heavy[0]
    return name


_LIST = ("ls-files", "-z", "-t", "--cached", "--others", "--exclude-standard")
_UNTRACKED = b"?"
"""The mark of `git ls-files -t` for files that are not in the index."""
_UNREADABLE = b"unreadable"
"""Our mark for a folder that git could not open."""
_NOT_OPENED = re.compile(
    rb"^warning: could not open directory '(.*?)/': ", re.MULTILINE | re.DOTALL
)
_HOOK_VARIABLES = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"})
"""Variables that git sets for hooks: with them it would list another repository."""
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class _Listing:
    """Paths below a folder, separated by slashes."""

    tracked: frozenset[str]
    untracked: frozenset[str]
    unreadable: frozenset[str]
    """Folders that git could not open."""


def _list_with_git(workdir: Path) -> _Listing | None:
    """Return what git lists below `workdir`, submodules and nested repositories included.

    None outside of a repository, and for a folder that its repository ignores. Raises
    SetupError for a repository in which git fails: sending all files would be wrong,
    because ignored files may be large or secret.
    """
    if not _in_repository(workdir) or _is_ignored(workdir):
        return None
    marks = dict(_list_marked(workdir))
    unreadable = frozenset(name for name, mark in marks.items() if mark == _UNREADABLE)
    untracked = frozenset(name for name, mark in marks.items() if mark == _UNTRACKED)
    return _Listing(frozenset(marks) - unreadable - untracked, untracked, unreadable)


def _list_marked(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield each path below `folder` with git's mark for it."""
    listing = _run_git(folder, _LIST)
    for entry in filter(None, listing.stdout.split(b"\0")):
        mark, _, encoded = entry.partition(b" ")
        name = os.fsdecode(encoded)
        path = folder / name
        if os.path.islink(path) or not os.path.isdir(path):
            yield name, mark
        elif os.path.exists(path / ".git"):  # false for a submodule that is not checked out
            yield from ((f"{name.rstrip('/')}/{n}", m) for n, m in _list_marked(path))
    if not_opened := _NOT_OPENED.findall(listing.stderr):
        prefix = _run_git(folder, ("rev-parse", "--show-prefix")).stdout.removesuffix(b"\n")
        for name in not_opened:  # relative to the top of the repository
            yield os.fsdecode(name.removeprefix(prefix)), _UNREADABLE


def _in_repository(folder: Path) -> bool:
    real = folder.resolve()
    return any((above / ".git").exists() for above in (real, *real.parents))


def _is_ignored(folder: Path) -> bool:
    """Return whether the repository ignores `folder`, leaving out the folder's own .gitignore."""
    real = folder.resolve()
    if (real / ".git").exists():
        return False
    command = ("check-ignore", "-q", "--", real.name)
    return _run_git(real.parent, command, accepted=(0, 1)).returncode == 0


def _run_git(
    folder: Path, args: Sequence[str], *, accepted: Sequence[int] = (0,)
) -> subprocess.CompletedProcess[bytes]:
    """Run git in `folder`; raises SetupError unless it exits with an `accepted` code."""
    environ = {name: v for name, v in os.environ.items() if name not in _HOOK_VARIABLES}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *args],
            capture_output=True,
            timeout=_TIMEOUT_S,
            env={**environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise _git_error(folder, "git is not installed") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise _git_error(folder, describe_error(error)) from error
    if done.returncode not in accepted:
        message = done.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise _git_error(folder, message or f"exit code {done.returncode}")
    return done


def _git_error(folder: Path, why: str) -> SetupError:
    return SetupError(
        f"{folder} is in a git repository, and git cannot list its files: {why}",
        fix=f"make `git -C {shlex.quote(str(folder))} status` work,"
        " or set job.workdir to a folder outside of the repository",
    )


_CREDENTIAL_FILES: Final = (
    # environment files and passwords of tools
    *(".env", ".env.*", ".envrc", ".netrc", "_netrc", ".git-credentials", ".pgpass", ".my.cnf"),
    *(".htpasswd", ".vault-token", "secrets.toml"),
    # tokens of package indexes and registries
    *(".pypirc", ".npmrc", ".yarnrc", ".yarnrc.yml", ".dockercfg"),
    # private keys, and stores that hold them
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.ppk", "*.jks", "*.keystore", "*.kdbx"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
    # clouds, clusters and data services
    *("kubeconfig", "*.kubeconfig", ".boto", ".s3cfg", "kaggle.json", "credentials.json"),
    *("client_secret*.json", "application_default_credentials.json"),
    *("service-account*.json", "service_account*.json"),
)
_CREDENTIAL_FOLDERS: Final = (
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".kaggle",
    ".password-store",
)
_CREDENTIAL_PATHS: Final = (".docker/config.json", ".config/gcloud/*", ".huggingface/token*")
"""Credentials in folders that also hold other files."""
_NO_CREDENTIALS: Final = ("*.pub", ".env.example", ".env.sample", ".env.template", ".env.dist")


def _is_named_like_credential(path: str) -> bool:
    """Return whether `path`, below the workdir and with slashes, is named like a credential."""
    *folders, name = path.split("/")
    if not set(_CREDENTIAL_FOLDERS).isdisjoint(folders):
        return True
    if any(fnmatchcase(name, pattern) for pattern in _NO_CREDENTIALS):
        return False
    return any(fnmatchcase(name.lower(), pattern) for pattern in _CREDENTIAL_FILES) or any(
        fnmatchcase(f"/{path}", f"*/{pattern}") for pattern in _CREDENTIAL_PATHS
    )
