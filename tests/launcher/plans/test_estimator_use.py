"""A job that certainly uses Estimator needs TensorFlow 2.15; a possible use gives only a note."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tfcluster.nodes.probe_answers import ProbeAnswer
from tfcluster.plans import checks
from tfcluster.plans.build import make_plan
from tfcluster.plans.context import PlanContext
from tfcluster.plans.imports import Code
from tfcluster.plans.plan import Interpreter
from tfcluster.preflight import rules
from tfcluster.spec.model import ClusterSpec

SpecOf = Callable[[dict[str, Any]], ClusterSpec]
NEWEST = Interpreter("/v/bin/python", "$VIRTUAL_ENV", "3.11.7", {"tensorflow": "2.21.0"})
LAST = replace(NEWEST, packages={"tensorflow": "2.15.1"})

TUTORIAL = """
import tensorflow as tf
def model_fn(features, labels, mode):
    if mode == "predict":
        return tf.estimator.EstimatorSpec(mode)
    return tf.estimator.EstimatorSpec(mode, loss=0.0)
def main():
    classifier = tf.estimator.Estimator(model_fn)
    tf.estimator.train_and_evaluate(classifier, None, None)
if __name__ == "__main__":
    main()
"""
CERTAIN = {
    "the tutorial": TUTORIAL,
    "at the top": "import tensorflow as tf\nspec = tf.estimator.TrainSpec(None)",
    "of version 1": "import tensorflow.compat.v1 as tf1\ntf1.estimator.Estimator(None)",
    "imported": "from tensorflow import estimator",
    "imported from": "from tensorflow.estimator import Estimator",
    "by its own name": "import tensorflow_estimator",
    "from Keras": "from tensorflow import keras\nkeras.estimator.model_to_estimator(1)",
    "in a with": "import tensorflow as tf\nwith open('x') as f:\n    tf.estimator.Estimator(f)",
    "in a class that is made": (
        "import tensorflow as tf\nclass A:\n    def __init__(self):\n"
        "        tf.estimator.Estimator(1)\nA()"
    ),
    "in a function that is called": (
        "import tensorflow as tf\ndef fit():\n    tf.estimator.Estimator(1)\n"
        "def main():\n    fit()\nmain()"
    ),
    "by an app that finds main": (
        "import tensorflow as tf\ndef main(_):\n    tf.estimator.Estimator(1)\n"
        "if __name__ == '__main__':\n    tf.compat.v1.app.run()"
    ),
    "by an app that is given main": (
        "from absl import app\nimport tensorflow as tf\ndef run(_):\n"
        "    tf.estimator.Estimator(1)\nif __name__ == '__main__':\n    app.run(run)"
    ),
    "with no handler": (
        "import tensorflow as tf\ntry:\n    tf.estimator.Estimator(1)\nfinally:\n    end()"
    ),
}
OLD = "import tensorflow as tf\ndef old():\n    tf.estimator.Estimator(1)\n"
POSSIBLE = {
    "a version check": (
        "import tensorflow as tf\nif tf.__version__ < '2.16':\n    tf.estimator.Estimator(1)"
    ),
    "hasattr": "import tensorflow as tf\nE = tf.estimator if hasattr(tf, 'estimator') else None",
    "try": (
        "import tensorflow as tf\ntry:\n    run = tf.estimator.train_and_evaluate\n"
        "except AttributeError:\n    run = None"
    ),
    "any error": "try:\n    import tensorflow_estimator\nexcept:\n    pass",
    "an option": "import tensorflow as tf\nif args.old:\n    tf.estimator.Estimator(1)",
    "a function nobody calls": "import tensorflow as tf\ndef old():\n    tf.estimator.Estimator(1)",
    "a function called under a condition": (
        "import tensorflow as tf\ndef old():\n    tf.estimator.Estimator(1)\n"
        "if args.old:\n    old()"
    ),
    "after the other way out": (
        "import tensorflow as tf\ndef main():\n    if is_new(tf.version):\n        return fit()\n"
        "    tf.estimator.Estimator(1)\nmain()"
    ),
    "in a method": (
        "import tensorflow as tf\nclass A:\n    def fit(self):\n        tf.estimator.Estimator(1)\n"
        "def main():\n    A().fit()\nmain()"
    ),
    "in a try": (
        "import tensorflow as tf\ntry:\n    tf.estimator.Estimator(1)\n"
        "except KeyboardInterrupt:\n    pass"
    ),
    "after an option that leaves": (
        f"{OLD}def main(_):\n    if FLAGS.use_keras:\n        run_keras()\n        return\n"
        "    old()\ntf.compat.v1.app.run()"
    ),
    "after a condition that is turned round": (
        f"{OLD}def main():\n    if not use_old:\n        return keras()\n    old()\nmain()"
    ),
    "after an exit": f"{OLD}if use_keras:\n    keras()\n    sys.exit(0)\nold()",
    "after a function that exits": (
        f"{OLD}def keras():\n    fit()\n    sys.exit()\nif use_keras:\n    keras()\nold()"
    ),
    "after a try that leaves": (
        f"{OLD}def main():\n    try:\n        return keras()\n    except ValueError:\n"
        "        pass\n    old()\nmain()"
    ),
    "after a match that leaves": (
        f"{OLD}def main():\n    match kind:\n        case 'keras':\n            return\n"
        "    old()\nmain()"
    ),
    "after a with that leaves": (
        f"{OLD}def main():\n    with scope():\n        if new:\n            return\n"
        "    old()\nmain()"
    ),
    "in the rest of a loop": f"{OLD}for kind in kinds:\n    if new:\n        continue\n    old()",
    "in a loop that may have no round": f"{OLD}for kind in kinds:\n    old()",
    "an error that is suppressed": f"{OLD}with contextlib.suppress(AttributeError):\n    old()",
    "a method of the same name": (
        "import tensorflow as tf\nclass Old:\n    def run(self):\n"
        "        tf.estimator.Estimator(1)\nclass Trainer:\n    def run(self):\n        fit()\n"
        "Trainer().run()"
    ),
    "a dispatch table": f"{OLD}TABLE = {{'old': old, 'new': new}}\nTABLE[args.kind]()",
    "a function that is handed on": f"{OLD}start(old)",
    "a name with two meanings": f"{OLD}if new:\n    old = keras\nold()",
    "a parameter of that name": f"{OLD}def start(old):\n    old()\nstart(keras)",
    "a decorator": "import tensorflow as tf\n@on_old\ndef f():\n    tf.estimator.A()\nf()",
    "a generator": "import tensorflow as tf\ndef f():\n    yield tf.estimator.A()\nf()",
    "not the script itself": f"{OLD}if __name__ != '__main__':\n    old()",
    "an import in a function nobody calls": "def old():\n    import tensorflow_estimator",
}
NEVER = {
    "scikit-learn's": "from sklearn import base\nbase.estimator.fit()\nself.estimator = 1",
    "a variable": "import tensorflow as tf\nestimator = tf.keras.Model()\nestimator.fit()",
    "a string": "import tensorflow as tf\nprint('tf.estimator')",
    "no Python": "print 'tf.estimator'",
}


@pytest.mark.parametrize("source", CERTAIN.values(), ids=CERTAIN)
def test_a_use_that_always_happens_is_certain(source: str) -> None:
    found = Code.read(source, file="train.py").estimator
    assert found.sure()
    assert set(found.sure()) <= set(found.places)


@pytest.mark.parametrize("source", POSSIBLE.values(), ids=POSSIBLE)
def test_a_use_that_may_be_meant_for_an_older_tensorflow_is_only_possible(source: str) -> None:
    found = Code.read(source, file="train.py").estimator
    assert found.sure() == ()
    assert found.places


@pytest.mark.parametrize("source", NEVER.values(), ids=NEVER)
def test_other_code_does_not_count_as_a_use_of_estimator(source: str) -> None:
    assert Code.read(source).estimator.places == ()


def test_a_use_in_another_file_is_certain_if_the_script_calls_the_function() -> None:
    model = "import tensorflow as tf\ndef build():\n    return tf.estimator.Estimator(1)\n"
    model += "if __name__ == '__main__':\n    build()\n"
    module = Code.read(model, file="model.py", is_start=False)
    script = Code.read("import model\nprint(1)", file="train.py")
    assert (script | module).estimator.sure() == ()
    script = Code.read("from model import build\nbuild()", file="train.py")
    assert (script | module).estimator.sure() == ("model.py:3",)


def test_functions_of_the_same_name_in_two_files_are_not_confused() -> None:
    utils = "import tensorflow as tf\ndef helper(): pass\ndef main():\n    tf.estimator.A()\nX = 1"
    script = "from utils import helper\ndef main():\n    helper()\nmain()"
    module = Code.read(utils, file="utils.py", is_start=False)
    found = (Code.read(script, file="train.py") | module).estimator
    assert found.sure() == ()
    assert found.places == ("utils.py:4",)


@pytest.mark.parametrize(
    ("script", "sure"),
    [
        ("import old", True),
        ("from lib.old import x", True),
        ("try:\n    import old\nexcept ImportError: pass", False),
        ("def use():\n    import old", False),
    ],
)
def test_a_use_at_the_top_of_another_file_is_certain_if_the_file_is_certainly_imported(
    script: str, sure: bool
) -> None:
    top = "import tensorflow as tf\nx = tf.estimator.Estimator(1)"
    module = Code.read(top, file="lib/old.py", is_start=False)
    found = (Code.read(script, file="train.py") | module).estimator
    assert found.sure() == (("lib/old.py:2",) if sure else ())


@pytest.mark.parametrize("summands", [700, 100_000])
def test_an_expression_too_deep_to_be_read_gives_no_result(summands: int) -> None:
    deep = "import tensorflow as tf\nx = " + "+".join(["1"] * summands)
    assert Code.read(f"{deep}\ntf.estimator.Estimator(1)").imports <= {"tensorflow"}


def context_of(machine: PlanContext, source: str, python: Interpreter) -> PlanContext:
    code = Code.read(source, file="train.py")
    return replace(machine, imports=code.imports, code=code, interpreters={"local": python})


def test_a_certain_use_is_refused_with_its_line(spec_of: SpecOf, machine: PlanContext) -> None:
    spec = spec_of({})
    context = context_of(machine, TUTORIAL, NEWEST)
    (found,) = checks.find(spec, make_plan(spec, context), context)
    assert found.exit_code == 3
    assert found.message == (
        "TensorFlow 2.15 was the last with tf.estimator (train.py:8 uses it),"
        " but /v/bin/python ($VIRTUAL_ENV) has 2.21.0"
    )
    assert "--python PATH" in found.fix
    context = context_of(machine, TUTORIAL, LAST)
    assert list(checks.find(spec, make_plan(spec, context), context)) == []


def test_a_possible_use_gives_only_a_note(spec_of: SpecOf, machine: PlanContext) -> None:
    spec = spec_of({})
    note = "train.py:3 uses tf.estimator, which TensorFlow 2.21.0 does not have"
    context = context_of(machine, POSSIBLE["a version check"], NEWEST)
    plan = make_plan(spec, context)
    assert list(checks.find(spec, plan, context)) == []
    assert [note in line for line in plan.notes].count(True) == 1
    context = context_of(machine, POSSIBLE["a version check"], LAST)
    assert not any("estimator" in line for line in make_plan(spec, context).notes)


@pytest.mark.parametrize(("version", "stopped"), [("2.21.0", True), ("2.15.1", False)])
def test_another_host_is_refused_once_its_tensorflow_is_known(
    spec_of: SpecOf, machine: PlanContext, version: str, stopped: bool
) -> None:
    spec = spec_of({"cluster": {"worker": ["10.0.0.1:1", "10.0.0.2:1"]}})
    plan = make_plan(spec, context_of(machine, TUTORIAL, NEWEST))
    answer = ProbeAnswer("10.0.0.1", python="3.11.7", packages={"tensorflow": version})
    found = rules.judge([answer], rules.needs_of(plan))
    assert [(f.check, f.is_fatal) for f in found] == ([("TensorFlow", True)] if stopped else [])
    assert all("runtime.hosts.10.0.0.1.python" in f.fix for f in found)
