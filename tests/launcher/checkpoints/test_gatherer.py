"""The gatherer copies complete checkpoints while a writer saves, rotates, rewrites and dies."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.privileges import without_override

from tfcluster.agent.catalogue import Evaluated, Saved
from tfcluster.checkpoints import copying
from tfcluster.checkpoints.copying import CancelledError, LocalSource, copy_verified
from tfcluster.checkpoints.gatherer import Gatherer
from tfcluster.checkpoints.recognition import Checkpoint, CheckpointKind, Newest
from tfcluster.checkpoints.store import Gathered, Store, best_of, fill, newest_of

from .files import (
    delete_prefix,
    latest,
    read_keras_3_backup,
    write_hdf5,
    write_keras,
    write_keras_3_backup,
    write_prefix,
)


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gatherer(chief: Path, tmp_path: Path, clock: Clock) -> Gatherer:
    return Gatherer(chief, Store(tmp_path / "store", keep=3), clock=clock)


def gather_steps(gatherer: Gatherer, clock: Clock, times: int = 2) -> list[int | None]:
    """Call `gather` that many times, two seconds apart, and return the steps."""
    steps = []
    for _ in range(times):
        clock.now += 2.0
        steps += [gathered.save for gathered in gatherer.gather()]
    return steps


def test_a_checkpoint_is_gathered_by_the_second_call_and_only_once(
    chief: Path, gatherer: Gatherer, clock: Clock
) -> None:
    write_prefix(chief, "ckpt-1")

    assert gatherer.gather() == []
    assert gather_steps(gatherer, clock, 1) == [1]
    assert gather_steps(gatherer, clock, 3) == []
    assert gatherer.gather_last() == []


def test_calls_in_quick_succession_gather_after_half_a_second(
    chief: Path, gatherer: Gatherer, clock: Clock
) -> None:
    write_prefix(chief, "ckpt-1")
    steps = []
    for _ in range(7):
        clock.now += 0.1
        steps += [gathered.save for gathered in gatherer.gather()]

    assert steps == [1]


def test_one_call_is_enough_after_the_writer_has_exited(chief: Path, gatherer: Gatherer) -> None:
    for step in (1, 2, 3, 4):
        write_prefix(chief, f"ckpt-{step}", saved=step)

    assert [gathered.save for gathered in gatherer.gather_last()] == [2, 3, 4]


def test_a_truncated_file_of_a_dead_writer_is_reported_and_the_previous_checkpoint_kept(
    chief: Path, gatherer: Gatherer
) -> None:
    write_keras(chief / "model-1.keras")
    (chief / "model-2.keras").write_bytes(b"PK\x03\x04 half a zip")

    assert [gathered.checkpoint.number for gathered in gatherer.gather_last()] == [1]
    (note,) = gatherer.take_notes()
    assert "model-2.keras was not gathered" in note
    assert gatherer.take_notes() == []


def test_a_clock_that_is_set_back_loses_no_checkpoint(
    chief: Path, gatherer: Gatherer, clock: Clock
) -> None:
    for step in (5, 10, 15, 20, 25, 30, 35, 40):
        saved = 1000 + step if step <= 20 else step
        write_prefix(chief, f"ckpt-{step}", saved=saved)
        write_keras(chief / "model.keras", f"weights {step}")
        os.utime(chief / "model.keras", (saved, saved))
        gatherer.saved(Saved(path=f"ckpt-{step}", step=step))
        gather_steps(gatherer, clock)

    store = gatherer.store
    held = {one.path.name: one for one in store.held}
    assert {"ckpt-30", "ckpt-35", "ckpt-40"} <= set(held)
    assert newest_of(store.state()) == Newest(40, "ckpt-40")
    assert latest(store.root) == "ckpt-40/ckpt-40"
    (model,) = (one for one in store.state() if one.kind is CheckpointKind.KERAS)
    assert model.path.read_bytes() == (chief / "model.keras").read_bytes()


def test_the_last_model_of_a_script_that_trains_twice_is_kept(
    chief: Path, gatherer: Gatherer
) -> None:
    for step in (10, 20, 30, 40):
        write_prefix(chief, f"ckpt-{step}", saved=step)
    gatherer.gather_last()
    write_prefix(chief, "ckpt-5", saved=50)
    gatherer.gather_last()

    assert [one.save for one in gatherer.store.held] == [5, 20, 30, 40]


def test_a_gatherer_knows_whether_the_newest_checkpoint_is_missing(
    chief: Path, gatherer: Gatherer, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, fails = Store.add, set[str]()

    def add_or_fail(store: Store, checkpoint: Checkpoint, *args: Any, **how: Any) -> Any:
        if checkpoint.path in fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        return add(store, checkpoint, *args, **how)

    monkeypatch.setattr(Store, "add", add_or_fail)
    write_prefix(chief, "ckpt-1")
    gatherer.saved(Saved(path="ckpt-1", step=10))
    assert gatherer.misses_newest(), "only the report is known"
    gatherer.gather_last()
    assert not gatherer.misses_newest()

    write_prefix(chief, "ckpt-2")
    write_prefix(chief, "ckpt-3")
    fails.add("ckpt-2")
    gatherer.gather_last()
    assert not gatherer.misses_newest(), "it has ckpt-3"

    write_prefix(chief, "ckpt-4")
    fails.add("ckpt-4")
    gatherer.gather_last()
    assert gatherer.misses_newest()


def test_a_directory_that_is_gone_later_lacks_nothing_that_was_gathered(
    chief: Path, gatherer: Gatherer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished run failed because the chief's host went away once all was here."""
    write_prefix(chief, "model")
    gatherer.saved(Saved(path="model"))
    gatherer.gather_last()
    monkeypatch.setattr(LocalSource, "scan", fail_to_list)
    with pytest.raises(OSError, match="gone"):
        gatherer.gather_last()
    assert not gatherer.misses_newest()
    gatherer.saved(Saved(path="model"))
    assert gatherer.misses_newest()


def fail_to_list(*args: object, **how: object) -> None:
    raise OSError(errno.EHOSTDOWN, "the host is gone")


def test_a_later_gatherer_knows_the_steps_that_were_reported_to_the_one_before(
    chief: Path, tmp_path: Path
) -> None:
    first = Gatherer(chief, Store(tmp_path / "store"), saves=tmp_path / "saves")
    for step in (1, 2):
        write_prefix(chief, f"ckpt-{step}", saved=step)
        first.saved(Saved(path=str(chief / f"ckpt-{step}"), step=10 * step))
    with (tmp_path / "saves").open("a") as file:
        file.write('{"path": "ckpt-3", "st')

    later = Gatherer(chief, first.store, saves=tmp_path / "saves")

    assert [one.step for one in later.gather_last()] == [10, 20]


def test_names_that_are_not_utf_8_are_gathered(chief: Path, gatherer: Gatherer) -> None:
    """TensorFlow's text file, which is UTF-8, names the others only."""
    name = os.fsdecode(b"mod\xe8le-1")
    write_prefix(chief, "ckpt-1")
    write_prefix(chief, name)

    assert {one.path.name for one in gatherer.gather_last()} == {name, "ckpt-1"}

    store = Store(gatherer.store.root)
    assert {one.path.name for one in store.held} == {name, "ckpt-1"}
    assert latest(store.root) == "ckpt-1/ckpt-1"
    fill(chief.parent / "worker-1", store.state())
    assert (chief.parent / "worker-1" / f"{name}.index").exists()


GATHER = """
import itertools, sys
from pathlib import Path
from tfcluster.checkpoints.gatherer import Gatherer
from tfcluster.checkpoints.store import Store
clock = itertools.count(0, 2).__next__
gatherer = Gatherer(Path(sys.argv[1]), Store(Path(sys.argv[2]), keep=3), clock=clock)
for gather in (gatherer.gather, gatherer.gather, gatherer.gather, gatherer.gather_last):
    try:
        print([one.checkpoint.name for one in gather()], gatherer.take_notes())
    except OSError as error:
        print(error.strerror)
"""


def test_an_unreadable_folder_is_reported_once_and_again_at_the_end(
    chief: Path, tmp_path: Path
) -> None:
    write_prefix(chief, "ckpt-1")
    write_prefix(chief / "locked", "ckpt-2")
    argv = without_override([sys.executable, "-c", GATHER, str(chief), str(tmp_path / "store")])
    (chief / "locked").chmod(0)
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    (chief / "locked").chmod(0o700)
    note = f"['{chief}/locked cannot be read: no checkpoint in it is gathered']"
    assert output == f"[] []\n['ckpt-1'] {note}\n[] []\n[] {note}\n"
    chief.chmod(0)
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    chief.chmod(0o700)
    assert output == "Permission denied\n" * 4


SECOND = 10**9


@pytest.mark.parametrize("is_over", [False, True], ids=["training", "over"])
def test_a_step_that_is_reported_after_the_copy_is_still_used(
    chief: Path, gatherer: Gatherer, clock: Clock, tmp_path: Path, is_over: bool
) -> None:
    write_prefix(chief, "ckpt-2", saved=1)
    assert gather_steps(gatherer, clock) == [2], "the save counter, as the step is unknown"
    gatherer.saved(Saved(path="ckpt-2", step=10, at_ns=2 * SECOND))

    clock.now += 2.0
    again = gatherer.gather_last() if is_over else gatherer.gather()
    assert [gathered.step for gathered in again] == [10]
    assert [held.step for held in gatherer.store.held] == [10]
    assert [held.step for held in Store(tmp_path / "store").held] == [10]
    assert gather_steps(gatherer, clock) == [], "once"


def test_a_report_about_a_rewritten_file_sets_the_step_of_the_new_file_only(
    chief: Path, gatherer: Gatherer
) -> None:
    for step, content in ((10, "first"), (20, "second")):
        write_keras(chief / "model.keras", content)
        os.utime(chief / "model.keras", (step, step))
        gatherer.gather_last()
        gatherer.saved(Saved(path="model.keras", step=step, at_ns=(step + 1) * SECOND))
        assert [gathered.step for gathered in gatherer.gather_last()] == [step]
    assert [held.step for held in gatherer.store.held] == [10, 20]


def test_a_report_about_a_new_file_does_not_change_the_gathered_old_one(
    chief: Path, gatherer: Gatherer
) -> None:
    write_keras(chief / "model.keras", "first")
    os.utime(chief / "model.keras", (10, 10))
    gatherer.saved(Saved(path="model.keras", step=10, at_ns=11 * SECOND))
    gatherer.gather_last()
    write_hdf5(chief / "model.keras", missing=1)  # the new file is damaged
    gatherer.saved(Saved(path="model.keras", step=20, at_ns=21 * SECOND))
    gatherer.gather_last()
    assert [held.step for held in gatherer.store.held] == [10]


def test_a_checkpoint_rotated_away_during_its_copy_is_skipped(
    chief: Path, gatherer: Gatherer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_prefix(chief, "ckpt-1", saved=1)
    write_prefix(chief, "ckpt-2", saved=2)
    copy = copy_verified

    def rotate_then_copy(source: Path, *rest: object, **named: object) -> object:
        if "ckpt-2.index" in source.name:
            delete_prefix(chief, "ckpt-2")
        return copy(source, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("tfcluster.checkpoints.copying.copy_verified", rotate_then_copy)

    assert [gathered.save for gathered in gatherer.gather_last()] == [1]
    assert gatherer.take_notes() == []


def test_a_full_disk_is_reported_once_and_retried_later(
    chief: Path, gatherer: Gatherer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_prefix(chief, "ckpt-1")
    tries = 0

    def full(*_args: object, **_kwargs: object) -> str:
        nonlocal tries
        tries += 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("tfcluster.checkpoints.copying.copy_verified", full)
        assert gather_steps(gatherer, clock, 10) == []

    assert tries == 1
    assert gatherer.take_notes() == ["ckpt-1 was not gathered: No space left on device"]
    clock.now += 30.0
    assert gather_steps(gatherer, clock, 1) == [1]


def test_a_cancelled_call_returns_soon_and_leaves_nothing(
    chief: Path, gatherer: Gatherer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_prefix(chief, "ckpt-1", content=bytes(10_000))
    monkeypatch.setattr(copying, "CHUNK", 10)
    started = threading.Event()
    read = copying._read

    def slow(*args: object) -> bytes:
        started.set()
        threading.Event().wait(0.01)
        return read(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(copying, "_read", slow)
    results: list[list[Gathered]] = []
    thread = threading.Thread(target=lambda: results.append(gatherer.gather_last()))
    thread.start()
    assert started.wait(60)
    gatherer.cancel()
    thread.join(60)

    assert results == [[]]
    assert [path for path in (tmp_path / "store").iterdir() if path.is_dir()] == []
    with pytest.raises(CancelledError):
        gatherer.gather()
    assert [gathered.save for gathered in gatherer.gather_last()] == [1], "at the end it does"


@pytest.mark.parametrize("others", [set(), {CheckpointKind.TF_CHECKPOINT}])
def test_a_backup_that_keras_deleted_is_removed_from_the_store(
    chief: Path, gatherer: Gatherer, clock: Clock, others: set[CheckpointKind]
) -> None:
    write_prefix(chief / "backup" / "chief", "ckpt-1")
    if others:
        write_prefix(chief, "ckpt-9")
    gather_steps(gatherer, clock)
    assert {held.kind for held in gatherer.store.held} == {CheckpointKind.BACKUP, *others}

    shutil.rmtree(chief / "backup")
    gatherer.gather_last(may_be_new=True)
    gatherer.gather_last(salvaged=chief)
    assert CheckpointKind.BACKUP in {held.kind for held in gatherer.store.held}, (
        "a new node has no files"
    )

    gatherer.gather_last()
    assert {held.kind for held in gatherer.store.held} == others


@pytest.mark.parametrize("has_died", [False, True])
def test_a_backup_that_is_being_rewritten_is_gathered_complete_or_not_at_all(
    chief: Path, gatherer: Gatherer, clock: Clock, has_died: bool
) -> None:
    backups = []
    for number in (1, 2):
        for _ in write_keras_3_backup(chief / "backup", number):
            if has_died:
                gatherer.gather_last()
            else:
                gather_steps(gatherer, clock, 1)
            held = [
                gathered
                for gathered in gatherer.store.held
                if gathered.kind is CheckpointKind.BACKUP
            ]
            backups += [read_keras_3_backup(gathered.folder) for gathered in held]
    assert backups == [(1, 1)] * 5 + [(2, 2)]


def test_a_backup_of_an_earlier_run_is_kept_until_it_is_put_back(
    chief: Path, gatherer: Gatherer, clock: Clock
) -> None:
    write_prefix(chief / "backup" / "chief", "ckpt-1")
    gather_steps(gatherer, clock)
    shutil.rmtree(chief)
    chief.mkdir()
    resumed = Gatherer(chief, Store(gatherer.store.root), clock=clock)
    write_hdf5(chief / "other.h5")

    gather_steps(resumed, clock)

    assert CheckpointKind.BACKUP in {held.kind for held in resumed.store.held}


def test_an_estimator_that_restarts_and_rewrites_its_graph_loses_nothing(
    chief: Path, gatherer: Gatherer
) -> None:
    write_prefix(chief, "model.ckpt-5", saved=1)
    (chief / "model.ckpt-5.meta").write_text("meta")
    gatherer.gather_last()
    (chief / "graph.pbtxt").write_text("graph")
    write_prefix(chief, "model.ckpt-5", saved=2)
    (chief / "model.ckpt-5.meta").write_text("meta")

    gatherer.gather_last()

    (held,) = Store(gatherer.store.root).held
    assert (held.step, held.kind) == (5, CheckpointKind.ESTIMATOR)


FILL_A_SMALL_DISK = """
import sys
from pathlib import Path
from tfcluster.checkpoints.gatherer import Gatherer
from tfcluster.checkpoints.store import Store

gatherer = Gatherer(Path(sys.argv[1]), Store(Path(sys.argv[2])))
print([gathered.save for gathered in gatherer.gather_last()])
print(*gatherer.take_notes(), sep=";")
print([held.save for held in Store(Path(sys.argv[2])).held])
print(sorted(path.name for path in Path(sys.argv[2]).iterdir()))
"""


def test_a_small_checkpoint_on_a_full_disk_is_complete(chief: Path, tmp_path: Path) -> None:
    write_prefix(chief, "ckpt-1", saved=1)
    write_prefix(chief, "ckpt-2", saved=2, content=b"w" * 2_000_000)
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=512k none {disk}"
    fill = [sys.executable, "-c", FILL_A_SMALL_DISK, str(chief), str(disk)]
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]

    done = subprocess.run(
        [*command, f'{mount}; exec "$@"', "sh", *fill], capture_output=True, text=True, timeout=200
    )

    assert done.stdout.splitlines() == [
        "[1]",
        "ckpt-2 was not gathered: No space left on device",
        "[1]",
        "['checkpoint', 'ckpt-1']",
    ], done.stderr


def test_the_best_checkpoint_is_kept_and_known_to_the_next_process(tmp_path: Path) -> None:
    chief, store = tmp_path / "chief", Store(tmp_path / "store", keep=1)
    gatherer = Gatherer(chief, store)
    for number, (accuracy, loss) in enumerate([(0.7, 0.9), (0.9, 0.5), (0.8, 0.4)], start=1):
        write_prefix(chief, f"ckpt-{number}", saved=number)
        path = str(chief / f"ckpt-{number}")
        gatherer.saved(Saved(path=path, step=10 * number))
        gatherer.gather_last()
        for metric, value in (("loss", loss), ("accuracy", accuracy)):
            gatherer.evaluated(
                Evaluated(
                    step=10 * number, metric=metric, value=value, lower_is_better=metric == "loss"
                )
            )
    gatherer.gather_last()
    assert [(held.step, str(held.score)) for held in Store(tmp_path / "store").held] == [
        (20, "accuracy 0.9"),
        (30, "accuracy 0.8"),
    ]
    best = best_of(store.held)
    assert best is not None
    assert best.step == 20
