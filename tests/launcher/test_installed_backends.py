"""Backends of other packages are found by their entry points, and only if they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tfcluster import kinds
from tfcluster.errors import SetupError, SpecError
from tfcluster.spec import PlanOptions, published_schema
from tfcluster.spec.load import load
from tfcluster.spec.sections import Runtime

MODULE = """
from tfcluster.kinds import BackendKind, Capabilities
from tfcluster.spec.fields import Section, documented


class Rack(Section):
    size: int = documented(1, "Machines in a rack.", 2)


class Racks(Section):
    names: dict[str, Rack] = documented({}, "The racks.", {"a": {"size": 2}})
    image: str | None = documented(None, "The image.", "tf")


class RackKind(BackendKind):
    capabilities = Capabilities(makes_nodes=True)
    section = "own_racks:Racks"


KIND = RackKind()
"""
JOB = {"cluster": {"worker": 1}, "job": {"command": ["true"]}}


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package with the backend `rack` and the backend `broken`."""
    (tmp_path / "own_racks.py").write_text(MODULE)
    metadata = tmp_path / "own_racks-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: own-racks\nVersion: 1.0\n")
    points = "rack = own_racks:KIND\nbroken = own_racks:NOTHING\n"
    (metadata / "entry_points.txt").write_text(f"[tfcluster.backends]\n{points}")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    kinds.get.cache_clear()
    kinds.find_offer.cache_clear()
    published_schema.schema.cache_clear()
    published_schema._package_section.cache_clear()


def test_the_section_is_validated_by_the_packages_model_and_kept() -> None:
    racks = {"names": {"a": {"size": 3}}, "x-note": 1}
    written = JOB | {"runtime": {"backend": "rack", "rack": racks}}
    spec = load(written, PlanOptions(("runtime.rack.names.b.size=4", "runtime.rack.image=7"))).spec
    section = spec.runtime.section("rack")
    assert {name: rack.size for name, rack in section.names.items()} == {"a": 3, "b": 4}
    assert section.image == "7"
    kept = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert kept["runtime"]["rack"] == {"names": {"a": {"size": 3}, "b": {"size": 4}}, "image": "7"}
    assert load(kept, is_complete=True).spec == spec
    assert Runtime.model_validate({"backend": "rack"}).section("rack").image is None


def test_all_mistakes_of_a_section_are_reported_with_the_others() -> None:
    rack = {"names": {"a": {"size": "big"}}, "imag": "tf"}
    with pytest.raises(SpecError) as raised:
        load(JOB | {"runtime": {"rack": rack, "preload": "x", "sulrm": {}}})
    said = [problem.message for problem in raised.value.problems]
    assert any("'x' is not 'auto'" in message for message in said)
    assert "unknown key 'sulrm' in runtime" in said
    assert "unknown key 'imag' in runtime.rack" in said
    assert "runtime.rack.names.a.size: expected an integer, not 'big'" in said
    fixes = [problem.fix for problem in raised.value.problems]
    assert 'did you mean "image"?' in fixes
    assert 'did you mean "slurm"?' in fixes


def test_a_backend_that_is_missing_or_broken_is_named_with_a_fix() -> None:
    with pytest.raises(SpecError, match='did you mean "docker"'):
        load(JOB | {"runtime": {"backend": "dokcer"}})
    with pytest.raises(SetupError, match=r"backend broken of own-racks cannot be imported: .*NOTH"):
        load(JOB | {"runtime": {"backend": "broken"}})
    with pytest.raises(SetupError, match=r"no backend gone.*\n  → install its package"):
        kinds.get("gone")
    assert kinds.names()[-2:] == ("broken", "rack")
