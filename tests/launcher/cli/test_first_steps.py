"""A newcomer's first commands: `init` beside a script, and commands that are mixed up."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.documentation import blocks
from tests.launcher.conftest import Tfcluster
from tests.tables import rows

from tfcluster.cli.init import format_spec, training_scripts
from tfcluster.cli.main import COMMANDS, OTHER_WORDS
from tfcluster.spec import yaml_text

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enter a folder with a training script."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import tensorflow as tf\n")


FOR_SCRIPT = """{
  "$schema": ".tfcluster/spec-v1.schema.json",
  "version": 1,
  "name": "train",
  "cluster": {"worker": 2},
  "job": {"script": "train.py", "args": []}
}
"""


def test_init_writes_a_spec_for_the_script_in_the_folder(tfcluster: Tfcluster) -> None:
    done = tfcluster("init")
    assert (done.code, Path("tfcluster.json").read_text()) == (0, FOR_SCRIPT)
    assert (
        done.err == "wrote tfcluster.json, which runs train.py as 2 workers; next: tfcluster up\n"
    )
    assert tfcluster("validate").err == "tfcluster.json: OK; train, 2 tasks\n"


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        *(("README.md", "json"), ("docs/index.md", "json")),
        ("docs/guides/spec_files.md", "yaml"),
    ],
)
def test_the_documentation_shows_what_init_writes(
    tfcluster: Tfcluster, page: str, kind: str
) -> None:
    shown = next(block for block in blocks(ROOT / page) if block.kind == kind)
    assert tfcluster("init", f"tfcluster.{kind}", "--script", "train.py").code == 0
    assert Path(f"tfcluster.{kind}").read_text().strip() == shown.text.strip()


file_names = st.one_of(
    st.from_regex(r"[-+._0-9eExXobyn]{1,8}", fullmatch=True),
    st.sampled_from(["n", "Yes", "off", "null", "~", "true", "=", "<<", "1e3", "e5", "_", "1:30"]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0/"), min_size=1),
)


@given(file_names)
@example("\x7f")
def test_what_init_writes_is_what_is_read(name: str) -> None:
    job = {"workdir": f"../{name}", "script": name, "args": []}
    fields = {"version": 1, "name": name, "cluster": {"worker": 2}, "job": job}
    assert yaml_text.read(format_spec(fields, ".yaml")).value == fields


def test_a_command_in_a_hint_can_be_copied_whatever_the_files_name(tfcluster: Tfcluster) -> None:
    assert "tfcluster init --script 'my script.py'\n" in tfcluster("init", "my script.py").err
    assert "next: tfcluster up 'my spec.json'\n" in tfcluster("init", "my spec.json").err


def test_the_file_that_is_proposed_has_the_ending_that_was_typed(tfcluster: Tfcluster) -> None:
    assert tfcluster("init", "train.json").code == 0
    assert "did you mean train.json?" in tfcluster("validate", "trian.json").err
    assert "did you mean train.py?" in tfcluster("validate", "trian.py").err


@pytest.mark.parametrize("spec", ["specs/mine.json", "../mine.json", "mine.json"])
@pytest.mark.parametrize("script", ["train.py", "src/run_it.py", "../other/t.py"])
def test_the_spec_finds_its_script_from_any_folder(
    tfcluster: Tfcluster, tmp_path: Path, spec: str, script: str
) -> None:
    (tmp_path / "here").mkdir()
    os.chdir(tmp_path / "here")
    Path(script).parent.mkdir(exist_ok=True)
    Path(script).touch()
    assert tfcluster("init", spec, "--script", script).code == 0
    assert tfcluster("validate", spec).code == 0
    job = json.loads(Path(spec).read_text())["job"]
    if not script.startswith(".."):  # as for `tfcluster run`, the tasks start in this folder
        assert (Path(spec).parent / job.get("workdir", ".")).resolve() == tmp_path / "here"


def test_a_folder_without_scripts_gets_the_example(tfcluster: Tfcluster) -> None:
    Path("train.py").rename("data.csv")
    assert tfcluster("init").code == 0
    assert "keras_mnist" in Path("tfcluster.json").read_text()


def test_init_writes_a_spec_for_a_notebook(tfcluster: Tfcluster) -> None:
    source = "%pip install keras-tuner\nimport keras_tuner\ntuner.search(x, epochs=3)"
    cells = [{"cell_type": "code", "source": source}]
    Path("lesson.ipynb").write_text(json.dumps({"cells": cells}))
    assert training_scripts(Path()) == ["train.py"]
    Path("train.py").unlink()
    for args in [("--script", "lesson.ipynb"), ("--force",)]:
        done = tfcluster("init", *args)
        assert "which runs lesson.ipynb as 1 chief, 2 workers" in done.err
        job = json.loads(Path("tfcluster.json").read_text())["job"]
        assert job == {"kind": "tuner", "script": "lesson.ipynb", "args": []}
    assert tfcluster("validate").code == 0


def test_training_scripts_are_told_from_modules_and_tests(tmp_path: Path) -> None:
    for name, text in {
        "model.py": "import tensorflow",
        "fit.py": "import keras\nimport model",
        "train_all.py": "import subprocess",
        "evaluate.py": "def main():\n    from tensorflow import keras\n",
        "test_fit.py": "import tensorflow",
        "conftest.py": "import tensorflow",
        "plot.py": "import matplotlib",
        "broken.py": "import (",
        "setup.py": "import tensorflow",
    }.items():
        (tmp_path / name).write_text(text)
    Path("train.py").unlink()
    assert training_scripts(tmp_path) == ["train_all.py", "evaluate.py", "fit.py"]


@pytest.mark.parametrize(
    ("text", "cluster", "kind", "said"),
    [
        ("import keras_tuner\ntuner.search(x, epochs=3)", [1, 2], "tuner", "1 chief, 2 workers;"),
        ("import tensorflow as tf\ntf.distribute.ParameterServerStrategy(r)", [1, 2, 1], None,
         "1 chief, 2 workers, 1 ps;"),
    ],
)  # fmt: skip
def test_init_chooses_the_cluster_that_the_script_needs(
    tfcluster: Tfcluster, text: str, cluster: list[int], kind: str | None, said: str
) -> None:
    Path("train.py").write_text(text)
    assert said in tfcluster("init").err
    spec = json.loads(Path("tfcluster.json").read_text())
    assert ([*spec["cluster"].values()], spec["job"].get("kind")) == (cluster, kind)
    assert tfcluster("validate").code == 0


def on_a_terminal(answer: str, *args: str) -> str:
    """Return what `tfcluster` shows to a user who types `answer` at its question."""
    reader, writer = pty.openpty()
    command = [sys.executable, "-m", "tfcluster", *args]
    with subprocess.Popen(command, stdin=writer, stdout=writer, stderr=writer):
        os.close(writer)
        os.write(reader, f"{answer}\n".encode())
        shown = b""
        with contextlib.suppress(OSError):  # on Linux: the last writer has closed its end
            while block := os.read(reader, 4096):
                shown += block
    os.close(reader)
    return shown.decode()


@pytest.mark.parametrize(("answer", "script"), [("", True), ("y", True), ("n", False)])
def test_on_a_terminal_init_asks_before_it_uses_a_script(
    tfcluster: Tfcluster, answer: str, script: bool
) -> None:
    shown = on_a_terminal(answer, "init")
    assert "Write a spec for train.py?" in shown
    assert ("script" in json.loads(Path("tfcluster.json").read_text())["job"]) is script


@pytest.mark.parametrize(("answer", "runs"), [("2", "eval.py"), ("", "train.py"), ("3", None)])
def test_on_a_terminal_init_offers_several_scripts(
    tfcluster: Tfcluster, answer: str, runs: str | None
) -> None:
    Path("eval.py").write_text("import tensorflow\n")
    shown = on_a_terminal(answer, "init")
    assert "2  eval.py" in shown
    assert json.loads(Path("tfcluster.json").read_text())["job"].get("script") == runs


# A command line, and below it the words that the user reads, parted by `…`.
MIXED_UP = r"""
up train.py
    train.py: this is a Python script, not a spec … tfcluster run -n 2 train.py … init --script
up train.py --epochs 3
    No such option … --epochs … To run a script: tfcluster run train.py --epochs 3
up spec.yaml --epochs 3
    No such option … --epochs … come after `--`
up --coordinator here
    No such option … --coordinator … always a pod: leave the option out
up --bakend x
    No such option … --bakend … --backend
plan train.py
    tfcluster run -n 2 train.py
up lesson.ipynb
    lesson.ipynb: this is a notebook, not a spec … run -n 2 lesson.ipynb … init --script
up lesson.ipynb --epochs 3
    To run a script: tfcluster run lesson.ipynb --epochs 3
lesson.ipynb
    To run a script: tfcluster run lesson.ipynb
run leson.ipynb
    there is no script at  … did you mean lesson.ipynb?
up bench.sh
    a shell script, not a spec … tfcluster run -n 2 --no-python ./bench.sh
run -n 4 spec.yaml --epochs 3
    spec.yaml is a spec … → tfcluster up spec.yaml -- --epochs 3
run -n 2 python3 train.py --epochs 3
    leave out python3 … → tfcluster run train.py --epochs 3
run bench.sh 'a b'
    bench.sh is not a Python script … → tfcluster run --no-python ./bench.sh 'a b'
run --nproc-per-node=2 a.py
    No such option … --nproc-per-node … → tfcluster run -n 2 a.py
run -np 2 a.py
    → tfcluster run -n 2 a.py
run --gpus 1 train.py
    → tfcluster run --set resources.gpus=1 train.py
up -n 3 spec.yaml
    → tfcluster up --set cluster.worker=3 spec.yaml
up train.py -n 4 --epochs 3
    To run a script: tfcluster run -n 4 train.py --epochs 3
plan --environment A=1
    → tfcluster plan --set job.env.A=1
logs -n 5
    → tfcluster logs --tail 5
ps -a -w
    live runs only … tfcluster ps -a
run --pyton x
    Did you mean '--python'?
run --no-python no-such-command
    there is no command no-such-command
run --no-python bench.sh
    no command bench.sh on PATH … ./bench.sh
run --no-python ./bench.sh
    not executable … chmod +x ./bench.sh
run trian.py
    there is no script at  … did you mean train.py?
run su.py
    → it is relative to the workdir
restart
    Missing argument 'RUN' … `tfcluster ps -a` lists the runs
compare
    `tfcluster ps -a` lists the runs
run -m a --no-python
    exclude each other
up sub
    this is a folder … name the spec file in it: sub/tfcluster.yaml
up sub/tfclustr.yaml
    no such file … did you mean sub/tfcluster.yaml?
up spec.json
    no such file … did you mean spec.yaml?
up specs/mine.json
    no such file … did you mean cluster_specs/mine.json?
up cluster_specs/localhost-2w.yaml
    no such file … tfcluster init --template localhost-2w
up localhost-2w
    no such file … tfcluster init --template localhost-2w
up
    no tfcluster.json (.jsonc, .yaml, .yml) … `tfcluster init` … tfcluster run -n 2 train.py
train.py
    To run a script: tfcluster run train.py
spec.yaml
    To run a spec: tfcluster up spec.yaml
stop
    No such command 'stop'. Did you mean `down`?
launch
    Did you mean `up` or `run`?
validat
    Did you mean 'validate'?
resume
    Did you mean `restart`?
init train.py
    tfcluster init --script train.py
init --script trian.py
    did you mean train.py?
init --script train.py --template a
    exclude
"""


@pytest.mark.parametrize(("line", "words"), rows(MIXED_UP))
def test_a_mixed_up_command_names_the_right_one(
    tfcluster: Tfcluster, line: str, words: str
) -> None:
    Path("bench.sh").write_text("#!/bin/sh\n")
    Path("spec.yaml").write_text("job: {}\n")
    Path("lesson.ipynb").touch()
    for folder, name in (("sub", "tfcluster.yaml"), ("cluster_specs", "mine.json")):
        Path(folder).mkdir()
        Path(folder, name).touch()
    done = tfcluster(*shlex.split(line))
    assert done.code == 2
    for part in words.split(" … "):
        assert part in done.err
    assert "Traceback" not in done.err


def test_a_spec_is_found_by_its_name_alone(tfcluster: Tfcluster) -> None:
    Path("cluster_specs").mkdir()
    assert tfcluster("init", "cluster_specs/mine.json", "--script", "train.py").code == 0
    for name in ("mine", "mine.json", "cluster_specs/mine.json"):
        assert tfcluster("validate", name).code == 0
    Path("mine.yaml").touch()
    done = tfcluster("validate", "mine")
    assert (done.code, "did you mean mine.yaml?" in done.err) == (2, True), "there are two"


def test_init_beside_several_scripts_asks_which(tfcluster: Tfcluster) -> None:
    Path("eval.py").write_text("import tensorflow\n")
    said = tfcluster("init").err
    assert "several scripts: train.py, eval.py" in said
    assert "--script train.py" in said
    assert "--template" in said


def test_the_words_of_other_tools_are_not_commands_and_mean_one() -> None:
    assert not OTHER_WORDS.keys() & COMMANDS.keys()
    meant = {word for words in OTHER_WORDS.values() for word in words.split("` or `")}
    assert meant <= {*COMMANDS, "--version"}


def test_init_does_not_write_a_second_default_spec(tfcluster: Tfcluster) -> None:
    Path("tfcluster.yaml").write_text("job: {}\n")
    done = tfcluster("init")
    assert (done.code, "tfcluster.yaml already exists" in done.err) == (2, True)
    assert tfcluster("init", "--force").code == 0
    assert Path("tfcluster.yaml").read_text().startswith("# yaml-language-server: $schema=")
    assert not Path("tfcluster.json").exists()


def test_a_job_of_its_own_needs_a_scheduler(
    tfcluster: Tfcluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    Path("spec.json").write_text('{"cluster": {"worker": 1}, "job": {"script": "train.py"}}')
    done = tfcluster("up", "--submit", "spec.json")
    assert (done.code, "name a scheduler: --backend slurm" in done.err) == (2, True)
