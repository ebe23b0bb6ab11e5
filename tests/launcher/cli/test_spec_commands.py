"""The commands `validate`, `schema`, `init` and `completion`, and wrong command lines."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launcher.conftest import Tfcluster

from tfcluster.cli.completion import SHELLS
from tfcluster.spec import published_schema

GOOD = '{"cluster": {"worker": 2}, "job": {"script": "t.py"}}'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enter a folder that holds only a script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").touch()


def test_validate_answers_in_json(tfcluster: Tfcluster) -> None:
    Path("lab.json").write_text(GOOD.replace("worker", "workers"))
    done = tfcluster("validate", "--json", "lab.json")
    assert done.code == 2
    answer = json.loads(done.out)
    assert answer["valid"] is False
    assert answer["problems"][0] == {
        "place": "lab.json:1:14",
        "message": "unknown key 'workers' in cluster",
        "cure": 'did you mean "worker"?',
    }
    Path("lab.json").write_text(GOOD)
    assert json.loads(tfcluster("validate", "--json", "lab.json").out)["valid"] is True


def test_several_specs_are_validated_and_the_problems_of_all_are_reported(
    tfcluster: Tfcluster,
) -> None:
    Path("good.json").write_text(GOOD)
    Path("bad.json").write_text(GOOD.replace("worker", "workers"))
    specs = ("bad.json", "good.json", "gone.json")

    done, in_json = tfcluster("validate", *specs), tfcluster("validate", "--json", *specs)

    assert done.code == in_json.code == 2
    assert "bad.json:1:14: unknown key 'workers' in cluster\n  → did you mean" in done.err
    assert "good.json: OK; good, 2 tasks" in done.err
    assert "gone.json: no such file" in done.err
    assert [json.loads(line)["valid"] for line in in_json.out.splitlines()] == [False, True, False]


def test_a_spec_is_read_from_standard_input(
    tfcluster: Tfcluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"cluster": 2,}')))
    done = tfcluster("validate", "-")
    assert done.code == 2
    assert "<stdin>:1:14: unexpected comma before '}'" in done.err


def test_init_writes_a_valid_spec_and_its_schema(tfcluster: Tfcluster, tmp_path: Path) -> None:
    assert tfcluster("init").code == 0
    spec = json.loads((tmp_path / "tfcluster.json").read_text())
    assert (tmp_path / spec["$schema"]).read_text() == published_schema.text()
    assert tfcluster("schema").out == published_schema.text()
    assert spec["cluster"] == {"worker": 2}
    assert not {"name", "x-about"} & set(spec)
    assert tfcluster("validate").err == "tfcluster.json: OK; tfcluster, 2 tasks\n"


def test_init_lists_its_templates_and_accepts_each(tfcluster: Tfcluster) -> None:
    listed = [line.split()[0] for line in tfcluster("init", "--list").out.splitlines()]
    assert {"localhost-2w", "hosts-2x", "estimator-2w-evaluator"} <= set(listed)
    for name in listed:
        assert tfcluster("init", f"{name}.json", "--template", name).code == 0
        assert tfcluster("validate", f"{name}.json").code == 0
    mine = json.loads(Path("estimator-2w-evaluator.json").read_text())
    assert set(mine) == {"$schema", "version", "cluster", "job"}, "without its name and Python"
    assert json.loads(Path("hosts-2x.json").read_text())["runtime"]["hosts"]["*"]["python"]


def test_init_overwrites_only_with_force(tfcluster: Tfcluster) -> None:
    Path("mine.json").write_text("precious")
    done = tfcluster("init", "mine.json")
    assert done.code == 2
    assert "mine.json already exists" in done.err
    assert Path("mine.json").read_text() == "precious"
    assert tfcluster("init", "mine.json", "--force").code == 0
    assert tfcluster("validate", "mine.json").code == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(shell: str, tfcluster: Tfcluster) -> None:
    done = tfcluster("completion", shell)
    assert done.code == 0
    assert f"_TFCLUSTER_COMPLETE={shell}_complete" in done.out
    source = completed("", _TFCLUSTER_COMPLETE=f"{shell}_source")
    assert source.stdout.rstrip() == done.out.rstrip()


def completed(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Return what the shell's script reads for a command line up to the cursor."""
    more = {"_TFCLUSTER_COMPLETE": "bash_complete", "_TFCLUSTER_LINE": line, **variables}
    command = [Path(sys.executable).parent / "tfcluster"]
    return subprocess.run(command, env={**os.environ, **more}, capture_output=True, text=True)


def test_the_completion_of_bash_repeats_nothing_that_it_has_broken_off(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("cluster: {worker: 2}\n")
    line = f"tfcluster plan {tmp_path}/a.yaml --task=worker:"
    assert completed(line, _TFCLUSTER_BREAKS=" :=").stdout.split() == ["0", "1"]
    done = completed(line, _TFCLUSTER_BREAKS=" =")
    assert (done.stdout.split(), done.stderr) == (["worker:0", "worker:1"], "")


def test_bash_of_macos_can_load_the_script() -> None:
    """macOS has bash 3.2, without `compopt`, `mapfile` and ``complete -o nosort``."""
    script = SHELLS["bash"].source_template
    assert not re.search(r"compopt|mapfile|readarray|declare -A", script)
    assert script.rstrip().endswith(
        "||\n    complete -o default -F _tfcluster_completion tfcluster"
    )


# A case → its command line, and a part of the message.
BAD_LINES = {
    "no such file": (["validate", "nowhere.json"], "nowhere.json: no such file"),
    "no default spec": (["validate"], "no tfcluster.json (.jsonc, .yaml, .yml) in this folder"),
    "a folder": (["validate", "."], "this is a folder, not a spec file"),
    "a path with NUL": (["validate", "a\0b"], "not a valid path"),
    "a path too long": (["validate", "a" * 5000], "cannot be read: File name too long"),
    "bytes in a path": (["validate", "\udcff.json"], "no such file"),
    "two specs": (["plan", "good.json", "good.json"], "unexpected extra argument"),
    "unknown command": (["validat"], "No such command 'validat'"),
    "unknown option": (["validate", "--jsn"], "No such option"),
    "--set without a value": (["validate", "good.json", "--set"], "requires an argument"),
    "--set without =": (["validate", "good.json", "--set", "name"], "not FIELD=VALUE"),
    "unknown template": (["init", "--template", "moon"], "there is no template 'moon'"),
    "FILE of no format": (["init", "spec.ini"], "write spec.json"),
    "FILE that is a script": (["init", "t.py"], "tfcluster init --script t.py"),
    "FILE in a file": (["init", "good.json/a.json"], "cannot write good.json/.tfcluster"),
    "unknown shell": (["completion", "tcsh"], "'tcsh' is not one of"),
    "plan of a bad spec": (["plan", "bad.json"], "bad.json:1:24: cluster.worker: 0 is too small"),
    "env of no task": (["env", "good.json", "worker:x"], "worker:x"),
}


@pytest.mark.parametrize(("line", "message"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_wrong_command_line_exits_with_2_and_a_fix(
    line: list[str], message: str, tfcluster: Tfcluster
) -> None:
    Path("good.json").write_text(GOOD)
    Path("bad.json").write_text(GOOD.replace("2", "0"))
    done = tfcluster(*line)
    assert done.code == 2
    assert message in done.err
    assert done.out == ""
    assert "Traceback" not in done.err
