"""An evaluator reads the newest checkpoint, and refuses one that has not all of the weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tfcluster_workers import evaluator

pytest.importorskip("tensorflow")

pytestmark = pytest.mark.tensorflow


def test_the_newest_checkpoint_is_the_last_of_tfcluster_s_list(tmp_path: Path) -> None:
    assert evaluator.find_newest(tmp_path) is None
    entries = [("ckpt-1", "tf_checkpoint", 40), ("02.weights.h5", "weights", 80)]
    entries.append(("export", "saved_model", None))  # type: ignore[arg-type]
    listed = [dict(zip(("path", "kind", "step"), entry, strict=True)) for entry in entries]
    (tmp_path / evaluator.LISTED).write_text(json.dumps(listed))
    assert evaluator.find_newest(tmp_path) == ("02.weights.h5", 80)


def test_a_checkpoint_of_other_objects_is_an_error(tmp_path: Path) -> None:
    import tensorflow as tf

    saved = tf.train.Checkpoint(net=tf.Module(), weights=tf.Variable([1.0, 2.0]))
    path = Path(saved.save(str(tmp_path / "ckpt")))
    model = tf.Module()
    model.kernel = tf.Variable([0.0, 0.0])
    with pytest.raises(AssertionError):
        evaluator.restore(model, path)
    assert evaluator.find_newest(tmp_path) == ("ckpt-1", None)
    mine = tf.train.Checkpoint(weights=tf.Variable([0.0, 0.0]))
    evaluator.restore(model, path, mine)
    assert mine.weights.numpy().tolist() == [1.0, 2.0]


def test_an_unknown_metric_is_an_error() -> None:
    with pytest.raises(KeyError, match="only loss, auc"):
        evaluator.report({"loss": 1.0, "auc": 0.5}, "accuracy", False, 3)
