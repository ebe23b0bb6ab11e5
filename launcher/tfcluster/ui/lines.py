"""Pure work on blocks of whole lines, in C speed: no Python per line on the hot path.

What comes from tasks, hosts, daemons and specs may hold escape sequences that write the clipboard
(OSC 52), move the cursor or rename the window. `harmless` and its kin are what stands between them
and a screen: `MergedLogs` calls it for the tasks' lines, `Terminal` for everything else.
"""

from __future__ import annotations

import re

_LINE_ENDS = re.compile(rb"\r+\n")
_OVERWRITTEN = re.compile(rb"(?m)^[^\n]*\r")
_PLAIN = bytes((0x09, 0x0A, *range(0x20, 0x7F)))
"""What most lines are made of: nothing of it can harm a screen."""
_COLOUR = r"\[[0-9;:]*m"
_SEQUENCE = r"(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))"
_CONTROLS = (
    "\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f"  # but tab, newline and escape
    "\u202a-\u202e\u2066-\u2069"  # text direction overrides
)
_RAW_IN_JSON = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What `json.dumps` without `ensure_ascii` leaves as it is, newlines between values apart."""
_SEQUENCES = {
    True: re.compile(f"\x1b(?!{_COLOUR}){_SEQUENCE}"),
    False: re.compile(f"\x1b{_SEQUENCE}"),
}
"""Those that go, by whether colours stay: they are the only ones that a screen may get."""
_CHARACTERS = {
    True: re.compile(f"\x1b(?!{_COLOUR})|[{_CONTROLS}]"),
    False: re.compile(f"[\x1b{_CONTROLS}]"),
}


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
    if not block.translate(None, _PLAIN):
        return block
    return _safe(block.decode("utf-8", "replace"), colours=colours).encode()


def harmless_text(text: str) -> str:
    """The same for a text that nobody else may colour: an exception's message, a metric's name."""
    return _safe(text, colours=False)


def harmless_but_colours(text: str) -> str:
    """The same for a text that we have coloured."""
    return _CHARACTERS[True].sub(_picture, _SEQUENCES[True].sub("", text))


def escaped_json(text: str) -> str:
    """JSON of the same value, in which control characters and halves of characters are escaped."""
    return _RAW_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _safe(text: str, *, colours: bool) -> str:
    text = _CHARACTERS[colours].sub(_picture, _SEQUENCES[colours].sub("", text))
    # An escape that is still there begins a colour.
    return text.replace("\n", "\x1b[0m\n") if "\x1b" in text else text


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else "�"


def matching(block: bytes, pattern: re.Pattern[bytes]) -> bytes:
    """The lines of `block` in which `pattern` is found."""
    if pattern.search(block) is None:
        return b""
    found = [line + b"\n" for line in block[:-1].split(b"\n") if pattern.search(line)]
    return b"".join(found)
