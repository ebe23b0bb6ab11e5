"""Pure work on blocks of whole lines, in C speed: no Python per line on the hot path."""

from __future__ import annotations

import re

_LINE_ENDS = re.compile(rb"\r+\n")
_OVERWRITTEN = re.compile(rb"(?m)^[^\n]*\r")
_UNSAFE = re.compile(
    "\x1b\\[[0-9;:]*m"  # colours: the only sequences a task may send to the screen
    "|[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline
    "\u202a-\u202e\u2066-\u2069]"  # text direction overrides
)
_ANY_SEQUENCE = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\))")


def latest_states(block: bytes) -> bytes:
    """Of every line only what stands after its last carriage return: a progress bar's last state.

    `block` is whole lines; a carriage return just before the newline is part of the line's end.
    """
    if b"\r" not in block:
        return block
    return _OVERWRITTEN.sub(b"", _LINE_ENDS.sub(b"\n", block))


def latest_state(partial: bytes) -> bytes:
    """The same for a line that has no newline yet."""
    return partial.rstrip(b"\r").rpartition(b"\r")[2]


def attribute(block: bytes, prefix: bytes) -> bytes:
    """`prefix` before every line of `block` (whole lines, at least one)."""
    return b"".join((prefix, block[:-1].replace(b"\n", b"\n" + prefix), b"\n"))


def harmless(block: bytes, *, colours: bool) -> bytes:
    """`block` as a terminal may get it: nothing moves the cursor, rings, or renames the window.

    Colour sequences stay where `colours`, and end with their line; other sequences go, other
    control characters become their pictures (␀ ␇ ␛), what is no UTF-8 becomes �.
    """
    return _safe(block.decode("utf-8", "replace"), colours=colours).encode()


def harmless_text(text: str) -> str:
    """The same for a text that no task may colour: an exception's message, a metric's name."""
    return _safe(text, colours=False)


def _safe(text: str, *, colours: bool) -> str:
    if _UNSAFE.search(text) is None:
        return text
    coloured = False

    def safe(match: re.Match[str]) -> str:
        nonlocal coloured
        found = match[0]
        if len(found) > 1:
            coloured = colours
            return found if colours else ""
        code = ord(found)
        return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else "�"

    text = _UNSAFE.sub(safe, _ANY_SEQUENCE.sub(_colour_only, text))
    return text.replace("\n", "\x1b[0m\n") if coloured else text


def _colour_only(match: re.Match[str]) -> str:
    sequence = match[0]
    return sequence if _UNSAFE.fullmatch(sequence) else ""


def matching(block: bytes, pattern: re.Pattern[bytes]) -> bytes:
    """The lines of `block` in which `pattern` is found."""
    if pattern.search(block) is None:
        return b""
    found = [line + b"\n" for line in block[:-1].split(b"\n") if pattern.search(line)]
    return b"".join(found)
