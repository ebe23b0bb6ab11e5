"""Which saves of a worker go into a temporary folder, decided from the chief's announcements."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tfcluster_workers.saving import places, shared_saves
from tfcluster_workers.saving.shared_saves import (
    GRACE_S,
    LATE_WAIT_S,
    WAIT_S,
    Chief,
    Other,
    StoreError,
)


@dataclass
class Store:
    """The key-value store of the workers, with a clock that only a wait moves.

    `later` has what the chief does at a time; `fails`: the service does not answer.
    """

    values: dict[str, str] = field(default_factory=dict)
    now: float = 0.0
    later: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    fails: bool = False

    def put(self, key: str, value: str) -> None:
        if self.fails:
            raise StoreError
        assert key not in self.values, "the service refuses to overwrite a key"
        self.values[key] = value

    def get(self, key: str, within_s: float) -> str | None:
        if self.fails:
            raise StoreError
        until = self.now + within_s
        while key not in self.values and self.later and self.later[0][0] <= until:
            self.now, act = self.later.pop(0)
            act()
        if key not in self.values:
            self.now = until
        return self.values.get(key)


class Gang:
    """A chief and another worker, which save files below the working directory."""

    def __init__(self) -> None:
        self.store = store = Store()
        shared: Any = store
        self.chief, self.other = Chief(shared), Other(shared, clock=lambda: store.now)

    def saves(self, path: str) -> None:
        """Let the chief save; nothing is written, as only the other's files are of interest."""
        self.chief.save(path, lambda chosen: None)

    def is_left_alone(self, path: str) -> bool:
        """Let the other worker save; return whether it wrote to `path` itself."""
        return self.other.save(path, _write) == path

    def waited_s(self) -> float:
        waited, self.store.now = self.store.now, 0.0
        return float(waited)


def _write(path: str) -> str:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Path(path).touch()
    return path


@pytest.fixture(autouse=True)
def _own_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFCLUSTER_TASK", "worker:1")


@pytest.fixture
def gang() -> Gang:
    return Gang()


def test_a_save_to_the_path_of_the_chief_leaves_nothing_there(gang: Gang) -> None:
    gang.store.later = [(2.0, lambda: gang.saves("ck/ckpt-1"))]
    assert not gang.is_left_alone("ck/ckpt-1"), "the chief begins two seconds later"
    gang.saves("ck/ckpt-2")
    assert not gang.is_left_alone("ck/ckpt-2"), "the chief has saved before"
    assert os.listdir("ck") == []
    assert gang.waited_s() < 2.1


def test_a_worker_returns_once_the_chiefs_files_are_complete() -> None:
    """Real threads: the chief is still writing when the other has written its own files."""
    condition, values = threading.Condition(), dict[str, str]()
    is_written, is_complete = threading.Event(), threading.Event()

    class Shared:
        def put(self, key: str, value: str) -> None:
            with condition:
                values[key] = value
                condition.notify_all()

        def get(self, key: str, within_s: float) -> str | None:
            with condition:
                condition.wait_for(lambda: key in values, within_s)
                return values.get(key)

    def write_slowly(path: str) -> None:
        assert is_written.wait(30)
        is_complete.set()

    def write(path: str) -> None:
        _write(path)
        is_written.set()

    shared: Any = Shared()
    chief = threading.Thread(target=lambda: Chief(shared).save("model/x", write_slowly))
    chief.start()
    Other(shared).save("model/x", write)
    assert is_complete.is_set()
    chief.join()


def test_paths_of_their_own_are_left_alone_and_cost_a_short_wait_once(gang: Gang) -> None:
    """As in TensorFlow's tutorials, but with names that do not say so."""
    for step in range(1, 4):
        gang.saves(f"out/{step}")
        assert gang.is_left_alone(f"scratch/{step}")
    assert gang.waited_s() <= GRACE_S


@pytest.mark.parametrize(
    "path",
    ["ck/workertemp_1/ckpt-1", "run/tasks/worker-1/checkpoints/ckpt-1", "/tmp/tmp8x2k1q_a/ckpt-1",
     "ck/worker_1/ckpt", "worker1-ckpt/c"],
)  # fmt: skip
def test_a_path_that_looks_like_the_workers_own_costs_no_wait(gang: Gang, path: str) -> None:
    assert places.looks_own(path)
    assert gang.other._find(path) is None
    assert gang.waited_s() < 0.1


def test_a_user_with_the_name_of_a_task_does_not_own_all_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "worker1" / "code").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "worker1" / "code")
    assert not places.looks_own(str(tmp_path / "worker1" / "data" / "ckpt"))
    assert places.looks_own(str(tmp_path / "worker1" / "data" / "worker-1" / "ckpt"))


@pytest.mark.parametrize("path", ["ck/ckpt-1", "worker_11/ckpt", "worker_0/ckpt", "coworker1s/c"])
def test_other_paths_do_not_look_like_the_workers_own(path: str) -> None:
    assert not places.looks_own(path)


def test_a_save_without_the_chief_waits_once_for_it(gang: Gang) -> None:
    assert gang.is_left_alone("logs/state-1")
    assert gang.waited_s() == pytest.approx(WAIT_S)
    for step in range(2, 5):
        assert gang.is_left_alone(f"logs/state-{step}")
    assert gang.waited_s() < 0.1
    assert sorted(os.listdir("logs")) == [f"state-{step}" for step in range(1, 5)]


def test_saves_of_the_chief_alone_change_nothing(gang: Gang) -> None:
    for step in range(1, 4):
        gang.saves(f"best/{step}")  # only the chief exports
        gang.store.later = [(gang.store.now + 0.5, partial(gang.saves, f"ck/ckpt-{step}"))]
        assert not gang.is_left_alone(f"ck/ckpt-{step}")
    assert os.listdir("ck") == []


@pytest.mark.parametrize("exports", [True, False])
def test_a_chief_that_came_too_late_once_is_waited_for_the_next_time(
    gang: Gang, exports: bool
) -> None:
    """The chief evaluates, or exports alone, for longer than the other waits at first."""
    for step in range(1, 4):
        if exports:
            gang.saves(f"best/{step}")
        late = gang.store.now + 2 * WAIT_S
        gang.store.later = [(late, partial(gang.saves, f"ck/ckpt-{step}"))]
        assert gang.is_left_alone(f"ck/ckpt-{step}") is (step == 1)
        gang.store.now = max(gang.store.now, late)
        for _, act in gang.store.later:
            act()
    assert os.listdir("ck") == ["ckpt-1"]


def test_the_late_save_of_a_chief_is_not_taken_for_its_next_one(gang: Gang) -> None:
    assert gang.is_left_alone("out/model")
    gang.saves("out/model")
    begins = gang.store.now + 1
    gang.store.later = [(begins, partial(gang.saves, "out/model"))]
    assert not gang.is_left_alone("out/model")
    assert gang.store.now >= begins


def test_a_chief_that_no_longer_saves_is_waited_for_once_more(gang: Gang) -> None:
    assert gang.is_left_alone("ck/ckpt-1")
    gang.saves("ck/ckpt-1")
    gang.waited_s()
    for step in range(2, 6):
        assert gang.is_left_alone(f"ck/ckpt-{step}")
    assert gang.waited_s() == pytest.approx(LATE_WAIT_S)


def test_saves_in_another_order_find_their_counterparts(gang: Gang) -> None:
    gang.saves("a/model")
    gang.saves("b/model")
    assert not gang.is_left_alone("b/model")
    assert not gang.is_left_alone("a/model")
    assert gang.waited_s() < 0.1


def test_without_the_coordination_service_saves_are_left_alone(gang: Gang) -> None:
    gang.store.fails = True
    gang.saves("ck/ckpt-1")
    assert gang.is_left_alone("ck/ckpt-1")
    assert gang.waited_s() == 0


def test_a_save_that_fails_leaves_nothing(gang: Gang) -> None:
    gang.saves("ck/ckpt-1")

    def fail(path: str) -> None:
        _write(path)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        gang.other.save("ck/ckpt-1", fail)
    assert os.listdir("ck") == []


def test_the_chief_announces_the_end_of_a_save_that_failed(gang: Gang) -> None:
    def fail(path: str) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        gang.chief.save("ck/ckpt-1", fail)
    assert not gang.is_left_alone("ck/ckpt-1")
    assert gang.waited_s() < 0.1


# -- the same path on several machines ------------------------------------------------------------

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/root rw
23 22 254:0 /var/lib/kubelet/pods/{pod}/volumes/data /data rw - ext4 /dev/root rw
24 22 0:44 / /mnt/my\\040data rw,relatime shared:5 - nfs4 server:/export rw
25 22 0:{overlay} / /opt rw - overlay overlay rw,lowerdir=/x
"""


@pytest.fixture
def identity_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Return a function that gives a path's identity on a machine, in a container of it."""

    def identity(path: str, machine: str, *, pod: str = "pod-1", overlay: int = 50) -> str:
        mounts = tmp_path / "mountinfo"
        mounts.write_text(MOUNTS.format(pod=pod, overlay=overlay))
        monkeypatch.setattr(places, "_MOUNTS", str(mounts))
        monkeypatch.setattr(places, "_machine", lambda: machine)
        places._mounts.cache_clear()
        return places.identity(path)

    yield identity
    places._mounts.cache_clear()


def test_a_path_on_network_storage_is_the_same_file_on_every_machine(
    identity_on: Callable[..., str],
) -> None:
    path = "/mnt/my data/model"
    assert identity_on(path, "a") == identity_on(path, "b")
    assert identity_on("gs://bucket/model", "a") == identity_on("gs://bucket/model", "b")


def test_a_path_on_a_local_disk_is_another_file_on_another_machine(
    identity_on: Callable[..., str],
) -> None:
    for path in ("/home/me/model", "file:///home/me/model"):
        assert identity_on(path, "a") == identity_on(path, "a")
        assert identity_on(path, "a") != identity_on(path, "b")


def test_a_path_in_two_containers_of_a_machine_is_the_same_file_if_they_share_the_mount(
    identity_on: Callable[..., str],
) -> None:
    assert identity_on("/data/m", "a", pod="pod-1") == identity_on("/data/m", "a", pod="pod-1")
    assert identity_on("/data/m", "a", pod="pod-1") != identity_on("/data/m", "a", pod="pod-2")
    assert identity_on("/opt/m", "a", overlay=50) != identity_on("/opt/m", "a", overlay=51)
    inside = "/var/lib/kubelet/pods/pod-1/volumes/data/m"
    assert identity_on("/data/m", "a") == identity_on(inside, "a"), "two mounts of one folder"


# -- TensorFlow's functions -----------------------------------------------------------------------


class Checkpoint:
    """A stand-in for tf.train.Checkpoint: it writes a file, then calls TensorFlow's callbacks."""

    def _write(self, file_prefix: str, options: Any = None) -> str:
        Path(_write(f"{file_prefix}.index")).write_text("values")
        for callback in getattr(options, "experimental_write_callbacks", None) or ():
            callback(file_prefix)
        return file_prefix


def tensorflow(monkeypatch: pytest.MonkeyPatch, team: Any) -> tuple[type[Checkpoint], Any]:
    """Return patched stand-ins for `checkpoint` and `checkpoint_management`."""
    eager = SimpleNamespace(executing_eagerly=lambda: True)
    monkeypatch.setitem(sys.modules, "tensorflow.python.eager.context", eager)
    monkeypatch.setattr(shared_saves, "_team", team)

    class Patched(Checkpoint):
        _write = Checkpoint._write

    module: Any = ModuleType("checkpoint")
    module.Checkpoint, module.CheckpointV1 = Patched, type("V1", (Patched,), {"_write": None})
    module.CheckpointV1._write = Checkpoint._write
    module.checkpoint_context = SimpleNamespace(in_preemption_save_context=lambda: False)
    module._execute_callbacks = lambda callbacks, path: [each(path) for each in callbacks]
    shared_saves.watch_checkpoints(module)
    management: Any = ModuleType("checkpoint_management")
    management.recorded, management.deleted = [], []
    management.update_checkpoint_state_internal = management.recorded.append
    management._delete_file_if_exists = management.deleted.append
    shared_saves.watch_checkpoint_management(management)
    return Patched, management


@pytest.mark.parametrize("is_chief", [True, False])
def test_only_the_chief_records_checkpoints_and_deletes_old_ones(
    gang: Gang, monkeypatch: pytest.MonkeyPatch, is_chief: bool
) -> None:
    checkpoint, management = tensorflow(monkeypatch, gang.chief if is_chief else gang.other)
    if not is_chief:
        gang.saves("ck/ckpt-2")
    called = list[str]()

    def record_and_sweep(path: str) -> None:
        management.update_checkpoint_state_internal(path)
        management._delete_file_if_exists("ck/ckpt-1.index")

    record_and_sweep.__module__ = "tensorflow.python.checkpoint.checkpoint_management"
    options = SimpleNamespace(experimental_write_callbacks=[record_and_sweep, called.append])
    assert checkpoint()._write("ck/ckpt-2", options) == "ck/ckpt-2"
    assert management.recorded == (["ck/ckpt-2"] if is_chief else [])
    assert management.deleted == (["ck/ckpt-1.index"] if is_chief else [])
    assert called == ["ck/ckpt-2"], "the script's own callback gets the path of the script"
    assert len(options.experimental_write_callbacks) == 2
    assert os.listdir("ck") == (["ckpt-2.index"] if is_chief else [])
    management.update_checkpoint_state_internal("by hand")
    assert management.recorded[-1] == "by hand"


def test_an_asynchronous_save_is_counted_in_the_thread_that_writes(
    gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, _ = tensorflow(monkeypatch, gang.chief)
    options = SimpleNamespace(experimental_enable_async_checkpoint=True)
    checkpoint()._write("ck/ckpt-1", options)
    assert gang.store.values == {}
    options.experimental_enable_async_checkpoint = False
    checkpoint()._write("ck/ckpt-1", options)
    assert sorted(gang.store.values) == ["1", "1/end"]


def test_a_checkpoint_within_a_saved_model_is_part_of_one_save(
    gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, _ = tensorflow(monkeypatch, gang.chief)
    shared_saves.save("model", lambda path: checkpoint()._write(f"{path}/variables/variables"))
    assert sorted(gang.store.values) == ["1", "1/end"]


def test_saves_in_a_graph_are_left_alone(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, _ = tensorflow(monkeypatch, gang.chief)
    context: Any = sys.modules["tensorflow.python.eager.context"]
    context.executing_eagerly = lambda: False
    checkpoint()._write("ck/ckpt-1")
    assert gang.store.values == {}
