"""What a release needs is filled in by one command; licences are allowed by name."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from tools.release import commands, installs, publishing, supply


def test_every_address_of_the_project_has_the_owner_of_pyproject() -> None:
    (owner,) = publishing.owners(publishing.address()[0])
    named = {path.name: publishing.owners(path.read_text("utf-8")) for path in publishing.texts()}
    assert named["pyproject.toml"]
    for path, owners in named.items():
        assert owners <= {owner, owner.lower()}, path


def test_the_owner_is_filled_into_every_address_and_nowhere_else() -> None:
    before = (
        "https://github.com/OWNER/tfcluster/issues https://OWNER.github.io/tfcluster/"
        " ghcr.io/OWNER/tfcluster-worker:0.2.0 uses: OWNER/tfcluster@v1"
        " github.com/OWNER/other OWNER"
    )
    assert publishing.with_owner(before, "Anna") == (
        "https://github.com/Anna/tfcluster/issues https://anna.github.io/tfcluster/"
        " ghcr.io/anna/tfcluster-worker:0.2.0 uses: Anna/tfcluster@v1 github.com/OWNER/other OWNER"
    )


def test_the_day_goes_into_the_heading_that_has_none() -> None:
    assert publishing.dated("## [0.2.0] - YYYY-MM-DD\n## [0.1.0] - 2026-01-01", "2026-12-01") == (
        "## [0.2.0] - 2026-12-01\n## [0.1.0] - 2026-01-01"
    )


@pytest.mark.parametrize(
    ("licence", "is_allowed"),
    [
        ("MIT", True),
        ("GPL-2.0-or-later OR Apache-2.0", True),
        ("Apache-2.0 AND MIT", True),
        ("MPL-2.0 AND GPL-3.0-only", False),
        ("Mozilla Public License 2.0 (MPL 2.0)", True),
        ("MIT License; GNU General Public License v3 (GPLv3)", False),
        ("UNKNOWN", False),
    ],
)
def test_a_licence_is_allowed_only_if_every_part_of_it_is(licence: str, is_allowed: bool) -> None:
    assert supply.is_allowed(licence) is is_allowed


@pytest.mark.parametrize(
    ("package", "expected"),
    [
        ({"version": "1.0", "vulns": []}, None),
        ({"version": "1.0", "vulns": [{"id": "CVE-1", "fix_versions": ["1.1"]}]}, commands.Failed),
        ({"skip_reason": "Dependency not found"}, commands.NotRun),
    ],
)
def test_an_audit_passes_only_if_its_service_knows_every_package(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: dict[str, object],
    expected: type[Exception] | None,
) -> None:
    (tmp_path / "lib/python3.11/site-packages").mkdir(parents=True)
    answer = {
        "dependencies": [{"name": "rich"} | package, {"name": "tfcluster", "skip_reason": ""}]
    }
    monkeypatch.setattr(supply, "_environments", lambda: {"wheel": tmp_path})
    monkeypatch.setattr(supply, "run", lambda *_, **__: json.dumps(answer))
    with pytest.raises(expected) if expected else nullcontext():
        assert supply.audit() == "wheel: 1 packages"


def test_the_example_is_the_readme_block_that_installs_tfcluster() -> None:
    first = "```console\n$ make up\n```\n"
    second = "```console\n$ pip install 'tfcluster[ui]'  # x\n$ tfcluster up a\n```\n"
    assert installs.example(first + second) == ("[ui]", [["tfcluster", "up", "a"]])
