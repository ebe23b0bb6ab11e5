"""The spec templates of `tfcluster init`, found in the wheel or in the source tree."""

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
        """The template's one-line description, from its key ``x-about``."""
        value = json.loads(self.path.read_text(encoding="utf-8"))
        return str(value.get("x-about", ""))


def folder() -> Path:
    """Return the folder of the templates; raises UsageError for a broken installation."""
    package = Path(__file__).parents[1]
    for candidate in (package / "templates", package.parents[1] / "cluster_specs"):
        if candidate.is_dir():
            return candidate
    fix = "reinstall it: pip install --force-reinstall tfcluster"
    raise UsageError("the templates are missing from this installation", fix=fix)


def templates() -> tuple[Template, ...]:
    """Return all templates, sorted by name."""
    return tuple(Template(path) for path in sorted(folder().glob("*.json")))


def find(name: str) -> Template:
    """Return the template called `name`; raises UsageError, with all names, for an unknown one."""
    known = {template.name: template for template in templates()}
    if found := known.get(name.removesuffix(".json")):
        return found
    raise UsageError(f"there is no template {name!r}", fix=f"use one of {', '.join(known)}")
