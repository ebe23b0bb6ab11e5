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
from tfcluster.errors import SurroundingsError

_LIST = ("ls-files", "-z", "-t", "--cached", "--others", "--exclude-standard")
_UNTRACKED = b"?"
"""How `git ls-files -t` marks what is not in the index."""
_UNREADABLE = b"unreadable"
"""How we mark a folder that git could not open."""
_NOT_OPENED = re.compile(
    rb"^warning: could not open directory '(.*?)/': ", re.MULTILINE | re.DOTALL
)
_OF_A_HOOK = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"})
"""What git sets for the commands that it starts itself: it would answer of another repository."""
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Listed:
    """Paths below a folder, with slashes."""

    tracked: frozenset[str]
    untracked: frozenset[str]
    unreadable: frozenset[str]
    """Folders that git could not open."""


def names(workdir: Path) -> Listed | None:
    """Return what git lists below `workdir`, submodules and nested repositories included.

    None where git has no say: in no repository, and in a folder that its repository ignores.
    Raises SurroundingsError where there is a repository, and git does not answer: all that is
    there would be too much (what it ignores may be large, or secret).
    """
    if not _in_repository(workdir) or _is_ignored(workdir):
        return None
    marks = dict(_marked(workdir))
    unreadable = frozenset(name for name, mark in marks.items() if mark == _UNREADABLE)
    untracked = frozenset(name for name, mark in marks.items() if mark == _UNTRACKED)
    return Listed(frozenset(marks) - unreadable - untracked, untracked, unreadable)


def _marked(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Each path and git's mark for it."""
    answer = _ask(folder, _LIST)
    for entry in filter(None, answer.stdout.split(b"\0")):
        mark, _, encoded = entry.partition(b" ")
        name = os.fsdecode(encoded)
        path = folder / name
        if os.path.islink(path) or not os.path.isdir(path):
            yield name, mark
        elif os.path.exists(path / ".git"):  # else: a submodule that was not checked out
            yield from ((f"{name.rstrip('/')}/{one}", its) for one, its in _marked(path))
    if not_opened := _NOT_OPENED.findall(answer.stderr):
        prefix = _ask(folder, ("rev-parse", "--show-prefix")).stdout.removesuffix(b"\n")
        for name in not_opened:  # named from the top of the repository
            yield os.fsdecode(name.removeprefix(prefix)), _UNREADABLE


def _in_repository(folder: Path) -> bool:
    real = folder.resolve()
    return any((above / ".git").exists() for above in (real, *real.parents))


def _is_ignored(folder: Path) -> bool:
    """Asked from above: what a folder's own .gitignore says is about what is in it."""
    real = folder.resolve()
    if (real / ".git").exists():
        return False
    asked = _ask(real.parent, ("check-ignore", "-q", "--", real.name), may_deny=True)
    return asked.returncode == 0


def _ask(
    folder: Path, words: Sequence[str], *, may_deny: bool = False
) -> subprocess.CompletedProcess[bytes]:
    """`may_deny`: 1 is an answer, too."""
    surroundings = {name: v for name, v in os.environ.items() if name not in _OF_A_HOOK}
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            timeout=_PATIENCE_S,
            env={**surroundings, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise _silent(folder, "git is not installed here") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise _silent(folder, describe_error(error)) from error
    if answer.returncode not in ((0, 1) if may_deny else (0,)):
        said = answer.stderr.decode(errors="replace").strip()
        raise _silent(folder, said.partition("\n")[0] or f"exit code {answer.returncode}")
    return answer


def _silent(folder: Path, why: str) -> SurroundingsError:
    return SurroundingsError(
        f"{folder} lies in a git repository, and git does not tell what to send: {why}",
        fix=f"`git -C {shlex.quote(str(folder))} status` must work;"
        " or set job.workdir to a folder outside of the repository",
    )


_FILES: Final = (
    # environments and passwords of tools
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
"""Of folders that hold other things, too."""
_HARMLESS: Final = ("*.pub", ".env.example", ".env.sample", ".env.template", ".env.dist")


def is_credential(path: str) -> bool:
    """Whether `path`, below the workdir and with slashes, is named like a credential."""
    *folders, name = path.split("/")
    if not set(_FOLDERS).isdisjoint(folders):
        return True
    if any(fnmatchcase(name, pattern) for pattern in _HARMLESS):
        return False
    return any(fnmatchcase(name.lower(), pattern) for pattern in _FILES) or any(
        fnmatchcase(f"/{path}", f"*/{pattern}") for pattern in _PATHS
    )
