"""The files that git lists below a folder, and names that look like credentials."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from tfcluster.agent.error_text import describe_error
from tfcluster.errors import SetupError

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
class GitListing:
    """Paths below a folder, separated by slashes."""

    tracked: frozenset[str]
    untracked: frozenset[str]
    unreadable: frozenset[str]
    """Folders that git could not open."""


def list_files(workdir: Path) -> GitListing | None:
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
    return GitListing(frozenset(marks) - unreadable - untracked, untracked, unreadable)


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


_FILES: Final = (
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
_FOLDERS: Final = (".ssh", ".gnupg", ".aws", ".azure", ".kube", ".kaggle", ".password-store")
_PATHS: Final = (".docker/config.json", ".config/gcloud/*", ".huggingface/token*")
"""Credentials in folders that also hold other files."""
_HARMLESS: Final = ("*.pub", ".env.example", ".env.sample", ".env.template", ".env.dist")


def is_credential(path: str) -> bool:
    """Return whether `path`, below the workdir and with slashes, is named like a credential."""
    *folders, name = path.split("/")
    if not set(_FOLDERS).isdisjoint(folders):
        return True
    if any(fnmatchcase(name, pattern) for pattern in _HARMLESS):
        return False
    return any(fnmatchcase(name.lower(), pattern) for pattern in _FILES) or any(
        fnmatchcase(f"/{path}", f"*/{pattern}") for pattern in _PATHS
    )
