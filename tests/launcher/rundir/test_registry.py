"""The registry finds the run that a user means; a run whose coordinator is gone is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.launcher.conftest import MakeRun

from tfcluster.errors import UnknownRunError
from tfcluster.rundir import registry, run_writer
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import ProcessIdentity
from tfcluster.rundir.states import Status


def test_runs_are_found_by_id_suffix_name_and_spec_file(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    older = make_run("alpha", started=1.0, spec=str(tmp_path / "a.json"))
    newer = make_run("alpha", started=2.0)
    other = make_run("beta", started=3.0)

    assert registry.resolve(older.run_id) == older
    assert registry.resolve(older.run_id[-4:]) == older
    assert registry.resolve("alpha") == newer, "a name means its latest run"
    assert registry.resolve("a.json") == older
    assert registry.resolve(str(tmp_path / "a.json")) == older
    assert registry.resolve(str(tmp_path / "b" / ".." / "a.json")) == older
    assert registry.resolve(None) == other


def test_a_command_for_live_runs_prefers_the_live_run(make_run: MakeRun) -> None:
    live = make_run("alpha", status=Status.RUNNING, started=1.0)
    over = make_run("alpha", started=2.0)
    assert registry.resolve("alpha") == over
    assert registry.resolve("alpha", live_only=True) == live
    assert registry.resolve(over.run_id, live_only=True) == over


def test_an_unknown_run_is_reported_with_similar_names_or_its_scheduler(make_run: MakeRun) -> None:
    with pytest.raises(UnknownRunError, match="there is no run yet"):
        registry.resolve(None)
    make_run("resnet")
    with pytest.raises(UnknownRunError, match="--backend NAME"):
        registry.resolve("other-20261126-120000-abcd")
    with pytest.raises(UnknownRunError) as caught:
        registry.resolve("resmet")
    assert "no run is named 'resmet'" in caught.value.message
    assert "resnet" in caught.value.fix
    assert "--backend" not in caught.value.fix
    assert caught.value.exit_code == 2


def test_without_a_name_the_only_live_run_is_selected(make_run: MakeRun) -> None:
    make_run("over")
    with pytest.raises(UnknownRunError, match="no run is live"):
        registry.resolve(None, live_only=True)

    live = make_run("live", status=Status.RUNNING, started=2.0)
    assert registry.resolve(None, live_only=True) == live

    second = make_run("live", status=Status.STARTING, started=3.0)
    with pytest.raises(UnknownRunError) as caught:
        registry.resolve(None, live_only=True)
    assert live.run_id in caught.value.message
    assert second.run_id in caught.value.message
    assert "over" not in caught.value.message


def test_wait_selects_the_live_run_or_else_the_latest_background_run(make_run: MakeRun) -> None:
    older = make_run("older", started=1.0, background=True)
    newer = make_run("newer", started=2.0, background=True)
    make_run("foreground", started=3.0)
    assert registry.resolve_for_wait() == newer
    newer.waited.touch()
    assert registry.resolve_for_wait() == older
    older.waited.touch()
    with pytest.raises(UnknownRunError, match="no run is live"):
        registry.resolve_for_wait()

    live = make_run("live", status=Status.RUNNING, started=4.0)
    assert registry.resolve_for_wait() == live
    make_run("second", status=Status.RUNNING, started=5.0)
    with pytest.raises(UnknownRunError, match="2 runs are live"):
        registry.resolve_for_wait()


def test_a_lost_run_is_open_until_it_is_cleaned_up(
    make_run: MakeRun,
) -> None:
    paths = make_run(status=Status.LOST)
    lost = registry.load(paths)
    assert registry.is_open(lost)
    with pytest.raises(UnknownRunError) as caught:
        registry.resolve(None, live_only=True)
    assert f"tfcluster down {paths.run_id}" in caught.value.fix

    lost.ended_at = 1.0
    run_writer.write_json(paths.state, lost.to_json())
    assert not registry.is_open(registry.load(paths))
    with pytest.raises(UnknownRunError) as caught:
        registry.resolve(None, live_only=True)
    assert "down" not in caught.value.fix


def test_the_control_socket_is_in_the_coordinators_runtime_folder(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    paths = make_run(status=Status.RUNNING)
    state = registry.load(paths)
    assert registry.control_socket(paths, state) == paths.control_socket
    state.runtime_dir = "/run/user/1000/tfcluster"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert registry.control_socket(paths, state) == Path(
        "/run/user/1000/tfcluster", paths.control_socket.name
    )


def test_a_run_whose_coordinator_is_gone_is_lost(make_run: MakeRun) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    for pid in (gone.pid, 1):  # the second is in use, with another start time
        paths = make_run(status=Status.RUNNING, pid=pid)
        assert registry.load(paths).status is Status.LOST
    assert registry.load(make_run(status=Status.RUNNING)).status is Status.RUNNING


def test_a_run_that_ends_while_it_is_read_is_not_lost(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = make_run(status=Status.RUNNING)
    over = make_run(exit_code=143, status=Status.INTERRUPTED)

    def end_before_check(identity: ProcessIdentity) -> bool:
        paths.state.write_bytes(over.state.read_bytes())
        return False

    monkeypatch.setattr(ProcessIdentity, "is_alive", end_before_check)
    assert registry.load(paths).status is Status.INTERRUPTED


def test_ids_are_unique_and_easy_to_type() -> None:
    ids = {registry.new_run_id("demo", 0.0) for _ in range(200)}
    assert len(ids) >= 195, "of a million ids, five clashes among 200 do not happen"
    assert not set("0o1l") & set("".join(found[-4:] for found in ids))


def test_delete_removes_the_socket_of_a_killed_coordinator_and_the_link_latest(
    make_run: MakeRun,
) -> None:
    older, paths = make_run(), make_run(status=Status.LOST)
    latest = paths.root.parent.parent / "latest"
    registry.delete(older)
    assert latest.resolve() == paths.root.resolve()
    paths.control_socket.parent.mkdir(parents=True, exist_ok=True)
    paths.control_socket.touch()
    registry.delete(paths)
    assert not paths.root.exists()
    assert not paths.control_socket.exists()
    assert not latest.is_symlink()


def test_the_size_of_all_runs_is_counted_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "runs" / "one" / "logs").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "logs" / "worker-0.log").write_bytes(b"x" * 1000)
    (tmp_path / "runs" / "one" / "state.json").write_bytes(b"x" * 24)
    outside = tmp_path / "outside"
    outside.write_bytes(b"x" * 5000)
    (tmp_path / "runs" / "one" / "link").symlink_to(outside)
    link_bytes = len(str(outside))
    assert registry.count_bytes(tmp_path) == 1024 + link_bytes


@pytest.mark.linux("names and start times are in /proc")
def test_a_process_whose_name_is_cut_inside_a_character_has_a_start_time() -> None:
    """The kernel cuts names at 15 bytes."""
    rename = "open('/proc/self/comm', 'wb').write(b'a' * 14 + 'é'.encode())"
    wait = f"import sys; {rename}; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", wait], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert registry.start_of(process.pid) is not None
        process.communicate(b"")


def test_a_copy_of_another_machines_run_goes_a_month_after_it_was_last_shown(
    home_dir: Path,
) -> None:
    old, shown = map(RunPaths.of_copy, ("old-20260101-000000-abcd", "new-20260101-000000-abcd"))
    for paths, days in ((old, 31), (shown, 29)):
        paths.root.mkdir(parents=True)
        at = time.time() - days * 86400
        os.utime(paths.root, (at, at))
    registry.remove_old_copies()
    assert [old.root.exists(), shown.root.exists()] == [False, True]
