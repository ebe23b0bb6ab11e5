"""Reports the evaluations of an Estimator; at the end, predicts and exports a SavedModel."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf

from tfcluster_workers import reporting


class EvaluationReport(tf.estimator.Exporter):  # type: ignore[misc]
    """An exporter that reports each evaluation and exports nothing.

    Estimator calls exporters when an evaluation has ended.
    """

    @property
    def name(self) -> str:
        return "report"

    def export(
        self,
        estimator: Any,
        export_path: Any,
        checkpoint_path: Any,
        eval_result: Any,
        is_the_final_export: bool,
    ) -> None:
        step = int(eval_result["global_step"])
        # Not "loss": that is a mean over batches, and the last batch is smaller.
        loss, accuracy = float(eval_result["average_loss"]), float(eval_result["accuracy"])
        print(f"evaluated step {step} loss {loss:.6f} accuracy {accuracy:.4f}", flush=True)
        reporting.reached(step, metrics={"loss": loss, "accuracy": accuracy})
        if is_the_final_export:
            print(f"test loss {loss:.6f}", f"test accuracy {accuracy:.4f}", sep="\n", flush=True)


def predict_and_export(estimator: Any, input_fn: Any) -> None:
    """Predict some test images, export a SavedModel, and compare its predictions."""
    predicted = list(estimator.predict(input_fn))
    images, labels = next(
        iter(input_fn(tf.estimator.ModeKeys.PREDICT).unbatch().batch(len(predicted)))
    )
    classes = " ".join(str(prediction["class"]) for prediction in predicted)
    print(f"predicted {classes}, labels {' '.join(map(str, labels.numpy()))}", flush=True)
    export_dir = os.path.join(estimator.model_dir, "export")
    folder = estimator.export_saved_model(export_dir, serving_input(images.shape[1:])).decode()
    exported = tf.saved_model.load(folder).signatures["serving_default"](images)
    expected = [prediction["probabilities"] for prediction in predicted]
    difference = float(np.abs(exported["probabilities"].numpy() - expected).max())
    print(f"exported {folder}: its predictions differ by {difference:.0e} at most", flush=True)


def serving_input(shape: Any) -> Any:
    """Return the export's serving input: any number of images as `input_fn` gives them."""

    def receiver() -> Any:
        images = tf.compat.v1.placeholder(tf.float32, [None, *shape], name="images")
        return tf.estimator.export.TensorServingInputReceiver(images, {"images": images})

    return receiver
