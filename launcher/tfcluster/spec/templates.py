"""The specs that tfcluster ships: the templates of `tfcluster init`."""

from __future__ import annotations

from pathlib import Path

from tfcluster.errors import UsageError

FOLDER = "cluster_specs"
"""The folder of the specs in the source tree; users call theirs so, too."""


def templates() -> dict[str, Path]:
    """Return name → file of the templates, in the wheel or else in the source tree.

    Raises UsageError for a broken installation.
    """
    package = Path(__file__).parents[1]
    for folder in (package / "templates", package.parents[1] / FOLDER):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.json"))}
    fix = "reinstall it: pip install --force-reinstall tfcluster"
    raise UsageError("the templates are missing from this installation", fix=fix)
