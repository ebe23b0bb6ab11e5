"""Launcher and workers agree on the patched releases of Keras 3; neither imports the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfcluster.plans import keras_settings as launchers

WORKERS = Path(__file__).parents[2] / "workers"


def test_launcher_and_workers_patch_the_same_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(WORKERS))
    from tfcluster_workers.keras3 import release

    assert launchers.TESTED == release.TESTED
    assert launchers.SWITCH == release.SWITCH
    for version in ("3.2.1", "3.3.0", "3.15.1", "3.15.2", "3.16.0rc1", "3.9.0.dev1", "2.15.0", ""):
        assert launchers.is_patchable(version) == release.is_patchable(version), version
        assert launchers.is_newer(version) == release.is_newer(version), version
