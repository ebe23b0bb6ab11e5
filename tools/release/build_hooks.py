"""Hooks of hatchling: URLs and README of the index page, constraints without hashes in the wheel.

The address of the project comes from pyproject.toml, `[tool.hatch.metadata.hooks.custom]`.
"""

import re
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PLACEHOLDER = "OWNER"
"""The owner in every address until the first publishing (CONTRIBUTING.md, "Release")."""
IMAGE_CONSTRAINTS = ("newest.txt", "tf215.txt", "tf216.txt")
"""The constraints that `tfcluster build` chooses from; the others serve tests only."""

_RELATIVE_LINK = re.compile(r"(?P<mark>!?)\[(?P<text>[^\]]*)\]\((?P<path>(?!#|[a-z]+:)[^)\s]+)\)")
_HASH = re.compile(r" \\\n +--hash=\S+")


class MetadataHook(MetadataHookInterface):
    """Adds `[project.urls]`, and the README with absolute links."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Change the table `[project]`; hatchling calls this."""
        repository = self.config["repository"]
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_absolute_links(readme, repository, metadata["version"]),
        }
        metadata["urls"] = {
            "Documentation": self.config["documentation"],
            "Source": repository,
            "Issues": f"{repository}/issues",
            "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        }
        if PLACEHOLDER in repository:  # hints of `tfcluster` would name a dead link
            metadata["urls"] = {}


class BuildHook(BuildHookInterface[BuilderConfig]):
    """Puts the constraints of the images into the wheel, without their hashes.

    docker/pip-install removes them anyway, and they are a fifth of the wheel.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files; hatchling calls this before it builds."""
        self._folder = tempfile.TemporaryDirectory()
        for name in IMAGE_CONSTRAINTS:
            pins = (Path(self.root) / "constraints" / name).read_text(encoding="utf-8")
            path = Path(self._folder.name) / name
            path.write_text(without_hashes(pins), encoding="utf-8")
            if version != "editable":
                build_data["force_include"][str(path)] = f"tfcluster/docker/constraints/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the files; hatchling calls this after it has built."""
        self._folder.cleanup()


def with_absolute_links(readme: str, repository: str, version: str) -> str:
    """Return the README with links to files of the release's tag instead of relative ones."""

    def absolute(link: "re.Match[str]") -> str:
        kind = "raw" if link["mark"] else "blob"
        return f"{link['mark']}[{link['text']}]({repository}/{kind}/v{version}/{link['path']})"

    return _RELATIVE_LINK.sub(absolute, readme)


def without_hashes(pins: str) -> str:
    """Return constraints without the hashes: with one hash, pip requires one for every package."""
    return _HASH.sub("", pins)
