"""A run knows the links between its nodes: what `doctor --deep` measured, or a simulated rate."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.launcher.preflight.test_link_speed import plan_over

from tfcluster.preflight.known_links import known_link, remember
from tfcluster.preflight.preflight_report import MeasuredAllReduce, PreflightReport
from tfcluster.spec.sections import Runtime


def report_of(*measured: MeasuredAllReduce) -> PreflightReport:
    return PreflightReport(("a", "b"), (), (), all_reduces=measured)


def test_the_ring_of_all_workers_is_remembered_for_the_same_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFCLUSTER_HOME", str(tmp_path / "home"))
    plan = plan_over("a", "b", "a")
    assert known_link(plan, None) is None
    link = MeasuredAllReduce("RING", ("worker:0", "worker:1"), ("a", "b"), 1.0)
    ring = MeasuredAllReduce("RING", ("worker:0", "worker:1", "worker:2"), ("a", "b", "a"), 0.5)
    nccl = MeasuredAllReduce("NCCL", ("worker:0", "worker:1"), ("a", "b"), 0.1)
    remember(report_of(link, ring, nccl), plan)
    known = known_link(plan, None)
    assert known is not None
    assert known.gb_per_s == pytest.approx(ring.link_gb_per_s, abs=1e-4)
    assert known_link(plan_over("a", "c"), None) is None
    remember(report_of(), plan)
    assert known_link(plan, None) == known
    (tmp_path / "home" / "links.json").write_text('{"a b": {"gb_per_s": "fast"}}')
    assert known_link(plan, None) is None
    (tmp_path / "home" / "links.json").write_text("[")
    assert known_link(plan, None) is None


def test_a_simulated_network_has_the_rate_of_the_spec() -> None:
    runtime = Runtime.model_validate({"backend": "simulated", "network": {"rate": "100mbit"}})
    known = known_link(plan_over("a", "b"), runtime)
    assert known is not None
    assert known.gb_per_s == pytest.approx(0.0125)
