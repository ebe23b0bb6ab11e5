"""A node preloads modules for its tasks: a missing name is skipped, a missing module an error."""

from __future__ import annotations

import pytest

from tfcluster_workers.preload.importer import import_all


@pytest.mark.parametrize("name", ["json:gone", "json:gone.Part", "json:decoder.JSONDecoder"])
def test_a_name_that_a_release_lacks_is_skipped(name: str) -> None:
    assert import_all([name], is_path_safe=False) == ""


def test_a_missing_module_is_an_error() -> None:
    assert "no_such_module" in import_all(["no_such_module"], is_path_safe=False)
