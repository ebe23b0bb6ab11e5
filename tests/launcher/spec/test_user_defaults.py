"""The user's own defaults fill what a spec leaves out, and are as strict as a spec."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfcluster.discovery import planning
from tfcluster.errors import SpecError, UsageError
from tfcluster.spec import HostChoice, PlanOptions
from tfcluster.spec.load import LoadedSpec, load

SPEC: dict[str, Any] = {"cluster": {"worker": 2}, "job": {"command": ["true"]}}
LAB = """\
    x-image: &image registry/tf:2
    default:
      runtime: {image: *image, hosts: {"*": {data_dir: /mnt/data}}}
      resources: {gpus: 0}
    lab:
      runtime:
        backend: slurm
        slurm: {partition: gpu, account: vision}
        hosts:
          gpu1: {ssh: anna@gpu1}
          gpu9: {ssh: anna@gpu9}
      supervision: {grace_s: 2m}
      resources: {gpus: 4}
    empty:
    near:
      runtime: {network: {delay: 2ms, rate: 1gbit}}
"""
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that writes the user's file."""

    def write(text: str) -> Path:
        path = tmp_path / ".config/tfcluster/config.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TFCLUSTER_CONFIG")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return write


def loaded(profile: str | None = None, *sets: str, spec: dict[str, Any] = SPEC) -> LoadedSpec:
    return load(spec, PlanOptions(sets, profile=profile))


def test_without_a_file_nothing_changes(write: Write) -> None:
    assert loaded().defaults == ()
    write("# nothing yet\n")
    assert loaded().defaults == ()
    with pytest.raises(UsageError, match=r"config\.yaml has no profile 'lab'\n  → write it:"):
        loaded("lab")


def test_the_profile_default_always_fills_and_a_named_one_comes_before_it(write: Write) -> None:
    write(LAB)
    alone, lab = loaded().spec, loaded("lab").spec
    assert (alone.runtime.backend, alone.runtime.image) == ("auto", "registry/tf:2")
    assert alone.resources.gpus == 0
    assert (lab.runtime.backend, lab.runtime.image) == ("slurm", "registry/tf:2")
    assert (lab.runtime.slurm.partition, lab.resources.gpus) == ("gpu", 4)
    assert lab.supervision.grace_s == 120
    assert loaded("empty").spec == alone


def test_the_spec_wins_over_defaults_and_set_over_both(write: Write) -> None:
    write(LAB)
    runtime = {"image": "mine", "slurm": {"account": "own"}}
    spec = SPEC | {"runtime": runtime, "resources": {"gpus": None}}
    found = loaded("lab", "runtime.slurm.partition=cpu", spec=spec).spec
    assert (found.runtime.image, found.runtime.slurm.account) == ("mine", "own")
    assert (found.runtime.slurm.partition, found.resources.gpus) == ("cpu", None)
    # A spec's string is not merged with an object of the defaults.
    private = SPEC | {"runtime": {"network": "private"}}
    assert loaded("near", spec=private).spec.runtime.network == "private"


def test_hosts_that_the_cluster_does_not_use_are_left_out(write: Write) -> None:
    write(LAB)
    options = PlanOptions(("runtime.backend=ssh",), profile="lab", hosts=HostChoice(hosts="gpu1"))
    runtime = load(SPEC, options).spec.runtime
    assert {host: each.ssh for host, each in runtime.hosts.items()} == {
        "*": None, "gpu1": "anna@gpu1",
    }  # fmt: skip


def test_other_places_of_the_file(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(LAB)
    moved = path.rename(tmp_path / "other.yaml")
    monkeypatch.setenv("TFCLUSTER_CONFIG", str(moved))
    assert loaded().spec.resources.gpus == 0
    moved.unlink()
    with pytest.raises(SpecError, match=r"~/other\.yaml: no such file\n  → check \$TFCLUSTER"):
        loaded()
    monkeypatch.delenv("TFCLUSTER_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert loaded().defaults == ()


def test_what_was_applied_has_its_source_and_is_kept(write: Write) -> None:
    path = write(LAB)
    planned = planning.plan(loaded("lab", "runtime.backend=local", "resources.gpus=0"))
    shown = {each.field: (each.value, each.profile, each.file) for each in planned.plan.defaults}
    file = "~/.config/tfcluster/config.yaml"
    assert shown["runtime.slurm.partition"] == ("gpu", "lab", file)
    assert shown["runtime.image"] == ("registry/tf:2", "default", file)
    assert "resources.gpus" not in shown

    kept = planned.spec_to_keep()
    path.write_text("default: {resources: {gpus: 8}, supervision: {max_restarts: 9}}\n")
    again = load(kept, is_complete=True)
    assert again.spec == planned.spec
    assert again.defaults == ()


BAD = {
    "lab:\n  runtime: {backend: dokcer}\n": (
        r"config\.yaml:2:22: lab\.runtime\.backend: 'dokcer' is not 'auto'.*\n"
        '  → did you mean "docker"'
    ),
    "lab:\n  runtime: {imge: x}\n": r"config\.yaml:2:13: unknown key 'imge' in runtime\n",
    "lab:\n  backend: slurm\n": r"2:3: unknown key 'backend'\n  → it belongs to runtime\.backend",
    "lab:\n  job: {script: a.py}\n": r"2:3: a profile cannot set 'job'\n  → a profile sets runtime",
    "runtime: {backend: slurm}\n": r"1:1: runtime is not in a profile\n  → write it below",
    "- lab\n": "the file must be an object of profiles",
    "lab: slurm\n": r"1:6: lab: expected an object, not 'slurm'",
    "lab:\nlab:\n": r"2:1: the key 'lab' is written twice",
    "lab: {\n": "not valid YAML",
    "default: {supervision: {grace_s: soon}}\nlab: {resources: {gpus: -1}}\n": (
        r"1:34: default\.supervision\.grace_s: .*\n.*\n.*2:25: lab\.resources\.gpus"
    ),
}


@pytest.mark.parametrize("text", BAD)
def test_a_mistake_in_the_file_has_its_place_and_fix(write: Write, text: str) -> None:
    write(text)
    with pytest.raises(SpecError, match=BAD[text]) as raised:
        loaded()
    assert str(raised.value).startswith("~/.config/tfcluster/config.yaml")


def test_a_rule_that_a_default_breaks_is_reported_in_the_file(write: Write) -> None:
    write("default:\n  runtime: {backend: docker, network: {rate: 1gbit}}\n")
    with pytest.raises(SpecError, match=r"config\.yaml:2:\d+: runtime\.network: docker has its"):
        loaded()
    write(LAB)
    with pytest.raises(UsageError, match=r"no profile 'lap'\n  → did you mean lab\?"):
        loaded("lap")
