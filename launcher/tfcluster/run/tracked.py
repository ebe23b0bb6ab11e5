"""What git knows of a folder: the names it tracks, and those it does not ignore."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tfcluster.agent.error_words import words_of
from tfcluster.errors import SurroundingsError

_LIST = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
_OF_A_HOOK = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"})
"""What git sets for the commands that it starts itself: it would answer of another repository."""
_PATIENCE_S = 60.0


def names(workdir: Path) -> list[str] | None:
    """Below `workdir`, with slashes; of submodules and other repositories in it theirs, too.

    None where git has no say: in no repository, and in a folder that its repository ignores.
    Raises SurroundingsError where there is a repository, and git does not answer: all that is
    there would be too much (what it ignores may be large, or secret).
    """
    if not _in_repository(workdir) or _is_ignored(workdir):
        return None
    return list(_names(workdir))


def _names(folder: Path) -> Iterator[str]:
    listed = _ask(folder, _LIST).stdout.split(b"\0")
    for name in (os.fsdecode(one) for one in listed if one):
        path = folder / name
        if path.is_symlink() or not path.is_dir():
            yield name
        elif (path / ".git").exists():  # else: a submodule that was not checked out
            yield from (f"{name.rstrip('/')}/{one}" for one in _names(path))


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
        raise _silent(folder, words_of(error)) from error
    if answer.returncode not in ((0, 1) if may_deny else (0,)):
        said = answer.stderr.decode(errors="replace").strip()
        raise _silent(folder, said.partition("\n")[0] or f"exit code {answer.returncode}")
    return answer


def _silent(folder: Path, why: str) -> SurroundingsError:
    return SurroundingsError(
        f"{folder} lies in a git repository, and git does not tell what to send: {why}",
        cure=f"`git -C {shlex.quote(str(folder))} status` must work;"
        " or set job.workdir to a folder outside of the repository",
    )
