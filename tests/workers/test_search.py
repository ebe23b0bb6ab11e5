"""A KerasTuner search reports its trials and its end, and fails if no trial succeeded.

The package is a stand-in with the structure of KerasTuner 1.4.8 (engine/base_tuner.py and
oracle.py, distribute/oracle_client.py and oracle_chief.py, and utils.py), because the real one
imports TensorFlow. tests/integration/jobs/test_tuner.py shows that the real one has this structure.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Boot

ENGINE = """
from types import SimpleNamespace as Trial

class BaseTuner:
    def __init__(self, *statuses):
        self.statuses = statuses
        self.oracle = Trial(trials={})

    def search(self, *fit_args, **fit_kwargs):
        for number, status in enumerate(self.statuses):
            message = "Traceback …\\nValueError: no such layer\\n"
            self.oracle.trials[str(number)] = Trial(
                status=status, message=None if status == "COMPLETED" else message
            )
"""
ORACLE = """
import threading
from types import SimpleNamespace as Any

LOCK = threading.Lock()

class Oracle:
    objective = Any(name="val_loss", direction="min")
    too_many = False

    def __init__(self):
        self.trials = {}

    def create_trial(self, tuner_id):
        if len(self.trials) == 2:
            return Any(trial_id="2", status="STOPPED")
        values = {"units": 64, "kind": Any(a=1), "rate": 0.5}
        trial = Any(
            trial_id=str(len(self.trials)), status="RUNNING", score=None, best_step=0,
            message=None, hyperparameters=Any(values=values),
        )
        self.trials[trial.trial_id] = trial
        return trial

    def end_trial(self, trial):
        if self.too_many:
            LOCK.acquire()  # as KerasTuner does: never given back after an error
            raise RuntimeError("Number of consecutive failures exceeded the limit of 3.")
        known = self.trials[trial.trial_id]
        known.status, known.score, known.best_step = "COMPLETED", 0.25, 3
"""
CLIENT = """
class OracleClient:
    def __init__(self, *answers):
        self.answers = list(answers)

    def create_trial(self, tuner_id):
        return self.answers.pop(0)

    def end_trial(self, trial):
        pass
"""
CHIEF = """
import time
from keras_tuner.src.engine import oracle as oracle_module

def exit_chief(oracle):
    with oracle_module.LOCK:
        return oracle.has_left()

def start_server(oracle):
    while True:
        time.sleep(1)
        if oracle.stop_triggered():
            while not exit_chief(oracle):
                time.sleep(20)
            break
"""
UTILS = """
import json

def save_json(path, obj):
    text = json.dumps(obj)
    with open(path, "w") as file:
        before_it_is_written(path)
        file.write(text)
    return text

def before_it_is_written(path):
    pass
"""
FILES = {
    "src/utils.py": UTILS,
    "src/engine/base_tuner.py": ENGINE,
    "engine/base_tuner.py": "from keras_tuner.src.engine.base_tuner import *\n",
    "src/engine/oracle.py": ORACLE,
    "src/distribute/oracle_client.py": CLIENT,
    "src/distribute/oracle_chief.py": CHIEF,
}
RECORDED = "import time\nnaps = []\ntime.sleep = naps.append\n"
LAST = "the last one with ValueError: no such layer"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Return the path of a script next to a package called keras_tuner."""
    for name, text in FILES.items():
        path = tmp_path / "keras_tuner" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for folder in ("", "src", "engine", "src/engine", "src/distribute"):
        (tmp_path / "keras_tuner" / folder / "__init__.py").touch()
    return tmp_path / "main.py"


@pytest.mark.parametrize(
    ("statuses", "reason"),
    [
        (["FAILED", "INVALID"], f"all 2 trials of the search failed; {LAST}"),
        (["INVALID"], f"the only trial of the search failed; {LAST}"),
        (["FAILED", "COMPLETED"], None),
        ([], None),
    ],
)
def test_the_result_of_a_search_is_checked_when_it_ends(
    script: Path, python: str, boot: Boot, statuses: list[str], reason: str | None
) -> None:
    script.write_text(
        "from keras_tuner.engine import base_tuner\n"
        f"base_tuner.BaseTuner(*{statuses!r}).search(1, epochs=2)\nprint('done')"
    )
    ended = boot("script", str(script), python=python)
    assert (ended.code, ended.out) == (0, "done\n"), ended.err
    verdict = [{"type": "verdict", "reason": reason}] if reason else []
    assert ended.events == [*verdict, {"type": "search_ended"}]


def test_the_oracle_of_another_process_is_not_checked(tmp_path: Path, boot: Boot) -> None:
    (tmp_path / "main.py").write_text(
        "from tfcluster_workers.hooks import tuner_hooks as tuner_watch\n"
        "class Client:\n"
        "    __slots__ = ()\n"
        "    def __getattr__(self, name): raise AttributeError(f'{name} is not on the allowlist')\n"
        "print(tuner_watch.failure(Client()))"
    )
    assert boot("script", str(tmp_path / "main.py")).out == "None\n"


def test_each_trial_of_the_oracle_is_reported(script: Path, python: str, boot: Boot) -> None:
    script.write_text(
        "from keras_tuner.src.engine.oracle import Oracle\n"
        "oracle = Oracle()\n"
        "trial = oracle.create_trial('worker-1')\n"
        "oracle.end_trial(trial)\n"
        "oracle.create_trial('worker-1')\n"
        "print(oracle.create_trial('worker-1').status)"
    )
    ended = boot("script", str(script), python=python)
    assert ended.out == "STOPPED\n", ended.err
    begun, done, second = ended.events
    assert begun == {
        "type": "trial", "id": "0", "status": "RUNNING", "tuner": "worker-1", "score": None,
        "best_step": 0, "objective": "val_loss", "direction": "min", "message": None,
        "values": {"units": 64, "kind": "namespace(a=1)", "rate": 0.5},
    }  # fmt: skip
    assert (done["status"], done["score"], done["best_step"]) == ("COMPLETED", 0.25, 3)
    assert (done["id"], done["tuner"], second["id"]) == ("0", None, "1")


def test_an_unknown_oracle_class_is_not_watched(script: Path, boot: Boot) -> None:
    script.write_text(
        "from keras_tuner.src.engine.oracle import Oracle\n"
        "oracle = Oracle()\n"
        "del Oracle.objective\n"
        "oracle.end_trial(oracle.create_trial('worker-1'))\n"
        "print('searched')"
    )
    ended = boot("script", str(script))
    assert (ended.out, ended.events) == ("searched\n", [])


def test_a_tuner_waits_for_its_chief_once_and_reports_why_a_trial_failed(
    script: Path, python: str, boot: Boot
) -> None:
    script.write_text(
        "from types import SimpleNamespace as Any\n"
        "from keras_tuner.src.distribute.oracle_client import OracleClient\n"
        "first = Any(trial_id='0', status='RUNNING', message='Traceback …\\nValueError: x')\n"
        "last = Any(trial_id='1', status='STOPPED', message=None)\n"
        "client = OracleClient(first, last)\n"
        "client.end_trial(client.create_trial('worker-1'))\n"
        "client.create_trial('worker-1')"
    )
    ended = boot("script", str(script), python=python)
    assert ended.events == [
        {"type": "waiting_for_peers"},
        {"type": "task_ready"},
        {"type": "trial_ended", "id": "0", "message": "Traceback …\nValueError: x"},
    ], ended.err


def test_an_idle_tuner_does_not_poll_without_a_pause(script: Path, boot: Boot) -> None:
    script.write_text(
        f"{RECORDED}"
        "from types import SimpleNamespace as Any\n"
        "from keras_tuner.src.distribute.oracle_client import OracleClient\n"
        "client = OracleClient(Any(status='IDLE'), Any(status='STOPPED'))\n"
        "while client.create_trial('worker-0').status == 'IDLE': pass\n"
        "print(naps)"
    )
    assert boot("script", str(script)).out == "[0.5]\n"


def test_a_chief_exits_soon_after_its_tuners(script: Path, python: str, boot: Boot) -> None:
    script.write_text(
        f"{RECORDED}"
        "from keras_tuner.src.distribute import oracle_chief\n"
        "class Oracle:\n"
        "    looks = 0\n"
        "    def stop_triggered(self): return True\n"
        "    def has_left(self):\n"
        "        self.looks += 1\n"
        "        return self.looks == 2\n"
        "oracle_chief.start_server(Oracle())\n"
        "print(naps)"
    )
    ended = boot("script", str(script), python=python)
    # KerasTuner itself would check again only after 20 s.
    assert (ended.out, ended.events) == ("[1, 1.0]\n", [{"type": "task_ready"}]), ended.err


def test_a_chief_whose_oracle_failed_exits(script: Path, python: str, boot: Boot) -> None:
    script.write_text(
        "import threading\n"
        "from keras_tuner.src.distribute import oracle_chief\n"
        "from keras_tuner.src.engine.oracle import Oracle\n"
        "oracle = Oracle()\n"
        "oracle.stop_triggered = lambda: False\n"
        "def answer():\n"
        "    trial = oracle.create_trial('worker-0')\n"
        "    oracle.too_many = True\n"
        "    try: oracle.end_trial(trial)\n"
        "    except RuntimeError: print('told the tuner', flush=True)\n"
        "threading.Thread(target=answer).start()\n"
        "oracle_chief.start_server(oracle)"
    )
    ended = boot("script", str(script), python=python)
    assert (ended.code, ended.out) == (1, "told the tuner\n")
    error = ended.events[-1]
    assert (error["type"], error["exception"]) == ("task_error", "RuntimeError")
    assert "consecutive failures" in error["message"]


def test_a_chief_killed_during_a_write_leaves_the_previous_state(
    script: Path, tmp_path: Path, boot: Boot
) -> None:
    script.write_text(
        "import json, os, signal\n"
        "from keras_tuner.src import utils\n"
        "print(utils.save_json('oracle.json', {'trials': 1}), flush=True)\n"
        "utils.before_it_is_written = lambda path: os.kill(os.getpid(), signal.SIGKILL)\n"
        "utils.save_json('oracle.json', {'trials': 2})"
    )
    ended = boot("script", str(script))
    assert (ended.code, ended.out) == (-9, '{"trials": 1}\n'), ended.err
    assert (tmp_path / "oracle.json").read_text() == '{"trials": 1}'
