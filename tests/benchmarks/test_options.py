"""The options of `python -m benchmarks --quick`."""

from __future__ import annotations

import sys

import pytest
from benchmarks.__main__ import _options
from benchmarks.results import RESULTS


def test_quick_results_go_to_a_folder_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "start"])
    assert _options().into == RESULTS
    monkeypatch.setattr(sys, "argv", ["benchmarks", "start", "--quick"])
    assert _options().into == RESULTS / "quick"


def test_quick_refuses_a_slow_metric(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "start", "threads-2", "--quick"])
    with pytest.raises(SystemExit) as refused:
        _options()
    assert refused.value.code == 2
    assert "threads-2: no smoke test; leave out the name or --quick" in capsys.readouterr().err
