"""Finding runs, and what they take on disk."""

from __future__ import annotations

from pathlib import Path

from tfcluster.run import registry


def test_the_size_of_all_runs_is_counted_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "runs" / "one" / "logs").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "logs" / "worker-0.log").write_bytes(b"x" * 1000)
    (tmp_path / "runs" / "one" / "state.json").write_bytes(b"x" * 24)
    outside = tmp_path / "outside"
    outside.write_bytes(b"x" * 5000)
    (tmp_path / "runs" / "one" / "link").symlink_to(outside)
    link_bytes = len(str(outside))
    assert registry.bytes_of(tmp_path) == 1024 + link_bytes
