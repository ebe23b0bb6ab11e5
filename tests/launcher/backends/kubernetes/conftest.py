"""A kubeconfig of the test's own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(path))
    for name in [each for each in os.environ if each.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    return path


def write_one(path: Path, user: object, **cluster: object) -> None:
    config = {
        "clusters": [{"name": "lab", "cluster": {"server": "https://lab:6443/", **cluster}}],
        "users": [{"name": "me", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "lab", "user": "me", "namespace": "n"}}],
        "current-context": "c",
    }
    path.write_text(json.dumps(config))
