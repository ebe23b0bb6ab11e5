"""The end of a failed task's log in a few lines, as panels, pages and reports show it.

The script's own lines and its exception come first. TensorFlow's native lines stay only where they
may say why the task ended, and of a traceback the frames of the user's code. Long lines and dumps
of arrays are shortened. The log itself is complete, and every view names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from tfcluster.rundir.task_logs import last_lines
from tfcluster.supervision import log_errors
from tfcluster.ui.formats import plural
from tfcluster.ui.lines import sanitize
from tfcluster.ui.native_lines import NativeFilter, has_native_form, split_native

if TYPE_CHECKING:
    from pathlib import Path

LINES: Final = 20
_BYTES: Final = 256 * 1024
_WIDTH: Final = 400
_LEAST_NUMBERS: Final = 5
"""Consecutive lines of numbers from which on only the first and the last one are shown."""
_NATIVE_END: Final = 3
"""Native lines after the script's last line that are shown."""
_TRACEBACK: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'(\s+)File "([^"]+)", line \d+')
_LIBRARY: Final = re.compile(r".*/(?:site|dist)-packages/([\w.-]+?)(?:/|\.pyc?$)")
_OWN: Final = re.compile(r".*/(tfcluster)_workers/")
_GENERATED: Final = "/__autograph_generated_file"
_NUMBERS: Final = re.compile(r"(?=.*\d)[-+\d.,;:\s\[\](){}…eEnaif]+")
_CONTINUES: Final = re.compile(
    rb"Additional GRPC error|:(?:UNKNOWN:.*)?\{|\t \[\[|The error could be"
)
"""The lines after the first one of a native message."""
_ECHO: Final = re.compile(rb"StartAbort |Aborting \w+ with |Local rendezvous is |SIGTERM caught")
"""Native lines that repeat an exception, or say that tfcluster stops the task."""


def excerpt(path: Path, count: int = LINES) -> tuple[str, ...]:
    """Return the end of the log of a failed task in at most `count` lines, sanitized."""
    lines = split_native(b"\n".join(last_lines(path, within=_BYTES))).split(b"\n")
    block = sanitize(b"\n".join(_without_native(lines)) + b"\n", colours=False)
    text = log_errors.remove_noise(block.decode().removesuffix("\n"), keeps_stacks=True)
    shown = _without_gaps(_fold_numbers(_fold_frames(text.split("\n"))))
    return tuple(_cut(line) for line in _end(shown, count))


def _without_native(lines: Sequence[bytes]) -> list[bytes]:
    """Return `lines` without native messages, but for those that may say why the task ended.

    These are the last ones after the script's last line, or the errors before its exception. All
    stay if the script wrote nothing.
    """
    is_shown = NativeFilter()
    native: dict[int, bool] = {}
    """The numbers of native lines → whether the line may say why the task ended."""
    for number, line in enumerate(lines):
        if not is_shown(line + b"\n"):
            native[number] = False
        elif has_native_form(line):
            native[number] = not _ECHO.search(line)
        elif number - 1 in native and _CONTINUES.match(line):
            native[number] = False
    script = [number for number, line in enumerate(lines) if line and number not in native]
    if not script:
        return list(lines)
    if raised := [number for number in script if lines[number].endswith(_TRACEBACK.encode())]:
        errors = [n for n in native if n < raised[-1] and has_native_form(lines[n], level=b"E")]
        reasons = [number for number in errors if native[number]]
    else:
        reasons = [number for number in native if number > script[-1]]
    kept = {*reasons[-_NATIVE_END:]}
    return [line for number, line in enumerate(lines) if number not in native or number in kept]


def _fold_frames(lines: Sequence[str]) -> Iterator[str]:
    """Yield `lines` with one line for consecutive frames of a traceback that are not the user's."""
    folded: list[str] = []
    indent, is_inside = "", False
    for line in lines:
        frame = _FRAME.match(line)
        if frame is not None and log_errors.is_foreign(frame[2]):
            indent, is_inside = frame[1], True
            folded.append(_library_of(frame[2]))
        elif not is_inside or frame is not None or not _belongs(line, indent):
            if folded:
                libraries = ", ".join(dict.fromkeys(folded))
                yield f"{indent}… {plural(len(folded), 'frame')} in {libraries}"
            folded, is_inside = [], False
            yield line
    if folded:
        yield f"{indent}… {plural(len(folded), 'frame')} in {', '.join(dict.fromkeys(folded))}"


def _belongs(line: str, indent: str) -> bool:
    """Return whether `line` is the code of a frame, or an empty line between two frames."""
    return not line.strip(" ^~") or line.startswith((f"{indent} ", f"{indent}["))


def _library_of(file: str) -> str:
    if _GENERATED in file:
        return "tensorflow"
    library = _LIBRARY.match(file) or _OWN.match(file)
    return library[1] if library is not None else "Python"


def _fold_numbers(lines: Iterator[str]) -> Iterator[str]:
    for is_numbers, group in groupby(lines, lambda line: _NUMBERS.fullmatch(line) is not None):
        block = list(group)
        if is_numbers and len(block) >= _LEAST_NUMBERS:
            yield from (block[0], f"… {len(block) - 2:,} lines of numbers …", block[-1])
        else:
            yield from block


def _without_gaps(lines: Iterator[str]) -> list[str]:
    """Return `lines` without empty lines at both ends, and one where several follow each other."""
    shown: list[str] = []
    for line in lines:
        if line.strip() or (shown and shown[-1].strip()):
            shown.append(line)
    return shown[:-1] if shown and not shown[-1].strip() else shown


def _end(lines: list[str], count: int) -> list[str]:
    """Return the last `count` lines; of a traceback that is longer, both ends."""
    begin = max(
        (n for n, line in enumerate(lines) if line.endswith(_TRACEBACK)), default=len(lines)
    )
    raised = lines[begin:]
    if len(raised) <= count or count < 3:
        return lines[-count:]
    head = 2 * count // 3
    tail = count - head - 1
    return [*raised[:head], f"… {len(raised) - head - tail:,} lines …", *raised[-tail:]]


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[:_WIDTH]} … ({len(line):,} characters)"
