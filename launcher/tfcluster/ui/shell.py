"""Words of a plan for a shell on the node that they are for.

A word with control characters is written as ``$'…'`` (bash, zsh, ksh): a shell reads the same
word, and no screen obeys it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from tfcluster.plan import remote
from tfcluster.plan.plan import Command, EnvVar, TaskPlan
from tfcluster.plan.surroundings import LOCAL
from tfcluster.ui.lines import harmless_text

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_NAMES = re.compile(rf"(^~(?=/|$)|{re.escape(remote.CACHE)}|{re.escape(remote.RUN)})")


def quote(word: str) -> str:
    """`word` for a shell, without a control character but tab and newline."""
    if not _CONTROLS.search(word):
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{_CONTROLS.sub(_as_bytes, escaped)}'"


def join(words: Iterable[str]) -> str:
    """As `shlex.join`."""
    return " ".join(map(quote, words))


def comment(text: str) -> str:
    """`text` after a ``#``, on one line."""
    return harmless_text(text).replace("\n", " ")


def _as_bytes(match: re.Match[str]) -> str:
    return "".join(f"\\x{byte:02x}" for byte in match[0].encode())


def line(command: Command, *, is_remote: bool) -> str:
    """The command; of another machine's the paths that we made are its own."""
    program, *words = command.argv
    shown = [_there(program) if is_remote else quote(program)]
    for word in words:
        is_path = is_remote and remote.is_ours(word, command)
        shown.append(_there(word) if is_path else quote(word))
    return " ".join(shown)


def start(task: TaskPlan) -> str:
    """The line that starts a task in its folder."""
    far = task.node != LOCAL
    where = folder(task.command.cwd, is_remote=far)
    return f"cd {where} && {line(task.command, is_remote=far)}"


def folder(path: str, *, is_remote: bool) -> str:
    return _there(path) if is_remote else quote(path)


def value(var: EnvVar, *, is_remote: bool) -> str:
    is_path = var.source.endswith(("tfcluster", ".data_dir"))
    return _there(var.shown) if is_remote and is_path and not var.secret else quote(var.shown)


def _there(path: str) -> str:
    """Quoted, but for the names that the node's shell is to fill in: its home, and the run."""
    pieces = [piece for piece in _NAMES.split(path) if piece]
    return "".join(map(_piece, pieces)) or "''"


def _piece(text: str) -> str:
    if text == remote.RUN:
        return f'"{text}"'
    if text == "~":
        return '"$HOME"'
    return f'"$HOME"{remote.CACHE[1:]}' if text == remote.CACHE else quote(text)
