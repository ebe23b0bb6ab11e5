"""Removes from text what could change a terminal: escape sequences and control characters.

Text from tasks, hosts, daemons and specs may hold escape sequences that write the clipboard
(OSC 52), move the cursor or rename the window.
"""

from __future__ import annotations

import re

_COLOUR = r"\[[0-9;:]*m"
_SEQUENCE = r"(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))"
_CONTROLS = (
    "\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f"  # all but tab, newline and escape
    "\u202a-\u202e\u2066-\u2069"  # text direction overrides
)
_SEQUENCES = {
    True: re.compile(f"\x1b(?!{_COLOUR}){_SEQUENCE}"),
    False: re.compile(f"\x1b{_SEQUENCE}"),
}
"""Escape sequences to remove, by whether colours stay; no other sequence may reach a screen."""
ANY_CONTROL = re.compile(f"[\x1b{_CONTROLS}]")
_CHARACTERS = {
    True: re.compile(f"\x1b(?!{_COLOUR})|[{_CONTROLS}]"),
    False: ANY_CONTROL,
}


def remove_controls(text: str, *, colours: bool = False) -> str:
    """Return `text` without escape sequences, but for colours if they are to stay.

    Other control characters become their pictures (␀ ␇ ␛).
    """
    return _CHARACTERS[colours].sub(_replace_control, _SEQUENCES[colours].sub("", text))


def _replace_control(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else "�"
