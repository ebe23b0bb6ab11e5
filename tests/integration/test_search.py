"""A search with the real command, a stub chief and stub tuners, one of which is killed."""

from __future__ import annotations

import json
from typing import Any

from .commandline import CommandLine, Done

STUB = """
import json, os, pathlib, signal, time
from tfcluster_workers import reporting

places = ("KERASTUNER", "TF_CONFIG")
facts = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(places)}
folder = pathlib.Path(os.environ["TFCLUSTER_TUNER_DIR"])
print("facts", json.dumps(facts | {"folder": str(folder)}), flush=True)
folder.mkdir(parents=True, exist_ok=True)
me, attempt = os.environ["TFCLUSTER_TASK"], os.environ["TFCLUSTER_ATTEMPT"]

def tell(name, status, tuner=None, score=None):
    how = dict(objective="val_loss", direction="min", values={"units": 8})
    reporting.trial(name, status=status, tuner=tuner, score=score, **how)

def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.02)

if me == "chief:0":
    tell("0", "RUNNING", "worker-0")
    tell("1", "RUNNING", "worker-1")
    for task in ("worker:0", "worker:1"):
        wait_for(task)
    tell("0", "COMPLETED", score=0.5)
    tell("1", "COMPLETED", score=0.25)
    reporting.search_ended()
    time.sleep(1.5)  # longer than a deserted chief would be given
elif me == "worker:1" and attempt == "1":
    wait_for("worker:0")
    os.kill(os.getpid(), signal.SIGKILL)
else:
    reporting.waiting_for_peers()
    reporting.ready()
    (folder / me).touch()
"""


def facts_of(done: Done, task: str) -> list[dict[str, Any]]:
    start = f"{task} │ facts "
    lines = done.out.decode().splitlines()
    return [json.loads(line.removeprefix(start)) for line in lines if line.startswith(start)]


def test_a_search_runs_from_its_first_trial_to_the_summary(shell: CommandLine) -> None:
    shell.script("search.py", STUB)
    shell.env["KERASTUNER_TUNER_ID"] = "somebody-else's"
    job = {"script": "search.py", "kind": "tuner"}
    policy = {"finish_grace_s": 1, "backoff_s": 0}
    cluster = {"chief": 1, "worker": 2}
    spec = shell.spec("search.json", job, cluster=cluster, supervision=policy)
    done = shell.run("up", str(spec))
    assert done.code == 0, done.err
    (chief,), (first,) = facts_of(done, "chief:0"), facts_of(done, "worker:0")
    again = facts_of(done, "worker:1")
    assert len(again) == 2
    assert again[0] == again[1], "the same place in the search"
    ids = [facts["KERASTUNER_TUNER_ID"] for facts in (chief, first, again[0])]
    assert ids == ["chief-0", "worker-0", "worker-1"]
    for facts in (first, again[0]):
        assert facts | {"KERASTUNER_TUNER_ID": "chief-0"} == chief
    assert "TF_CONFIG" not in chief
    assert chief["folder"] == str(shell.last_run() / "tuner")

    assert [event["task"] for event in shell.events() if event["type"] == "restarting"] == [
        "worker:1"
    ]
    assert "1      completed  worker:1      0.25" in done.err
    assert "best  trial 1, val_loss 0.25: units 8" in done.err
    status = json.loads(shell.run("status", "--json").out)
    assert status["best_trial"] == "1"
    assert [(t["id"], t["tuner"], t["score"]) for t in status["trials"]] == [
        ("0", "worker:0", 0.5),
        ("1", "worker:1", 0.25),
    ]


def test_a_single_tuner_gets_no_variables_of_a_distributed_search(shell: CommandLine) -> None:
    shell.script("search.py", STUB)
    shell.env |= {"KERASTUNER_TUNER_ID": "chief", "KERASTUNER_ORACLE_IP": "10.0.0.1"}
    spec = shell.spec("search.json", {"script": "search.py", "kind": "tuner"}, workers=1)
    done = shell.run("up", str(spec))
    assert done.code == 0, done.err
    (facts,) = facts_of(done, "worker:0")
    assert list(facts) == ["folder"]
