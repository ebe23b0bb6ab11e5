"""The ready specs that `tfcluster init` starts from: in the wheel, or beside the source tree."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tfcluster.errors import UsageError


@dataclass(frozen=True, slots=True)
class Template:
    """One file of ``cluster_specs/``."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def about(self) -> str:
        """Its own one-line description, the key ``x-about``."""
        value = json.loads(self.path.read_text(encoding="utf-8"))
        return str(value.get("x-about", ""))


def folder() -> Path:
    """Where the templates lie; raises UsageError for a broken installation."""
    package = Path(__file__).parents[1]
    for candidate in (package / "templates", package.parents[1] / "cluster_specs"):
        if candidate.is_dir():
            return candidate
    fix = "install tfcluster again"
    raise UsageError("the templates are missing from this installation", fix=fix)


def templates() -> tuple[Template, ...]:
    """All of them, by name."""
    return tuple(Template(path) for path in sorted(folder().glob("*.json")))


def find(name: str) -> Template:
    """Raises UsageError with the list of names for one that there is not."""
    known = {template.name: template for template in templates()}
    if found := known.get(name.removesuffix(".json")):
        return found
    raise UsageError(f"no template is named {name!r}", fix=f"one of {', '.join(known)}")
