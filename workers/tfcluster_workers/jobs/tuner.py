"""Searches hyperparameters with KerasTuner: a chief that hands out trials, any number of tuners.

    tfcluster up cluster_specs/tuner-2t.json
    python -m tfcluster_workers.jobs.tuner --trials 3        # alone: chief and tuner in one

All tasks run this file. KerasTuner's own variables say who is the chief: there `search` returns
when the last trial has ended, and the best hyperparameters are trained once more, on train and
validation data, for 1.2 × the best epoch. Change `search_space.network` to your model.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from typing import Any

from tfcluster_workers import context, keras_choice, precision, reporting
from tfcluster_workers.data import pipeline
from tfcluster_workers.errors import JobError
from tfcluster_workers.jobs.parts import endings, options, search_space

OBJECTIVE = "val_loss"
LONGER = 1.2
"""More data bear more epochs: so much longer than the best trial took."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line of the job."""
    parser = argparse.ArgumentParser(description="A hyperparameter search with KerasTuner.")
    options.add_data(parser)
    options.add_training(parser)
    add = parser.add_argument_group("search").add_argument
    kinds = ("random", "bayesian", "hyperband")
    add("--search", choices=kinds, default="random", help="hyperband: as many trials as --epochs")
    add("--trials", type=options.positive, default=6, help="of random and bayesian (default: 6)")
    add("--executions-per-trial", type=options.positive, default=1, metavar="N")
    add("--patience", type=int, default=2, help="epochs without a better val_loss before a stop")
    return parser.parse_args(arguments)


def load_keras() -> Any:
    """KerasTuner takes the installed `keras`, whatever `tf.keras` is (backend/config.py)."""
    keras = keras_choice.load()
    if keras.__name__.startswith("tf_keras"):
        raise keras_choice.KerasChoiceError(
            "KerasTuner works with the installed Keras 3, not with tf_keras: "
            "--set keras.version=3, and no TF_USE_LEGACY_KERAS"
        )
    return keras


def make_tuner(keras_tuner: Any, hypermodel: Any, chosen: argparse.Namespace) -> Any:
    """The tuner that was asked for; its folder is shared by all tasks of the run."""
    common = {
        "objective": OBJECTIVE,
        "seed": chosen.seed,
        "executions_per_trial": chosen.executions_per_trial,
        "directory": os.environ.get("TFCLUSTER_TUNER_DIR", "tuner"),
        "project_name": "search",
    }
    if chosen.search == "hyperband":
        return keras_tuner.Hyperband(hypermodel, max_epochs=chosen.epochs, **common)
    kinds = {"random": keras_tuner.RandomSearch, "bayesian": keras_tuner.BayesianOptimization}
    return kinds[chosen.search](hypermodel, max_trials=chosen.trials, **common)


def train_best(tuner: Any, hypermodel: Any, data: search_space.Data) -> tuple[float, float]:
    """The best trial once more, on all but the test data; loss and accuracy on those."""
    best = tuner.oracle.get_best_trials(1)
    if not best or best[0].score is None:
        raise JobError("no trial of the search succeeded")
    values, before = best[0].hyperparameters, best[0].hyperparameters.values
    epoch = best[0].best_step + 1 + int(before.get("tuner/initial_epoch", 0))
    epochs = math.ceil(LONGER * epoch)
    say(f"best trial {best[0].trial_id}, {OBJECTIVE} {best[0].score:.6f} at epoch {epoch}")
    say(f"training it on train and validation data for {epochs} epochs")
    model = hypermodel.build(values)
    hypermodel.fit(values, model, data.train.concatenate(data.validation), epochs=epochs)
    loss, accuracy = model.evaluate(data.batches(data.test), verbose=0)
    folder = context.current().checkpoint_dir
    folder.mkdir(parents=True, exist_ok=True)
    model.save(str(folder / "best.keras"))
    reporting.saved(str(folder / "best.keras"))
    return float(loss), float(accuracy)


def say(line: str) -> None:
    print(line, flush=True)


def run(chosen: argparse.Namespace) -> None:
    """Search; where the oracle is, also what comes after."""
    keras = load_keras()
    precision.apply(keras)
    import keras_tuner

    data = search_space.Data(chosen, options.global_batch(chosen, 1))
    hypermodel = search_space.hypermodel(keras, keras_tuner, chosen, data)
    name = os.environ.get("KERASTUNER_TUNER_ID", "the only tuner")
    version = keras_choice.version_of(keras)
    said = f"tuner: {pipeline.describe(chosen.dataset)} · {chosen.search} search · {name}"
    say(f"{said} · KerasTuner {keras_tuner.__version__}, Keras {version}")
    tuner = make_tuner(keras_tuner, hypermodel, chosen)
    early = keras.callbacks.EarlyStopping(OBJECTIVE, patience=chosen.patience)
    how = {} if chosen.search == "hyperband" else {"epochs": chosen.epochs}
    tuner.search(
        data.train, validation_data=data.batches(data.validation), callbacks=[early], **how
    )
    if name.startswith("worker"):
        return  # the oracle is its chief's, and so is the rest
    loss, accuracy = train_best(tuner, hypermodel, data)
    say(f"test loss {loss:.6f}")
    say(f"test accuracy {accuracy:.4f}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job; a mistake in the surroundings ends it with one line."""
    with endings.told("tuner"):
        run(parse(arguments))


if __name__ == "__main__":
    main()
