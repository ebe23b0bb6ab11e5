"""The bundle for nodes: complete, identical for the same files, and unpacked once."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest
from tests.launcher.poisoned import poison

from tfcluster.backends import bundle


@pytest.fixture
def built() -> Iterator[bundle.Bundle]:
    before = set(sys.modules)
    yield bundle.build()
    assert "tfcluster_workers" not in set(sys.modules) - before


def test_the_bundle_holds_agent_and_workers_and_nothing_else(built: bundle.Bundle) -> None:
    assert "agent/tfcluster/agent/protocol.py" in built.files
    assert "workers/tfcluster_workers/__init__.py" in built.files
    assert not any(name.endswith(".pyc") for name in built.files)
    tops = {"/".join(name.split("/")[:3]) for name in built.files if name.startswith("agent/")}
    assert tops == {"agent/tfcluster/__init__.py", "agent/tfcluster/agent"}


def test_the_same_files_give_the_same_digest_and_zip(built: bundle.Bundle) -> None:
    again = bundle.build()
    assert (again.digest, again.zip_bytes) == (built.digest, built.zip_bytes)
    with zipfile.ZipFile(BytesIO(built.zip_bytes)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == dict(built.files)


def test_unpacking_twice_writes_once(built: bundle.Bundle, tmp_path: Path) -> None:
    folder = bundle.unpack(built, tmp_path)
    stamp = (folder / "agent/tfcluster/__init__.py").stat().st_mtime_ns
    assert bundle.unpack(built, tmp_path) == folder == tmp_path / built.digest
    assert (folder / "agent/tfcluster/__init__.py").stat().st_mtime_ns == stamp
    assert list(tmp_path.iterdir()) == [folder]


def test_python_runs_only_code_that_the_digest_covers(built: bundle.Bundle, tmp_path: Path) -> None:
    """Replaced bytes of equal length, a package that shadows a module, and foreign bytecode are
    removed."""
    folder = bundle.unpack(built, tmp_path / "bundles") / "workers" / "tfcluster_workers"
    evil = tmp_path / "evil"
    evil.mkdir()
    (evil / "__init__.py").write_text("print('evil')")
    (folder / "context").symlink_to(evil)
    source = (folder / "server.py").read_text()
    (folder / "server.py").write_text(source.replace("import", "impart", 1))
    bundle.unpack(built, tmp_path / "bundles")
    assert not (folder / "context").exists()
    assert (folder / "server.py").read_text() == source
    poison(folder / "errors.py", "print('evil')")
    argv = [sys.executable, "-c", "import errors"]
    printed = subprocess.run(argv, cwd=folder, capture_output=True, check=True).stdout
    assert printed == b"evil\n", "Python runs it unless the folder is checked"
    bundle.unpack(built, tmp_path / "bundles")
    assert subprocess.run(argv, cwd=folder, capture_output=True, check=True).stdout == b""
    assert [path.name for path in (tmp_path / "bundles").iterdir()] == [built.digest]


def test_a_process_that_waited_uses_the_folder_another_one_unpacked(
    built: bundle.Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes once moved each other's folders away until none was left."""
    written, write = list[str](), bundle._write

    def noted(built: bundle.Bundle, folder: str) -> None:
        written.append(folder)
        write(built, folder)

    monkeypatch.setattr(bundle, "_write", noted)
    with ThreadPoolExecutor(16) as pool:
        folders = set(pool.map(lambda _: bundle.unpack(built, tmp_path), range(64)))
    assert len(written) == 1
    assert folders == set(tmp_path.iterdir()) == {tmp_path / built.digest}


def test_without_a_writable_cache_a_private_temporary_folder_is_used(
    built: bundle.Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    folder = bundle.unpack(built, tmp_path / "file" / "cache")
    assert folder.is_relative_to(tmp_path)
    assert folder.parents[1].stat().st_mode & 0o777 == 0o700


def test_the_agent_can_be_imported_from_the_bundle(built: bundle.Bundle, tmp_path: Path) -> None:
    root = bundle.unpack(built, tmp_path) / "agent"
    code = f"import sys; sys.path[:] = [p for p in sys.path if 'site-' not in p] + [{str(root)!r}]"
    code += "; import tfcluster.agent.agent as a; print(a.__file__)"
    argv = [sys.executable, "-I", "-S", "-c", code]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(root / "tfcluster/agent/agent.py")
