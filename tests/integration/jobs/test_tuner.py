"""A hyperparameter search with the real KerasTuner, from the shipped spec and from user scripts.

Two tuners, one of which is killed in the middle of a trial, find the same result as a single tuner:
a search does not depend on which tuner ran a trial, or how often a trial was started.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from tests.documentation import unprinted
from tests.integration.commandline import wait_for
from tests.integration.live import Live

from .lab import PYTHONS, SPECS, Lab, Trained, a_lab
from .own_searches import CHIEF_DIES, DIES, FAILS, SCRIPT

# A chief and two tuners, each with its own TensorFlow process.
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(900)]

SPEC = str(SPECS / "tuner-2t.json")
SMALL = ("--examples", "400", "--epochs", "2")


class Searches:
    """The runs of this file, each started once."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    @cache  # noqa: B019 (lives as long as the module's fixture)
    def shipped_spec(self, tensorflow: str, *args: str) -> Trained:
        return self.lab.train("up", SPEC, f"--python={PYTHONS[tensorflow]}", "--", *args)

    @cache  # noqa: B019
    def killed(self) -> tuple[Trained, str | None]:
        """Run two tuners; return the run and the id of the trial in which worker:1 was killed."""
        trials = ("--", *SMALL, "--trials", "5")
        live = Live(self.lab.line, "up", SPEC, f"--python={PYTHONS['tf215']}", *trials)
        trial = wait_for(
            lambda: kill_in_a_later_trial(live), what="a second trial of worker:1", timeout=300
        )
        code = live.end(300)
        out = live.out.read_text(errors="replace")
        return Trained(code, out, live.said(), live.folder, live.events(), live.state()), trial

    @cache  # noqa: B019
    def alone(self) -> Trained:
        """Run a single tuner without a chief: it has its own oracle."""
        return self.lab.train(
            "up",
            SPEC,
            f"--python={PYTHONS['tf215']}",
            "--set=cluster.chief=null",
            "--set=cluster.worker=1",
            *("--", *SMALL, "--trials", "5"),
        )

    def script(self, body: str, *sets: str) -> Trained:
        """Run a user script that searches without training, with a chief and two tuners."""
        self.lab.line.script("search.py", SCRIPT + body)
        job = {"script": "search.py", "kind": "tuner"}
        spec = self.lab.line.spec("search.json", job, cluster={"chief": 1, "worker": 2})
        options = (f"--set={change}" for change in sets)
        return self.lab.train("up", str(spec), f"--python={PYTHONS['tf215']}", *options)


@pytest.fixture(scope="module")
def searches() -> Iterator[Searches]:
    with a_lab() as lab:
        yield Searches(lab)


def kill_in_a_later_trial(live: Live) -> str | None:
    """Kill worker:1 in a trial that is not its first, and return the id of that trial."""
    worker = next(task for task in live.state()["tasks"] if task["task"] == "worker:1")
    if running_trial(live) is None or worker["pid"] is None:
        return None
    # A stopped worker cannot finish the trial during the second check.
    os.kill(worker["pid"], signal.SIGSTOP)
    time.sleep(0.5)
    trial = running_trial(live)
    os.kill(worker["pid"], signal.SIGKILL if trial else signal.SIGCONT)
    return trial


def running_trial(live: Live) -> str | None:
    """Return the trial that worker:1 is running, once it has completed another one."""
    own = [trial for trial in live.state()["trials"] if trial.get("tuner") == "worker:1"]
    running = [trial["id"] for trial in own if trial["status"] == "RUNNING"]
    done = [trial for trial in own if trial["status"] == "COMPLETED"]
    return running[0] if done and running else None


def trials_in_folder(trained: Trained, project: str = "search") -> dict[str, dict[str, Any]]:
    """Return the trials by id, as the oracle wrote them to its folder."""
    found = (trained.folder / "tuner" / project).glob("trial_*/trial.json")
    trials = [json.loads(path.read_text()) for path in found]
    return {trial["trial_id"]: trial for trial in trials}


def by_id(trained: Trained) -> dict[str, dict[str, Any]]:
    return {trial["id"]: trial for trial in trained.state["trials"]}


def check_all_name_the_same_best_trial(searches: Searches, trained: Trained) -> None:
    """Check the summary, `status --json`, the oracle's folder and the job's own line."""
    written = trials_in_folder(trained)
    best = min(written.values(), key=lambda trial: float(trial["score"]))
    name, score = best["trial_id"], best["score"]
    assert f"best  trial {name}, val_loss {score:.5g}: " in trained.err
    assert trained.state["best_trial"] == name
    assert by_id(trained)[name]["score"] == pytest.approx(score, abs=0)
    status = json.loads(searches.lab.line.run("status", "--json", trained.folder.name).out)
    assert status["best_trial"] == name
    assert status["trials"] == trained.state["trials"]
    (said,) = trained.said(oracle_of(trained), r"^best trial (\S+), val_loss (\S+) at")
    assert said[0] == name
    assert float(said[1]) == pytest.approx(score, abs=1e-6)


def oracle_of(trained: Trained) -> str:
    return str(trained.state["tasks"][0]["task"])


# -- two tuners, one of them killed, against a single tuner


def test_a_search_succeeds_although_a_tuner_was_killed(searches: Searches) -> None:
    trained, _ = searches.killed()
    assert trained.code == 0, trained.complaint()
    assert [event["attempt"] for event in trained.of("task_started", "worker:1")] == [1, 2]
    for task in ("chief:0", "worker:0"):
        assert len(trained.of("task_started", task)) == 1
    assert trained.state["warnings"] == []


def test_a_restarted_tuner_repeats_its_trial_and_no_finished_trial_is_lost(
    searches: Searches,
) -> None:
    trained, trial = searches.killed()
    handed_out = [e for e in trained.of("trial") if e.get("status") == "RUNNING"]
    again = [event for event in handed_out if event["id"] == trial]
    assert [event["tuner"] for event in again] == ["worker:1", "worker:1"]
    assert len(handed_out) == 5 + 1, "every other trial was started once"
    assert {t["status"] for t in trials_in_folder(trained).values()} == {"COMPLETED"}
    assert len(by_id(trained)) == len(trials_in_folder(trained)) == 5


def test_each_tuner_completes_a_trial(searches: Searches) -> None:
    trained, _ = searches.killed()
    assert {trial["tuner"] for trial in by_id(trained).values()} == {"worker:0", "worker:1"}


def test_two_tuners_find_the_same_as_one_tuner(searches: Searches) -> None:
    (two, _), one = searches.killed(), searches.alone()
    assert one.code == 0, one.complaint()
    assert two.state["best_trial"] == one.state["best_trial"]
    for name, trial in by_id(one).items():
        assert by_id(two)[name]["values"] == trial["values"]
        assert by_id(two)[name]["score"] == pytest.approx(trial["score"], abs=1e-4)


def test_all_reports_name_the_same_best_trial(searches: Searches) -> None:
    check_all_name_the_same_best_trial(searches, searches.killed()[0])
    check_all_name_the_same_best_trial(searches, searches.alone())


def test_the_chief_alone_retrains_the_best_trial(searches: Searches) -> None:
    trained, _ = searches.killed()
    epoch = by_id(trained)[trained.state["best_trial"]]["best_step"] + 1
    (epochs,) = trained.said("chief:0", r"^training it on train and validation data for (\d+)")
    assert int(epochs) == -(-6 * epoch // 5)  # 1.2 times, rounded up
    assert len(trained.said("chief:0", r"^test accuracy (\S+)")) == 1
    assert trained.said("worker:0", r"^test accuracy") == []
    (kept,) = trained.of("checkpoint_gathered")
    assert kept["path"].endswith("best.keras")


# -- the newest TensorFlow with Keras 3, and the other ways to search


def test_a_search_with_keras_3(searches: Searches) -> None:
    how = ("--search", "bayesian", "--trials", "3", "--executions-per-trial", "2")
    trained = searches.shipped_spec("newest", "--examples", "400", "--epochs", "1", *how)
    assert trained.code == 0, trained.complaint()
    assert trained.said("chief:0", r"bayesian search .* Keras (3\.\d+)")
    assert len(by_id(trained)) == 3
    assert unprinted("tutorials/tuner.md", "best trial", trained.out) == []
    assert unprinted("tutorials/tuner.md", "trial 0 is done", trained.err) == []
    check_all_name_the_same_best_trial(searches, trained)


def test_hyperband_continues_with_the_better_half_of_the_trials(searches: Searches) -> None:
    trained = searches.shipped_spec(
        "tf215", "--examples", "200", "--epochs", "3", "--search", "hyperband"
    )
    assert trained.code == 0, trained.complaint()
    later = [t for t in by_id(trained).values() if "tuner/trial_id" in t["values"]]
    assert later, "some trial continues with the weights of another one"
    for trial in later:
        before = by_id(trained)[trial["values"]["tuner/trial_id"]]
        for name in ("filters", "units", "dropout", "learning_rate"):
            assert trial["values"][name] == before["values"][name]
    check_all_name_the_same_best_trial(searches, trained)


# -- searches that fail


def test_a_chief_is_stopped_if_a_tuner_is_lost_and_finished_trials_are_kept(
    searches: Searches,
) -> None:
    sets = ("supervision.max_restarts=0", "supervision.finish_grace_s=3")
    trained = searches.script(DIES, *sets)
    assert trained.code == 1
    (ended,) = trained.of("task_exited", "chief:0")
    assert ended["ended_by"] == "tfcluster", "KerasTuner's chief waits forever for the dead tuner"
    assert trained.state["diagnosis"]["root_cause"]["task"] == "worker:1"
    statuses = sorted(t["status"] for t in trials_in_folder(trained, "square").values())
    assert statuses == ["COMPLETED", "COMPLETED", "COMPLETED", "RUNNING"]


def test_a_search_whose_chief_was_killed_continues_with_the_kept_trials(searches: Searches) -> None:
    trained = searches.script(CHIEF_DIES)
    assert trained.code == 0, trained.complaint()
    assert [event["attempt"] for event in trained.of("task_started", "chief:0")] == [1, 2]
    assert {t["status"] for t in trials_in_folder(trained, "square").values()} == {"COMPLETED"}
    assert sorted(by_id(trained)) == ["0", "1", "2", "3", "4", "5"]
    begun = [event["id"] for event in trained.of("trial") if event.get("status") == "RUNNING"]
    done = [event["id"] for event in trained.of("trial") if event.get("status") == "COMPLETED"]
    assert sorted(done) == sorted(by_id(trained)), "no trial was completed twice"
    assert len(begun) <= 6 + 2, (
        "only the trials that the two tuners were running were started again"
    )


def test_a_search_fails_if_its_trials_fail(searches: Searches) -> None:
    trained = searches.script(FAILS)
    assert trained.code == 1
    cause = trained.state["diagnosis"]["root_cause"]
    assert cause["task"] == "chief:0"
    assert "consecutive failures exceeded the limit of 3" in cause["reason"]
    assert "ValueError: no such layer" in trained.err, "the table shows the reason"
    assert "best  none: no trial has completed" in trained.err
