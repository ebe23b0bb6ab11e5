"""The steps of a release that need a person: the owner, the date, the accounts, the tag."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from .build_hooks import PLACEHOLDER
from .commands import ROOT, Failed, say

_VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
_UNDATED = "YYYY-MM-DD"
_ADDRESS = re.compile(
    r"(?P<before>github\.com/|uses: |https://)(?P<owner>[\w-]+)"
    r"(?P<after>/tfcluster\b|\.github\.io/tfcluster\b)"
)
"""An address of this project, or its GitHub Action; hosts are in lower case."""


def address() -> tuple[str, str]:
    """Return the addresses of the repository and of the documentation."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    table = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]
    return table["repository"], table["documentation"]


def version() -> str:
    """Return the version in the sources."""
    found = _VERSION.search((ROOT / "launcher/tfcluster/__init__.py").read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


def owners(text: str) -> set[str]:
    """Return the owners in the addresses of this project that a text names."""
    return {found["owner"] for found in _ADDRESS.finditer(text)}


def with_owner(text: str, owner: str) -> str:
    """Return the text with this owner in every address of this project."""

    def fill(found: re.Match[str]) -> str:
        name = owner if found["before"] in ("github.com/", "uses: ") else owner.lower()
        return f"{found['before']}{name}{found['after']}"

    return _ADDRESS.sub(fill, text)


def dated(changelog: str, day: str) -> str:
    """Return the changelog with a day in the heading that has none."""
    return changelog.replace(f"] - {_UNDATED}", f"] - {day}")


def texts() -> Iterator[Path]:
    """Yield every text file that git tracks, except tests."""
    command = ["git", "grep", "-Il", "", "--", ":!tests"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    yield from (ROOT / name for name in names.stdout.splitlines())


def prepare(owner: str) -> None:
    """Write the owner into every address, and today into the changelog, of the files in git."""
    for path in texts():
        text = path.read_text(encoding="utf-8")
        changed = with_owner(text, owner)
        if path.name == "CHANGELOG.md":
            changed = dated(changed, date.today().isoformat())
        if changed != text:
            path.write_text(changed, encoding="utf-8")
            say(f"{path.relative_to(ROOT)}: changed")


def check_ready() -> str:
    """Check that nothing is left to fill in, and that HEAD has the version's tag. Raises Failed."""
    if missing := [*unfinished()]:
        raise Failed("\n".join(missing))
    return f"v{version()}"


def unfinished() -> Iterator[str]:
    """Yield what a person must do before this release can be published, in this order."""
    if owners(address()[0]) == {PLACEHOLDER} or _UNDATED in (ROOT / "CHANGELOG.md").read_text():
        yield (
            "the owner (the account that has the repository) and the date:"
            " .venv-release/bin/python -m tools.release prepare OWNER, then commit"
        )
    if f"[{version()}]" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        yield f"CHANGELOG.md has no section [{version()}]"
    tags = subprocess.run(["git", "tag", "--points-at"], cwd=ROOT, capture_output=True, text=True)
    if f"v{version()}" not in tags.stdout.split():
        yield f"the tag: git tag -s v{version()} && git push origin v{version()}"


ONCE = (
    "an account at the package index, with release.yml of this repository and its environment"
    " `pypi` as trusted publisher of tfcluster",
    "in the settings of the repository: the environment `pypi`; Pages by GitHub Actions, and tags"
    " `v*` among those that may deploy to the environment `github-pages`; private reports of"
    " vulnerabilities; the variable CONTAINER_REGISTRY, the host of the registry of the images",
    "after the first release: make the images public in the container registry, and send"
    " tools/release/schemastore.json to SchemaStore",
)


def print_what_is_left() -> None:
    """Print what a person has to do for this release."""
    say("\nA person has to do:")
    for line in [*(f"once: {line}" for line in ONCE), *unfinished()]:
        say(f"  - {line}")
