"""Searches hyperparameters with KerasTuner: a chief hands out trials to any number of tuners.

    tfcluster up cluster_specs/tuner-2t.json
    python -m tfcluster_workers.jobs.tuner --trials 3        # chief and tuner in one process

All tasks run this file; KerasTuner's own variables say which one is the chief. In the chief
`search` returns when the last trial has ended; then a model with the best hyperparameters is
trained on training and validation data, for 1.2 × the best epoch. To adapt it, replace
`search_space.network` with your model.
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
from tfcluster_workers.jobs.parts import job_errors, options, search_space

OBJECTIVE = "val_loss"
EPOCH_FACTOR = 1.2
"""Epochs of the final training per epoch of the best trial: more data allows more epochs."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="A hyperparameter search with KerasTuner.")
    options.add_data(parser)
    options.add_training(parser)
    add = parser.add_argument_group("search").add_argument
    kinds = ("random", "bayesian", "hyperband")
    add("--search", choices=kinds, default="random", help="default: random")
    add("--trials", type=options.positive, default=6, help="default: 6; not used by hyperband")
    add("--executions-per-trial", type=options.positive, default=1, metavar="N")
    add("--patience", type=int, default=2, help="stop after N epochs without a better val_loss")
    return parser.parse_args(arguments)


def load_keras() -> Any:
    """Return the installed Keras, the one that KerasTuner uses whatever `tf.keras` is.

    Source: KerasTuner's backend/config.py. Raises KerasChoiceError for tf_keras.
    """
    keras = keras_choice.load()
    if keras.__name__.startswith("tf_keras"):
        raise keras_choice.KerasChoiceError(
            "KerasTuner works with the installed Keras 3, not with tf_keras: use "
            "--set keras.version=3, and unset TF_USE_LEGACY_KERAS"
        )
    return keras


def make_tuner(keras_tuner: Any, hypermodel: Any, args: argparse.Namespace) -> Any:
    """Return the tuner that --search selects; all tasks of the run share its folder."""
    common = {
        "objective": OBJECTIVE,
        "seed": args.seed,
        "executions_per_trial": args.executions_per_trial,
        "directory": os.environ.get("TFCLUSTER_TUNER_DIR", "tuner"),
        "project_name": "search",
    }
    if args.search == "hyperband":
        return keras_tuner.Hyperband(hypermodel, max_epochs=args.epochs, **common)
    kinds = {"random": keras_tuner.RandomSearch, "bayesian": keras_tuner.BayesianOptimization}
    return kinds[args.search](hypermodel, max_trials=args.trials, **common)


def train_best(tuner: Any, hypermodel: Any, data: search_space.Data) -> tuple[float, float]:
    """Train the best trial's model on all but the test data; return test loss and accuracy."""
    best = tuner.oracle.get_best_trials(1)
    if not best or best[0].score is None:
        raise JobError("no trial of the search succeeded")
    hyperparameters = best[0].hyperparameters
    initial_epoch = int(hyperparameters.values.get("tuner/initial_epoch", 0))
    epoch = best[0].best_step + 1 + initial_epoch
    epochs = math.ceil(EPOCH_FACTOR * epoch)
    say(f"best trial {best[0].trial_id}, {OBJECTIVE} {best[0].score:.6f} at epoch {epoch}")
    say(f"training it on train and validation data for {epochs} epochs")
    model = hypermodel.build(hyperparameters)
    hypermodel.fit(hyperparameters, model, data.train.concatenate(data.validation), epochs=epochs)
    loss, accuracy = model.evaluate(data.batches(data.test), verbose=0)
    folder = context.current().checkpoint_dir
    folder.mkdir(parents=True, exist_ok=True)
    model.save(str(folder / "best.keras"))
    reporting.saved(str(folder / "best.keras"))
    return float(loss), float(accuracy)


def say(line: str) -> None:
    print(line, flush=True)


def run(args: argparse.Namespace) -> None:
    """Search; the task that holds the oracle then trains and evaluates the best model."""
    keras = load_keras()
    precision.apply(keras)
    import keras_tuner

    data = search_space.Data(args, options.global_batch(args, 1))
    hypermodel = search_space.hypermodel(keras, keras_tuner, args, data)
    name = os.environ.get("KERASTUNER_TUNER_ID", "the only tuner")
    version = keras_choice.version_of(keras)
    say(
        f"tuner: {pipeline.describe(args.dataset)} · {args.search} search · {name} · "
        f"KerasTuner {keras_tuner.__version__}, Keras {version}"
    )
    tuner = make_tuner(keras_tuner, hypermodel, args)
    early_stopping = keras.callbacks.EarlyStopping(OBJECTIVE, patience=args.patience)
    epochs = {} if args.search == "hyperband" else {"epochs": args.epochs}
    tuner.search(
        data.train,
        validation_data=data.batches(data.validation),
        callbacks=[early_stopping],
        **epochs,
    )
    if name.startswith("worker"):
        return  # the chief holds the oracle and trains the best model
    loss, accuracy = train_best(tuner, hypermodel, data)
    say(f"test loss {loss:.6f}")
    say(f"test accuracy {accuracy:.4f}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job; a problem that the user can fix ends it with one line."""
    with job_errors.exit_with_message("tuner"):
        run(parse(arguments))


if __name__ == "__main__":
    main()
