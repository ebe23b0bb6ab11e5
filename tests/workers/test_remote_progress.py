"""Under ParameterServerStrategy `fit` reports the steps done, not the scheduled batches."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tfcluster_workers import reporting
from tfcluster_workers.hooks import keras_hooks


class RemoteValue:
    """A stand-in for TensorFlow's RemoteValue: not a mapping, and fetching it blocks."""

    def fetch(self) -> Mapping[str, float]:
        raise AssertionError("fetching would wait for the worker")


def test_the_steps_done_are_read_from_the_servers_but_not_for_every_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, readings = [100.0], list[reporting.Reading]()
    monkeypatch.setattr(keras_hooks, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(reporting, "step_done", readings.append)
    servers = SimpleNamespace(value=0)
    iterations = SimpleNamespace(numpy=lambda: servers.value)
    reporter = keras_hooks.FitReporter(32, sums_replicas=True)
    coordinated = SimpleNamespace(_should_use_with_coordinator=True)
    model = SimpleNamespace(
        optimizer=SimpleNamespace(_iterations=iterations), distribute_strategy=coordinated
    )
    reporter.set_model(model)
    reporter.on_train_begin()
    reporter.on_epoch_begin(0)
    for batch in range(40):
        now[0] += 0.125
        servers.value = batch // 2
        reporter.on_train_batch_end(batch, _logs())
    assert [(reading.step, dict(reading.metrics())) for reading in readings] == [
        (step, {}) for step in range(0, 20, 2)
    ]
    reporter.on_epoch_begin(1)
    now[0] += 1
    servers.value = 60  # the servers count repeated steps
    reporter.on_train_batch_end(0, _logs())
    assert readings[-1].step == 41


def _logs() -> Any:
    return RemoteValue()
