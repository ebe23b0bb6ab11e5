"""What travels to a node: whole, the same for the same files, and unpacked once."""

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
def made() -> Iterator[bundle.Bundle]:
    before = set(sys.modules)
    yield bundle.build()
    assert "tfcluster_workers" not in set(sys.modules) - before


def test_both_halves_are_in_it_and_nothing_of_the_launcher(made: bundle.Bundle) -> None:
    assert "agent/tfcluster/agent/protocol.py" in made.files
    assert "workers/tfcluster_workers/__init__.py" in made.files
    assert not any(name.endswith(".pyc") for name in made.files)
    tops = {"/".join(name.split("/")[:3]) for name in made.files if name.startswith("agent/")}
    assert tops == {"agent/tfcluster/__init__.py", "agent/tfcluster/agent"}


def test_the_same_files_give_the_same_digest_and_zip(made: bundle.Bundle) -> None:
    again = bundle.build()
    assert (again.digest, again.zip_bytes) == (made.digest, made.zip_bytes)
    with zipfile.ZipFile(BytesIO(made.zip_bytes)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == dict(made.files)


def test_unpacking_twice_writes_once(made: bundle.Bundle, tmp_path: Path) -> None:
    folder = bundle.unpack(made, tmp_path)
    stamp = (folder / "agent/tfcluster/__init__.py").stat().st_mtime_ns
    assert bundle.unpack(made, tmp_path) == folder == tmp_path / made.digest
    assert (folder / "agent/tfcluster/__init__.py").stat().st_mtime_ns == stamp
    assert list(tmp_path.iterdir()) == [folder]


def test_a_damaged_folder_is_made_whole(made: bundle.Bundle, tmp_path: Path) -> None:
    folder = bundle.unpack(made, tmp_path)
    (folder / "agent/tfcluster/agent/protocol.py").unlink()
    bundle.unpack(made, tmp_path)
    assert (folder / "agent/tfcluster/agent/protocol.py").exists()
    assert list(tmp_path.iterdir()) == [folder]


def test_what_python_would_run_is_what_the_digest_says(made: bundle.Bundle, tmp_path: Path) -> None:
    """Not other bytes of the same number, nor a package that comes before a module, nor bytecode
    that was never compiled from the sources."""
    folder = bundle.unpack(made, tmp_path / "bundles") / "workers" / "tfcluster_workers"
    evil = tmp_path / "evil"
    evil.mkdir()
    (evil / "__init__.py").write_text("print('evil')")
    (folder / "context").symlink_to(evil)
    source = (folder / "server.py").read_text()
    (folder / "server.py").write_text(source.replace("import", "impart", 1))
    bundle.unpack(made, tmp_path / "bundles")
    assert not (folder / "context").exists()
    assert (folder / "server.py").read_text() == source
    poison(folder / "errors.py", "print('evil')")
    argv = [sys.executable, "-c", "import errors"]
    printed = subprocess.run(argv, cwd=folder, capture_output=True, check=True).stdout
    assert printed == b"evil\n", "without a look at it Python runs it"
    bundle.unpack(made, tmp_path / "bundles")
    assert subprocess.run(argv, cwd=folder, capture_output=True, check=True).stdout == b""
    assert [path.name for path in (tmp_path / "bundles").iterdir()] == [made.digest]


def test_many_may_unpack_at_once(made: bundle.Bundle, tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        folders = set(pool.map(lambda _: bundle.unpack(made, tmp_path), range(16)))
    assert folders == set(tmp_path.iterdir()) == {tmp_path / made.digest}


def test_who_waits_takes_what_another_has_unpacked(
    made: bundle.Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It moved that one away, and where both did so nobody had one to put in its place."""
    written, write = list[str](), bundle._write

    def noted(made: bundle.Bundle, folder: str) -> None:
        written.append(folder)
        write(made, folder)

    monkeypatch.setattr(bundle, "_write", noted)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: bundle.unpack(made, tmp_path), range(64)))
    assert len(written) == 1


def test_without_a_writable_cache_a_private_temporary_folder_serves(
    made: bundle.Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    folder = bundle.unpack(made, tmp_path / "file" / "cache")
    assert folder.is_relative_to(tmp_path)
    assert folder.parents[1].stat().st_mode & 0o777 == 0o700


def test_the_agent_runs_from_it(made: bundle.Bundle, tmp_path: Path) -> None:
    root = bundle.unpack(made, tmp_path) / "agent"
    code = f"import sys; sys.path[:] = [p for p in sys.path if 'site-' not in p] + [{str(root)!r}]"
    code += "; import tfcluster.agent.agent as a; print(a.__file__)"
    argv = [sys.executable, "-I", "-S", "-c", code]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(root / "tfcluster/agent/agent.py")
