"""Progress is limited, measured and never blocks; errors wait for space in the socket."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import socket
import subprocess
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import numpy
import pytest

from tfcluster_workers import context, event_channel, reporting
from tfcluster_workers.hooks import fit_position, import_hooks, keras_hooks, stop_saves


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Meter:
    def __init__(self) -> None:
        self.clock, self.sent, self.room = Clock(), list[Mapping[str, Any]](), True
        self.meter = reporting.ProgressMeter(self._send, clock=self.clock)

    def _send(self, event: Mapping[str, Any]) -> bool:
        if self.room:
            self.sent.append(event)
        return self.room

    def step(self, number: int, *, after_s: float) -> None:
        self.clock.now += after_s
        self.meter.offer(reporting.Reading(number, epoch=1, batch_size=96))


def test_first_and_last_steps_are_sent_and_two_per_second_in_between() -> None:
    rig = Meter()
    for number in range(1, 101):
        rig.step(number, after_s=0.01)
    rig.meter.flush()
    assert [event["step"] for event in rig.sent] == [1, 51, 100]


def test_the_metrics_of_the_end_of_an_epoch_are_not_replaced_by_the_next_step() -> None:
    rig = Meter()
    for number in range(1, 201):
        rig.step(number, after_s=0.01)
        if number % 60 == 0:  # sooner after a step than the interval
            rate = functools.partial(dict[str, float], learning_rate=1 / number)
            rig.meter.offer(reporting.Reading(number, metrics=rate, ends_epoch=True))
    ends = [event["step"] for event in rig.sent if event["metrics"]]
    assert ends == [60, 120, 180]


def test_a_speed_is_an_average_over_five_seconds_and_five_steps() -> None:
    rig = Meter()
    for number in range(1, 21):  # two steps a second
        rig.step(number, after_s=0.5)
    assert [event.get("steps_per_second") for event in rig.sent] == [*[None] * 10, *[2.0] * 10]
    assert rig.sent[-1]["examples_per_second"] == 192.0
    for number in range(21, 31):  # twice as fast: it takes 5 s until only that counts
        rig.step(number * 2 - 20, after_s=0.5)
    assert rig.sent[-2]["steps_per_second"] < 4
    assert rig.sent[-1]["steps_per_second"] == 4.0


def test_long_steps_have_a_speed_once_there_were_five() -> None:
    rig = Meter()
    for number in range(1, 8):
        rig.step(number, after_s=10)
    assert [event.get("steps_per_second") for event in rig.sent] == [*[None] * 5, 0.1, 0.1]


def test_the_mean_speed_counts_from_the_first_step_with_all_pauses() -> None:
    rig = Meter()
    rig.step(1, after_s=8)  # the first step also traces and compiles
    for number in range(2, 12):
        rig.step(number, after_s=0.5)
    rig.step(13, after_s=5)  # an evaluation took 5 s
    assert rig.sent[-1]["mean_steps_per_second"] == pytest.approx(12 / 10, rel=0.001)
    assert rig.sent[-1]["mean_examples_per_second"] == pytest.approx(96 * 1.2, rel=0.001)
    rig.step(1, after_s=4)  # the first step of another `fit`
    assert "steps_per_second" not in rig.sent[-1]
    rig.step(6, after_s=1)
    assert rig.sent[-1]["mean_steps_per_second"] == pytest.approx(17 / 15, rel=0.001)


def test_metrics_that_cannot_be_read_do_not_lose_the_step() -> None:
    rig = Meter()

    def lost() -> dict[str, float]:
        raise RuntimeError("the device that has them is gone")

    rig.meter.offer(reporting.Reading(7, metrics=lost))
    assert [(event["step"], event["metrics"]) for event in rig.sent] == [(7, {})]


def test_metrics_are_read_only_for_sent_events() -> None:
    rig = Meter()
    read = list[str]()

    def metrics() -> dict[str, float]:
        read.append("once")
        return {}

    for number in range(10):
        rig.meter.offer(reporting.Reading(number, metrics=metrics))
    assert read == ["once"]


def test_steps_per_execution_is_reported_if_above_1() -> None:
    rig = Meter()
    rig.meter.offer(reporting.Reading(1))
    rig.clock.now += 1
    rig.meter.offer(reporting.Reading(11, steps_per_execution=10))
    assert [event.get("steps_per_execution") for event in rig.sent] == [None, 10]


def test_the_last_step_is_known_whether_it_was_sent_or_held_back() -> None:
    rig = Meter()
    known = [rig.meter.last_step]
    for number in (1, 2):
        rig.step(number, after_s=0.1)
        known.append(rig.meter.last_step)
    assert (known, len(rig.sent)) == ([None, 1, 2], 1)


SIGNALLED = """
import faulthandler, os, signal
from tfcluster_workers import event_channel, reporting
from tfcluster_workers.hooks import save_hooks

faulthandler.dump_traceback_later(20, exit=True)
sent = []

class Channel:
    is_open = True

    def share(self, event, fd):
        return False

    def receive(self):
        return None

    def offer(self, event):
        sent.append(event["step"])
        return True

def save(*_):
    print("saves at step", save_hooks.step_of_model(None, "x"), flush=True)
    reporting.finished()

signals = [signal.SIGTERM]

def metrics():
    if signals:
        os.kill(os.getpid(), signals.pop())
    return {"loss": 1.0}

event_channel.install(Channel())
signal.signal(signal.SIGTERM, save)
reporting.step_done(reporting.Reading(7, metrics=metrics))
print("sent", sent)
"""


def test_a_signal_handler_may_save_while_the_metrics_of_a_step_are_read(tmp_path: Path) -> None:
    """The script runs in a subprocess, since only killing it ends a deadlock."""
    script = tmp_path / "main.py"
    script.write_text(SIGNALLED)
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=200, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "saves at step 7\nsent [7]\n"), ended.stderr


def test_a_save_that_the_hooks_saw_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = list[Mapping[str, Any]]()
    channel = types.SimpleNamespace(send=sent.append, is_open=True)
    monkeypatch.setattr(event_channel, "channel", channel)
    reporting.saw_saved("/there/ckpt-1", 10)
    reporting.saved("/there/ckpt-1", step=10)
    reporting.saved("/there/ckpt-1", step=10)  # saved again, not seen by the hooks
    reporting.saw_saved("/there/ckpt-2", None)
    reporting.saved("/there/ckpt-2", step=20)
    assert [(event["path"][-1], event["step"]) for event in sent] == [
        ("1", 10),
        ("1", 10),
        ("2", None),
        ("2", 20),
    ]


def test_alive_events_are_limited_to_one_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, event_channel.KIND)
    now = Clock()
    monkeypatch.setattr(event_channel, "channel", event_channel.EventChannel(ours))
    monkeypatch.setattr(reporting, "_alive_at", float("-inf"))
    monkeypatch.setattr("tfcluster_workers.reporting.time.monotonic", now)
    with ours, theirs:
        for _ in range(25):
            reporting.alive()
            now.now += 0.1
        theirs.setblocking(False)
        received = 0
        with contextlib.suppress(BlockingIOError):
            while theirs.recv(1 << 16) == b'{"type": "alive"}':
                received += 1
    assert received == 3


def test_a_step_without_room_in_the_socket_is_sent_by_flush() -> None:
    rig = Meter()
    rig.room = False
    rig.step(1, after_s=0)
    rig.room = True
    rig.meter.flush()
    assert [event["step"] for event in rig.sent] == [1]


def test_a_full_socket_drops_progress_and_keeps_errors_waiting() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, event_channel.KIND)
    with ours, theirs:
        channel = event_channel.EventChannel(ours)
        while channel.offer({"type": "progress", "step": 1}):
            pass
        assert channel.send({"type": "task_error"}, within_s=0.05) is False
        theirs.recv(1 << 16)
        assert channel.send({"type": "task_error"}, within_s=1) is True


def test_a_full_socket_of_macos_does_not_close_the_channel() -> None:
    full = SimpleNamespace(send=Mock(side_effect=OSError(errno.ENOBUFS, "No buffer space")))
    channel = event_channel.EventChannel(cast(socket.socket, full))
    assert channel.offer({"type": "progress", "step": 1}) is False
    assert channel.is_open


def test_a_missing_agent_is_no_error() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, event_channel.KIND)
    theirs.close()
    with ours:
        channel = event_channel.EventChannel(ours)
        assert channel.send({"type": "task_ready"}) is False
        assert not channel.is_open


def test_messages_stay_below_64_kib() -> None:
    message = event_channel.encode(
        {"type": "task_error", "message": "€" * 90_000, "traceback": "x" * 90_000}
    )
    assert len(message) <= event_channel.MAX_MESSAGE
    assert json.loads(message)["type"] == "task_error"


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (numpy.int64(10), 10),
        (numpy.float32(0.5), 0.5),
        (numpy.array(7), 7),
        (numpy.bool_(True), True),
        (numpy.arange(2), "[0 1]"),
        (numpy.longdouble(2), "2.0"),
        (Path("logs"), "logs"),
    ],
    ids=repr,
)
def test_a_numpy_scalar_is_sent_as_a_number(value: object, sent: object) -> None:
    """A resumed `fit` of Keras 2 has a NumPy scalar as its step."""
    assert json.loads(event_channel.encode({"step": value})) == {"step": sent}


def test_a_task_without_a_cluster_is_the_chief() -> None:
    alone = context.current({})
    assert (alone.task, alone.num_workers, alone.is_chief) == ("worker:0", 1, True)
    assert alone.save_dir == Path("checkpoints")


@pytest.mark.parametrize(
    ("jobs", "task", "is_chief", "num_workers"),
    [
        ({"worker": 2}, ("worker", 0), True, 2),
        ({"worker": 2}, ("worker", 1), False, 2),
        ({"chief": 1, "worker": 2}, ("worker", 0), False, 3),
        ({"chief": 1, "worker": 2}, ("chief", 0), True, 3),
        ({"worker": 2, "evaluator": 1}, ("evaluator", 0), True, 2),
    ],
)
def test_the_chief_is_the_same_as_for_tensorflow(
    jobs: dict[str, int], task: tuple[str, int], is_chief: bool, num_workers: int
) -> None:
    cluster = {job: [f"localhost:{n}" for n in range(count)] for job, count in jobs.items()}
    config = {"cluster": cluster, "task": {"type": task[0], "index": task[1]}}
    this_task = context.current({"TF_CONFIG": json.dumps(config), "TFCLUSTER_CHECKPOINT_DIR": "/c"})
    assert (this_task.is_chief, this_task.num_workers) == (is_chief, num_workers)
    assert (this_task.save_dir == Path("/c")) is is_chief


def test_a_watched_module_is_called_back_once_and_keeps_its_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "watched_module.py").write_text("VALUE = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    seen = list[types.ModuleType]()
    finder = import_hooks.install()
    finder.after_import("watched_module", seen.append)
    import watched_module  # type: ignore[import-not-found]

    assert seen == [watched_module]
    assert watched_module.VALUE == 1
    assert "exec_module" not in vars(watched_module.__loader__)
    sys.modules.pop("watched_module")


def test_the_slow_import_of_tensorflow_is_reported_as_a_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[object]()
    monkeypatch.setattr(reporting, "phase", seen.append)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(import_hooks, "_SLOW_IMPORT", "slow_module")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "slow_module.py").write_text(
        "from tfcluster_workers import reporting\nreporting.phase('within')"
    )
    import_hooks.install()
    import slow_module  # type: ignore[import-not-found]

    assert seen == ["importing TensorFlow", "within", ""]
    assert "exec_module" not in vars(slow_module.__loader__)
    sys.modules.pop("slow_module")


def test_an_error_in_a_hook_does_not_break_the_import() -> None:
    def fail(module: types.ModuleType) -> None:
        raise RuntimeError("ours")

    import_hooks.call_safely(fail, sys)


def test_batch_logs_are_divided_by_the_replicas() -> None:
    assert keras_hooks.plain_numbers({"loss": 4.0, "remote": object()}, divisor=2) == {"loss": 2.0}


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[reporting.Reading]:
    """The readings of a FitReporter, in the order in which it makes them."""
    made = list[reporting.Reading]()
    monkeypatch.setattr(reporting, "step_done", made.append)
    monkeypatch.setattr(reporting.meter, "offer", made.append)
    return made


def fit(*, done: int, params: Mapping[str, Any], epochs: range, batches: range) -> None:
    """Call a FitReporter as `fit` does; the optimizer has done `done` steps."""
    iterations = types.SimpleNamespace(numpy=lambda: done)
    reporter = keras_hooks.FitReporter(32, sums_replicas=False)
    reporter.set_model(
        types.SimpleNamespace(optimizer=types.SimpleNamespace(_iterations=iterations))
    )
    reporter.set_params(params)
    reporter.on_train_begin()
    for epoch in epochs:
        reporter.on_epoch_begin(epoch)
        for batch in batches:
            reporter.on_train_batch_begin(batch)
            reporter.on_train_batch_end(batch)
        reporter.on_epoch_end(epoch)


@pytest.mark.parametrize(
    ("done", "epochs", "batches", "last_step"),
    [
        (0, range(4), range(5), 20),
        (10, range(2, 4), range(5), 20),
        (12, range(2, 3), range(2, 5), 15),
    ],
    ids=["from the beginning", "with an initial epoch", "resumed within an epoch"],
)
def test_the_total_is_on_the_scale_of_the_steps(
    readings: list[reporting.Reading], done: int, epochs: range, batches: range, last_step: int
) -> None:
    fit(done=done, params={"epochs": 4, "steps": 5}, epochs=epochs, batches=batches)
    assert {(r.epochs, r.steps_per_epoch, r.total_steps) for r in readings} == {(4, 5, 20)}
    assert (readings[-1].step, readings[-1].epoch) == (last_step, epochs[-1] + 1)


def test_a_second_fit_of_one_model_goes_on_with_the_steps_of_the_first(
    readings: list[reporting.Reading],
) -> None:
    fit(done=20, params={"epochs": 2, "steps": 5}, epochs=range(2), batches=range(5))
    assert (readings[-1].step, readings[-1].total_steps) == (30, 30)


def test_steps_of_an_epoch_are_known_after_the_first_where_the_data_have_no_size(
    readings: list[reporting.Reading],
) -> None:
    fit(done=0, params={"epochs": 2, "steps": None}, epochs=range(2), batches=range(3))
    totals = [(r.epochs, r.steps_per_epoch, r.total_steps) for r in readings]
    assert totals == [(2, None, None)] * 3 + [(2, 3, 6)] * 5


def test_a_custom_loop_reports_its_total_and_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Meter()
    monkeypatch.setattr(reporting, "meter", rig.meter)
    reporting.progress(5, total=100, epoch=1, epochs=4)
    monkeypatch.undo()
    assert rig.sent == [
        {"type": "progress", "step": 5, "epoch": 1, "epochs": 4, "total_steps": 100, "metrics": {}}
    ]


BATCH_SIZES = """
import tensorflow as tf
from tfcluster_workers.hooks import keras_hooks

two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
data = tf.data.Dataset.range(64)
for batches in (
    data.batch(16).prefetch(1),
    data.batch(16, drop_remainder=True),
    strategy.experimental_distribute_dataset(data.batch(16)),
    strategy.distribute_datasets_from_function(lambda _: data.batch(8).repeat()),
):
    print("size", keras_hooks.global_batch_size(batches, requested=None))
"""


@pytest.mark.tensorflow
def test_the_batch_size_of_a_distributed_data_set_is_the_global_one(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(BATCH_SIZES)
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.stdout == "size 16\n" * 4, ended.stderr


def test_the_batch_size_of_arrays_is_keras_default_and_a_generators_unknown() -> None:
    array = types.SimpleNamespace(shape=(100, 28))
    assert keras_hooks.global_batch_size(array, requested=None) == 32
    assert keras_hooks.global_batch_size(array, requested=64) == 64
    assert keras_hooks.global_batch_size((n for n in range(3)), requested=None) is None


def test_training_does_not_stop_between_the_last_batch_of_an_epoch_and_its_validation(
    readings: list[reporting.Reading], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = list[int]()
    monkeypatch.setattr(stop_saves, "step_done", lambda: steps.append(readings[-1].step))
    with fit_position.of_fit():
        fit(done=0, params={"epochs": 2, "steps": 3}, epochs=range(2), batches=range(3))
    assert steps == [1, 2, 4, 5]
