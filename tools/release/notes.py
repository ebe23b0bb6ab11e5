"""Prints the CHANGELOG's section of a release; fails unless the tag is the version of the package.

`python3 tools/release/notes.py v0.2.0`. Standard library only: nothing is installed when it runs.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(tag: str) -> None:
    init = (ROOT / "launcher/tfcluster/__init__.py").read_text(encoding="utf-8")
    version = re.findall(r'^__version__ = "(.+)"', init, re.MULTILINE)[0]
    if tag != f"v{version}":
        raise SystemExit(f"the tag {tag} is not v{version}, the version in launcher/tfcluster")
    notes = section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    if not notes:
        raise SystemExit(f"CHANGELOG.md has no section [{version}], or it is empty")
    sys.stdout.write(f"{unwrapped(notes)}\n")


def section(changelog: str, version: str) -> str:
    """Return the text below the heading of `version`, or an empty string."""
    heading = rf"^## \[{re.escape(version)}\][^\n]*\n"
    _, *found = re.split(heading, changelog, maxsplit=1, flags=re.MULTILINE)
    return (
        re.split(r"^(?:## |\[[^\]]+\]: )", found[0], flags=re.MULTILINE)[0].strip() if found else ""
    )


def unwrapped(text: str) -> str:
    """Return the text with each paragraph on one line: a release's page shows every line break."""
    return re.sub(r"(?<=\S)\n(?!\n|#|\s*[-*] )\s*", " ", text)


if __name__ == "__main__":
    main(*sys.argv[1:])
