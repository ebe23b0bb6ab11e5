"""A function that exports a spec, as `tfcluster export` does, and what it returned."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tfcluster.export.request import Exported, Request, export
from tfcluster.spec import UNCHANGED

SCRIPT = {"script": "train.py"}


@dataclass(frozen=True)
class Compose:
    """A Compose file, as Compose reads it."""

    exported: Exported

    @property
    def text(self) -> str:
        return self.exported.text

    @property
    def file(self) -> dict[str, Any]:
        return dict(yaml.safe_load(self.text))

    def service(self, name: str = "worker-0") -> dict[str, Any]:
        return dict(self.file["services"][name])

    def env(self, name: str = "worker-0") -> dict[str, str]:
        """Return the variables of a container, of which none refers to a variable of Compose."""
        raw: dict[str, str] = self.service(name)["environment"]
        assert all("$" not in value.replace("$$", "") for value in raw.values())
        return {key: value.replace("$$", "$") for key, value in raw.items()}

    def cluster(self, name: str = "worker-0") -> dict[str, Any]:
        return dict(json.loads(self.env(name)["TF_CONFIG"])["cluster"])


Exporter = Callable[..., Exported]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose cache holds the bundle for all tests."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def exported(tmp_path: Path, cache: Path) -> Exporter:
    """Return a function that exports a spec of two workers to `tmp_path`."""

    def build(
        name: str, sections: dict[str, Any] | None = None, *, folder: Path = tmp_path, **given: Any
    ) -> Exported:
        spec = {"name": "lab", "cluster": {"worker": 2}, "job": SCRIPT, **(sections or {})}
        (tmp_path / "train.py").touch()
        (tmp_path / "spec.json").write_text(json.dumps(spec))
        values: dict[str, Any] = {
            "spec": str(tmp_path / "spec.json"),
            "options": UNCHANGED,
            "file": "compose.yaml",
            "folder": str(folder),
            "user": "1234:1234",
            "tfcluster": ("/opt/lab/bin/tfcluster",),
            "environ": {"HOME": str(cache), "PATH": "/usr/bin:/bin"},
        }
        return export(name, Request(**values | given))

    return build


@pytest.fixture
def compose(exported: Exporter) -> Callable[..., Compose]:
    """Return a function that exports a spec of two workers as a Compose file."""
    return lambda sections=None, **given: Compose(exported("compose", sections, **given))
