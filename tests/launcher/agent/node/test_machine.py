"""Facts about a machine contain no passwords, and missing parts are no error."""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
from pathlib import Path

import pytest

from tfcluster.agent.node import machine


@pytest.mark.pinned  # TensorFlow's packages
def test_facts_of_this_machine_are_reported(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    order = {"folder": str(tmp_path / "not" / "yet"), "folders": [], "script": str(script)}
    found = machine.facts(order)
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["executable"] == sys.executable
    assert found["free_bytes"] > 0
    assert found["cores"] >= 1
    assert found["script_sha256"] == hashlib.sha256(script.read_bytes()).hexdigest()
    assert found["packages"]["tensorflow"].count(".") == 2


def test_a_nightly_of_keras_counts_as_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"keras": "3.15.1", "keras-nightly": "3.16.0.dev2026102704"}

    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert machine.versions() == {"keras": "3.16.0.dev2026102704"}
    del installed["keras"]
    assert machine.versions() == {"keras": "3.16.0.dev2026102704"}


def test_values_of_proxies_are_not_reported() -> None:
    environ = {"https_proxy": "http://anna:secret@proxy", "no_proxy": "corp", "HOME": "/h"}
    assert machine.proxies(environ) == {"https_proxy": "set", "no_proxy": "corp"}


@pytest.mark.linux("/proc")
def test_a_missing_folder_is_writable_if_its_parent_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert machine.unwritable([str(tmp_path / "a" / "b")]) == []
    assert machine.unwritable(["/proc/here"])[0][0] == "/proc/here"


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ("echo NVIDIA H100; echo NVIDIA H100", (["NVIDIA H100"] * 2, "")),
        ("echo No devices were found; exit 6", ([], "")),
        ("echo no driver; exit 9", ([], "nvidia-smi failed: no driver")),
    ],
)
def test_gpus_are_read_from_the_answer_of_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, expected: tuple[list[str], str]
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n{says}\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.gpus() == expected


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("2,3", [2, 3]),
        ("1, 2", [1, 2]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,-1,1", [0]),
        ("GPU-8932f937,1", ["GPU-8932f937", 1]),
        ("MIG-c7384736,MIG-GPU-8932/7/0", ["MIG-c7384736", "MIG-GPU-8932/7/0"]),
    ],
)
def test_visible_gpus_are_known_by_their_indexes_and_names(text: str, gpus: list[object]) -> None:
    assert machine.visible_gpus(text) == gpus


def test_only_names_and_addresses_of_this_machine_are_local() -> None:
    assert machine.is_local("127.0.0.1")
    assert machine.is_local("[::1]") or not Path("/proc/net/if_inet6").exists()
    assert not machine.is_local("192.0.2.1")
    assert not machine.is_local("no.such.name.invalid")


def test_a_failed_import_is_reported_with_its_last_line(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho a; echo 'ImportError: no libcuda' >&2; exit 1\n")
    python.chmod(0o755)
    assert machine.import_tensorflow(str(python), "/w") == {"error": "ImportError: no libcuda"}
    missing = machine.import_tensorflow(str(tmp_path / "none"), "/w")
    assert "No such file" in missing["error"]
