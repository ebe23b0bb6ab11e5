"""Writes the files that are made from the code: JSON schema, pages of the reference, man page.

`make generated` runs this in the checkout whose `launcher/` is imported.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.generated import command_page, event_page, man_page, schema, spec_page

from tfcluster.spec import published_schema


def main() -> None:
    shipped = Path(published_schema.__file__).with_name(published_schema.SCHEMA_FILE)
    reference = shipped.parents[3] / "docs/reference"
    _write(shipped, schema.render())
    published_schema.schema.cache_clear()  # the page is made from the file just written
    _write(reference / "spec.md", spec_page.render())
    _write(reference / "commands.md", command_page.render())
    _write(reference / "events.md", event_page.render())
    _write(shipped.parents[2] / "man/tfcluster.1", man_page.render())


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}: updated\n")


if __name__ == "__main__":
    main()
