"""Many small trainings with Keras 3, run by one or several workers: the numbers must agree.

    python -m tests.workers.keras3 [CASE…]

Prints `case NAME {JSON}` for each; started by test_keras3.py, through boot.
"""

from __future__ import annotations

import json
import sys
import traceback

import keras
import numpy as np

from . import data, lab, models

ROOMS = (data, models)
"""Importing them fills the tables of `lab`."""


def main(names: list[str]) -> None:
    cases = {**lab.CASES, **lab.REFUSED} if lab.strategy.num_replicas_in_sync > 1 else lab.CASES
    for name in names or cases:
        keras.utils.set_random_seed(1)
        keras.backend.clear_session()
        try:
            result = cases[name]()
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
            traceback.print_exc()
        print(
            "case", name, json.dumps(result, default=lambda v: np.asarray(v).tolist()), flush=True
        )


if __name__ == "__main__":
    main(sys.argv[1:])
