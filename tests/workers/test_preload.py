"""What a node imports ahead for its tasks; nothing of TensorFlow is started here."""

from __future__ import annotations

import pytest

from tfcluster_workers.preload.importer import import_all


@pytest.mark.parametrize("name", ["json:gone", "json:gone.Part", "json:decoder.JSONDecoder"])
def test_a_part_that_a_release_does_not_have_keeps_nobody_from_importing_ahead(name: str) -> None:
    assert import_all([name], is_path_safe=False) == ""


def test_a_module_that_is_not_there_does() -> None:
    assert "no_such_module" in import_all(["no_such_module"], is_path_safe=False)
