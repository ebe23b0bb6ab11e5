"""What a coordinator's pod needs travels in Secrets, in pieces."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from collections import ChainMap
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tfcluster.backends.kubernetes.run_pods import PACKAGE_FOLDER
from tfcluster.backends.kubernetes.submitted import kube_package
from tfcluster.errors import SetupError
from tfcluster.nodes import code_sync
from tfcluster.plans.plan import Plan
from tfcluster.rundir.paths import RunPaths
from tfcluster.wire.file_trees import FileToSend

HOME = "/tfcluster/state"
PLAN = cast("Plan", SimpleNamespace())


def folder(tmp_path: Path, **job: Any) -> RunPaths:
    """Make the folder of a run that is being submitted."""
    paths = RunPaths.of("r-1", tmp_path / "home")
    paths.root.mkdir(parents=True)
    spec = {"job": {"script": "train.py", "workdir": ".", **job}, "checkpoints": {"to": "results"}}
    paths.spec.write_text(json.dumps(spec))
    for path in (paths.plan, paths.launch):
        path.write_text("{}")
    paths.state.write_text(json.dumps({"spec_folder": str(tmp_path)}))
    paths.events.write_text("one\n")
    return paths


def sent(tmp_path: Path, name: str, data: bytes, mode: int = 0o644) -> FileToSend:
    source = tmp_path / name.replace("/", "-")
    source.write_bytes(data)
    return FileToSend(name, source, mode=mode)


def build(paths: RunPaths, *code: FileToSend) -> list[dict[str, bytes]]:
    return kube_package.build(paths, PLAN, code, cluster="https://k/vision", job="r-1", home=HOME)


def unpack(tmp_path: Path, held: list[dict[str, bytes]]) -> RunPaths:
    volume, home = tmp_path / "volume", tmp_path / "pod"
    for path in (volume, home):
        path.mkdir(exist_ok=True)
    for name, data in ChainMap(*held).items():
        (volume / name).write_bytes(data)
    return kube_package.unpack(volume, home, "r-1")


def test_another_machine_gets_the_run_folder_as_its_submitter_has_it_without_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFCLUSTER_HOME", str(tmp_path / "there"))
    made = folder(tmp_path)
    held = build(made, sent(tmp_path, "train.py", os.urandom(2 * kube_package.PIECE_BYTES)))
    assert len(held) > 1
    copy = RunPaths.of_copy("r-1")
    with pytest.raises(SetupError, match="the package of r-1 in the cluster cannot be unpacked"):
        kube_package.unpack_copy({kube_package.KEY: b"no package"}, copy)
    for _ in range(2):  # two commands may make it at the same time
        kube_package.unpack_copy(dict(ChainMap(*held)), copy)
    assert copy.is_copy
    assert copy.events.read_bytes() == made.events.read_bytes()
    assert copy.state.read_bytes() == made.state.read_bytes()
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["elsewhere"]
    assert not [*(tmp_path / "there").rglob("train.py")]
    assert not RunPaths.of("r-1").is_copy


def test_run_folder_and_code_arrive(tmp_path: Path) -> None:
    paths = folder(tmp_path)
    noise = os.urandom(1 << 20)
    held = build(
        paths,
        sent(tmp_path, "train.py", b"print()", 0o755),
        sent(tmp_path, "data/noise", noise),
        FileToSend("link", Path("unused"), link="train.py"),
    )
    assert len(held) == 2
    assert max(map(len, ChainMap(*held).values())) <= kube_package.PIECE_BYTES
    there = unpack(tmp_path, held)
    code = kube_package.code_folder(tmp_path / "pod", "r-1")
    assert (code / "data/noise").read_bytes() == noise
    assert (code / "train.py").stat().st_mode & 0o777 == 0o755
    assert os.readlink(code / "link") == "train.py"
    spec = json.loads(there.spec.read_text())
    assert spec["job"]["workdir"] == f"{HOME}/code/r-1"
    assert "to" not in spec["checkpoints"]
    assert json.loads((there.root / kube_package.FOLDER).read_text())["lines"] == 1


def test_all_code_that_arrives_goes_on_to_the_tasks(tmp_path: Path) -> None:
    """There is no git in the pod to say that a file named like a credential is tracked."""
    (workdir := tmp_path / "work").mkdir()
    names = ["certs/ca.pem", ".npmrc", "node_modules/lib.js", "venv/note", "train.py"]
    for name in names:
        (workdir / name).parent.mkdir(exist_ok=True)
        (workdir / name).touch()
    (workdir / "link").symlink_to("certs")
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", str(workdir), *words], check=True)
    code = code_sync.snapshot(workdir).files
    assert {file.path for file in code} == {*names, "link"}
    spec = json.loads(unpack(tmp_path, build(folder(tmp_path), *code)).spec.read_text())
    there = kube_package.code_folder(tmp_path / "pod", "r-1")
    found = code_sync.snapshot(there, spec["job"]["include"])
    assert {(f.path, f.link) for f in found.files} == {(f.path, f.link) for f in code}
    assert not [*found.warnings()]


def test_a_run_without_code_needs_none_in_the_pod(tmp_path: Path) -> None:
    paths = folder(tmp_path, include=["empty"])
    spec = json.loads(unpack(tmp_path, build(paths)).spec.read_text())
    assert spec["job"]["include"] == []


def test_the_env_file_is_read_from_its_secret_and_never_written(tmp_path: Path) -> None:
    """On a volume it would outlive a run whose Job is deleted."""
    (tmp_path / "secrets.env").write_text("KEY=value\n")
    held = build(folder(tmp_path, env_file="secrets.env"))
    spec = json.loads(unpack(tmp_path, held).spec.read_text())
    place, _, key = spec["job"]["env_file"].rpartition("/")
    assert (place, held[0][key]) == (PACKAGE_FOLDER, b"KEY=value\n")
    written = [path for path in (tmp_path / "pod").rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if b"KEY=value" in path.read_bytes()]


def test_a_folder_that_is_there_stays(tmp_path: Path) -> None:
    pieces = build(folder(tmp_path))
    there = unpack(tmp_path, pieces)
    there.events.write_text("more\n")
    assert unpack(tmp_path, pieces).events.read_text() == "more\n"


def test_a_package_that_is_too_large_says_what_is_large(tmp_path: Path) -> None:
    paths = folder(tmp_path)
    large = sent(tmp_path, "large.bin", os.urandom(kube_package.MOST_BYTES + 1))
    with pytest.raises(SetupError, match=r"large\.bin \(8\.4 MB\)"):
        build(paths, large)
    paths.checkpoints.mkdir()
    (paths.checkpoints / "weights").write_bytes(os.urandom(kube_package.MOST_BYTES + 1))
    with pytest.raises(SetupError, match="the checkpoint to resume from"):
        build(paths)


@pytest.mark.parametrize(("name", "link"), [("../out", None), ("/out", None), ("link", "/etc")])
def test_nothing_that_others_have_packed_leads_out_of_its_folder(
    tmp_path: Path, name: str, link: str | None
) -> None:
    (folder := tmp_path / "inner").mkdir()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo(name)
        if link is not None:
            info.type, info.linkname = tarfile.SYMTYPE, link
        tar.addfile(info)
    buffer.seek(0)
    with tarfile.open(fileobj=buffer) as tar, pytest.raises(tarfile.TarError):
        kube_package.extract_files(tar, folder)
    assert [*folder.iterdir(), *tmp_path.iterdir()] == [folder]
