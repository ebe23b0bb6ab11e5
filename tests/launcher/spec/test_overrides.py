"""``--set`` overrides any field of the spec, and mistakes in it name the option."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tfcluster.errors import SpecError
from tfcluster.spec import PlanOptions
from tfcluster.spec.load import load

from .writing import HOSTS, LEAST, problems_of, spec_of


@pytest.mark.parametrize(
    ("option", "found"),
    [
        ("supervision.max_restarts=0", lambda spec: spec.supervision.max_restarts == 0),
        ("supervision.run_deadline_s=12h", lambda spec: spec.supervision.run_deadline_s == 43200),
        ("supervision.grace_s=5", lambda spec: spec.supervision.grace_s == 5),
        ("name=007", lambda spec: spec.name == "007"),
        ("keras.version=3", lambda spec: spec.keras.version == "3"),
        ("strategy.communication=RING", lambda spec: spec.strategy.communication == "RING"),
        ("resources.gpus=all", lambda spec: spec.resources.gpus == "all"),
        ("resources.gpus=2", lambda spec: spec.resources.gpus == 2),
        ("resources.pin=true", lambda spec: spec.resources.pin),
        ('job.args=["--lr", "1"]', lambda spec: spec.job.args == ("--lr", "1")),
        ("job.args.0=--lr", lambda spec: spec.job.args == ("--lr",)),
        ("job.env.A=b=c", lambda spec: spec.job.env == {"A": "b=c"}),
        ("job.env.A=", lambda spec: spec.job.env == {"A": ""}),
        ("job.env.A=null", lambda spec: spec.job.env == {"A": None}),
        ("job.env.A.B=12", lambda spec: spec.job.env == {"A.B": "12"}),
        (
            'job.per_task.worker:1.args=["a"]',
            lambda spec: spec.job.per_task["worker:1"].args == ("a",),
        ),
        (
            "job.per_task.worker.script=b.py",
            lambda spec: spec.job.per_task["worker"].script == "b.py",
        ),
        ("cluster.worker=3", lambda spec: spec.cluster["worker"] == 3),
        ("cluster.worker.1=gpu7:1", lambda spec: spec.hosts == ("10.0.0.1", "gpu7")),
        ("cluster.worker.2=gpu7:1", lambda spec: len(spec.hosts) == 3),
        ("cluster.worker.0.gpus=[1]", lambda spec: spec.cluster["worker"][0].gpus == (1,)),
        (
            "runtime.hosts.10.0.0.1.env.A=1",
            lambda spec: spec.runtime.hosts["10.0.0.1"].env == {"A": "1"},
        ),
        ("runtime.hosts.*.python=/p", lambda spec: spec.runtime.hosts["*"].python == "/p"),
    ],
)
def test_a_field_is_overridden(option: str, found: Any, tmp_path: Path) -> None:
    assert found(spec_of(HOSTS, tmp_path, sets=[option]))


BAD = {
    "supervision.grace=5": ("unknown key 'grace' in supervision", 'did you mean "grace_s"?'),
    "grace_s=5": ("unknown key 'grace_s'", "it belongs to supervision.grace_s"),
    "foo": ("not FIELD=VALUE", "--set supervision.grace_s=60"),
    "=5": ("not FIELD=VALUE", "--set"),
    "..=5": ("unknown key ''", "known keys"),
    "supervision.grace_s=soon": ("'soon' is not a duration", "90s"),
    "supervision.max_restarts=many": ("'many' is not valid JSON", "max_restarts=10"),
    "supervision.max_restarts=-1": ("too small", "at least 0"),
    "job.args=--x": ("not valid JSON", """--set job.args='["--epochs", "30"]'"""),
    "strategy.communication=ring": ("'ring' is not 'AUTO'", 'did you mean "RING"?'),
    "cluster.worker.5=a:1": ("has 2 items: there is no item 5", "use 0 to 2"),
    "cluster.worker.0=a": ("'a' has no port", "host:port"),
    "cluster.chief=2": ("at most one chief", "keep one"),
    "runtime.hosts.gpu9.python=p": ("no address of the cluster has the host 'gpu9'", "10.0.0.1"),
    "runtime.hosts.10.0.0.1.pythn=p": ("'p' is not valid JSON", "data_dir, env, python"),
    "version=2": ("has version 2", ""),
    "job.script.x=3": ("unknown key 'x' in job.script", "remove it"),
    "job.env.A=\udcff": ("not UTF-8", "UTF-8"),
}


@pytest.mark.parametrize(("option", "expected"), BAD.items(), ids=[ascii(option) for option in BAD])
def test_a_mistake_names_the_option(option: str, expected: tuple[str, str], tmp_path: Path) -> None:
    found = problems_of(json.dumps(HOSTS), tmp_path, sets=["name=fine", option])
    message, fix = expected
    assert any(message in problem.message and fix in problem.fix for problem in found), found
    assert {problem.place for problem in found} == {f"--set {option}"}


def test_an_option_replaces_a_mistake_in_the_file(tmp_path: Path) -> None:
    value = {**LEAST, "job": {"script": "t.py", "args": "--x"}}
    assert spec_of(value, tmp_path, sets=["job.args=[]"]).job.args == ()


def test_other_options_are_named_in_their_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(LEAST))
    assert load(path, PlanOptions(fields={"--name": ("name", "exp7")})).spec.name == "exp7"
    with pytest.raises(SpecError, match=r"^--name: name: 'a/b' is not a valid run name"):
        load(path, PlanOptions(fields={"--name": ("name", "a/b")}))


def test_a_later_option_wins(tmp_path: Path) -> None:
    spec = spec_of(LEAST, tmp_path, sets=["name=a", "name=b"])
    assert spec.name == "b"


def test_an_item_of_a_number_is_refused(tmp_path: Path) -> None:
    (found,) = problems_of(json.dumps(LEAST), tmp_path, sets=["cluster.worker.0=a:1"])
    assert found.message == "cluster.worker is not a list in the file"
