"""Prints and reports each evaluation of an Estimator, the moment it is done."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfcluster_workers import reporting


class EvaluationReport(tf.estimator.Exporter):  # type: ignore[misc]
    """Estimator's own hook for "an evaluation has ended"; exports nothing."""

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
        loss, accuracy = float(eval_result["loss"]), float(eval_result["accuracy"])
        print(f"evaluated step {step} loss {loss:.6f} accuracy {accuracy:.4f}", flush=True)
        reporting.reached(step, metrics={"loss": loss, "accuracy": accuracy})
        if is_the_final_export:
            print(f"test accuracy {accuracy:.4f}", flush=True)
