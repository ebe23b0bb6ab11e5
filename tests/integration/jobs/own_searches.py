"""User scripts that search with KerasTuner without training: tuners or the chief die or fail."""

from __future__ import annotations

SCRIPT = """
import os, signal, time
import keras_tuner

ME = os.environ["KERASTUNER_TUNER_ID"]

class Square(keras_tuner.RandomSearch):
    def run_trial(self, trial, *args, **kwargs):
        x = trial.hyperparameters.Float("x", -1.0, 1.0)
        time.sleep(0.5)
        return self.measure(trial, x)

    def measure(self, trial, x):
        return x * x

def search(kind, **how):
    space = keras_tuner.HyperParameters()
    space.Float("x", -1.0, 1.0)  # else only the end of a first trial would tell the oracle
    folder = os.environ["TFCLUSTER_TUNER_DIR"]
    return kind(
        directory=folder, project_name="square", seed=3, hyperparameters=space, **how
    )
"""
DIES = """
class Dies(Square):
    def measure(self, trial, x):
        if ME == "worker-1":
            open("dies", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        while not os.path.exists("dies"):  # else the other tuner may do all trials before
            time.sleep(0.02)
        return x * x

search(Dies, max_trials=4).search()
"""
CHIEF_DIES = """
import glob, json, threading

def done(path):
    return json.load(open(path))["status"] == "COMPLETED"

class Waits(Square):  # ends one trial, and no other before the chief is dead
    ended = 0
    def measure(self, trial, x):
        while self.ended and not os.path.exists("struck"):
            time.sleep(0.02)
        while self.ended and os.path.exists("/proc/" + open("struck").read()):
            time.sleep(0.02)
        self.ended += 1
        return x * x

def strike():
    folder = os.path.join(os.environ["TFCLUSTER_TUNER_DIR"], "square")
    books, trials = os.path.join(folder, "oracle.json"), os.path.join(folder, "trial_*/trial.json")
    # Not while a trial ends: it is written as ended before it is struck from those under way, and
    # KerasTuner would rightly do it once more.
    while (
        sum(map(done, written := glob.glob(trials))) < 2
        or time.time() - max(map(os.path.getmtime, [books, *written])) < 0.2
    ):
        time.sleep(0.02)
    with open("strikes", "w") as file:
        file.write(str(os.getpid()))
    os.replace("strikes", "struck")
    os.kill(os.getpid(), signal.SIGKILL)

if ME == "chief-0" and os.environ["TFCLUSTER_ATTEMPT"] == "1":
    threading.Thread(target=strike, daemon=True).start()
search(Waits, max_trials=6).search()
"""
FAILS = """
class Fails(Square):
    def measure(self, trial, x):
        raise ValueError("no such layer")

search(Fails, max_trials=6).search()
"""
