"""What a user may have meant by a key that the spec does not have."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from tfcluster.spec import published
from tfcluster.spec.fields import Finding, Path, shorten

_OTHER_WORDS = {
    "coordinator": "chief",
    "cmd": "command",
    "cwd": "workdir",
    "entrypoint": "script",
    "environment": "env",
    "eval": "evaluator",
    "master": "chief",
    "parameter_server": "ps",
    "retries": "max_restarts",
    "servers": "ps",
    "timeout": "run_deadline_s",
}


def unknown_key(path: Path) -> Finding:
    """The finding for the key at the end of `path`: a near name, its right place, or the list."""
    key, parent = str(path[-1]), path[:-1]
    known = sorted(published.keys_at(parent))
    message = f"unknown key {shorten(key)}" + (f" in {shown(parent)}" if parent else "")
    word = _OTHER_WORDS.get(key.lower(), key)
    near = [word] if word in known else difflib.get_close_matches(key.lower(), known, n=1)
    if near:
        cure = f'did you mean "{near[0]}"?'
    elif elsewhere := published.homes_of(word):
        cure = f"it belongs to {' or '.join(elsewhere)}"
    elif known:
        cure = f"known here: {', '.join(known)}; keys that begin with x- are ignored"
    else:
        cure = "remove it"
    return Finding(path, message, cure, on_key=True)


def dotted(path: Iterable[str | int]) -> str:
    """``supervision.grace_s``, as ``--set`` takes it."""
    return ".".join(str(part) for part in path)


def shown(path: Iterable[str | int]) -> str:
    """The same for messages: a part that would tear the line is quoted and cut."""
    parts = (str(part) for part in path)
    return ".".join(
        part if part.isprintable() and len(part) < 60 else shorten(part) for part in parts
    )
