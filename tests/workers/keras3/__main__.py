"""Runs many small trainings with Keras 3, whose numbers must not depend on the workers.

    python -m tests.workers.keras3 [CASE…]

It prints `case NAME {JSON}` for each case; test_keras3.py starts it through boot.
"""

from __future__ import annotations

import json
import sys
import traceback

import keras
import numpy as np

from . import data, lab, models

MODULES = (data, models)
"""The modules with the cases; their import fills the tables of `lab`."""


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
