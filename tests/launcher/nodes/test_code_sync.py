"""The files of a workdir that are sent to other machines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.privileges import without_override

from tfcluster.errors import SetupError
from tfcluster.nodes import code_sync


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def write(folder: Path, *names: str, size: int = 1) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=anna", "-c", "user.email=anna@localhost", "-c", "init.defaultBranch=a")
    allow = ("-c", "protocol.file.allow=always")
    subprocess.run(
        ["git", "-C", str(folder), *who, *allow, *words], check=True, capture_output=True
    )


def sent(folder: Path, *include: str) -> list[str]:
    return [file.path for file in code_sync.snapshot(folder, include).files]


@pytest.mark.parametrize(
    ("files", "ignored", "below", "include", "expected"),
    [
        (
            ["train.py", "new.py", "data/big.bin"],
            "data/\n",
            "",
            [],
            [".gitignore", "new.py", "train.py"],
        ),
        (
            ["train.py", "data/big.bin"],
            "data/\n*ignore",
            "",
            ["data/*.bin"],
            ["data/big.bin", "train.py"],
        ),
        (["a.py", "jobs/b.py"], "", "jobs", [], ["b.py"]),
        (
            ["scratch/train.py", "scratch/sub/a.py", "scratch/__pycache__/a.pyc"],
            "scratch/\n",
            "scratch",
            [],
            ["sub/a.py", "train.py"],
        ),
        (
            ["a.py", "sub/b.py", ".venv/bin/python", "sub/__pycache__/b.pyc"],
            None,
            "",
            [],
            ["a.py", "sub/b.py"],
        ),
    ],
    ids=["not ignored", "included", "below the repository", "an ignored workdir", "without git"],
)
def test_files_that_git_does_not_ignore_or_all_but_caches_are_sent(
    workdir: Path,
    files: list[str],
    ignored: str | None,
    below: str,
    include: list[str],
    expected: list[str],
) -> None:
    write(workdir, *files)
    if ignored is not None:
        git(workdir, "init", "-q")
        if ignored:
            (workdir / ".gitignore").write_text(ignored)
        write(workdir, "gone.py")
        git(workdir, "add", "gone.py")
        (workdir / "gone.py").unlink()
    assert sent(workdir / below, *include) == expected


def test_runs_are_no_code(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(workdir, "train.py", "home/runs/r-1/checkpoints/ckpt-1.index")
    monkeypatch.setenv("TFCLUSTER_HOME", str(workdir / "home"))
    assert sent(workdir) == ["train.py"]


def test_submodules_and_nested_repositories_are_sent(workdir: Path, tmp_path: Path) -> None:
    (tmp_path / "library").mkdir()
    git(tmp_path / "library", "init", "-q")
    write(tmp_path / "library", "lib.py", "deep/er.py")
    git(tmp_path / "library", "add", ".")
    git(tmp_path / "library", "commit", "-q", "-m", "lib")
    git(workdir, "init", "-q")
    write(workdir, "train.py")
    git(workdir, "submodule", "add", "-q", str(tmp_path / "library"), "libs/one")
    git(workdir, "submodule", "add", "-q", str(tmp_path / "library"), "libs/two")
    git(workdir, "submodule", "deinit", "-q", "-f", "libs/two")
    (workdir / "other").mkdir()
    git(workdir / "other", "init", "-q")
    write(workdir / "other", "o.py", "ignored")
    (workdir / "other/.gitignore").write_text("ignored\n")
    found = [name for name in sent(workdir) if not name.startswith(".git")]
    expected = ["libs/one/deep/er.py", "libs/one/lib.py", "other/.gitignore", "other/o.py"]
    assert found == [*expected, "train.py"]


def test_a_failed_git_command_is_an_error(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workdir / ".git").write_text("gitdir: /no/such/folder\n")
    write(workdir, "train.py", "secret.env")
    with pytest.raises(SetupError, match="not a git repository: /no/such/folder"):
        sent(workdir)
    monkeypatch.setenv("PATH", str(workdir))
    with pytest.raises(SetupError, match="git is not installed"):
        sent(workdir)


def test_git_variables_of_another_repository_are_ignored(
    workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(workdir, "init", "-q")
    write(workdir, "train.py")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert sent(workdir) == ["train.py"]


def test_an_included_folder_may_be_a_link(workdir: Path, tmp_path: Path) -> None:
    write(tmp_path, "outside/a.csv", "outside/deep/b.csv")
    write(workdir, "train.py", "real/c.csv")
    git(workdir, "init", "-q")
    (workdir / ".gitignore").write_text("*\n!train.py\n")  # the file ignores itself, too
    (workdir / "data").symlink_to(tmp_path / "outside")
    (workdir / "near").symlink_to("real")
    assert sent(workdir, "data") == ["data/a.csv", "data/deep/b.csv", "train.py"]
    assert sent(workdir, "near/*.csv") == ["near", "real/c.csv", "train.py"]
    assert {file.path: file.link for file in code_sync.snapshot(workdir, ["near"]).files}[
        "near"
    ] == "real"


def test_a_link_to_something_that_is_sent_stays_a_link(workdir: Path, tmp_path: Path) -> None:
    write(workdir, "a/b.txt")
    (workdir / "a/near").symlink_to("b.txt")
    (workdir / "a/up").symlink_to("../a/b.txt")
    (workdir / "a/late").symlink_to("../a/../a/b.txt")
    (workdir / "whole").symlink_to(workdir / "a/b.txt")
    (workdir / "gone").symlink_to(tmp_path / "gone")
    (workdir / "inner").symlink_to("a")
    links = {file.path: file.link for file in code_sync.snapshot(workdir).files}
    stay = {"a/near": "b.txt", "a/up": "../a/b.txt", "inner": "a"}
    assert links == {"a/b.txt": None, "a/late": None, "whole": None, **stay}


@pytest.mark.parametrize("is_tracked", [False, True])
def test_a_link_that_leads_out_of_the_workdir_is_refused_unless_it_is_included(
    workdir: Path, tmp_path: Path, *, is_tracked: bool
) -> None:
    write(tmp_path, "passwd", "folder/x")
    write(workdir, "train.py")
    (workdir / "users").symlink_to(tmp_path / "passwd")
    (workdir / "folder").symlink_to(tmp_path / "folder")
    if is_tracked:
        git(workdir, "init", "-q")
        git(workdir, "add", ".")
    with pytest.raises(SetupError) as refused:
        sent(workdir)
    assert f"users → {tmp_path / 'passwd'}" in refused.value.message
    assert "job.include" in (refused.value.fix or "")
    asked = code_sync.snapshot(workdir, ["users"])
    assert [(file.path, file.link) for file in asked.files] == [("train.py", None), ("users", None)]
    (warning,) = asked.warnings()
    assert "links to folders outside of the workdir: folder; " in warning
    assert sent(workdir, "users", "folder") == ["folder/x", "train.py", "users"]
    assert [*code_sync.snapshot(workdir, ["users", "folder"]).warnings()] == []


@pytest.mark.parametrize("pattern", ["../x", "/etc/*", "a/../../x"])
def test_a_glob_must_not_lead_out_of_the_workdir(workdir: Path, pattern: str) -> None:
    with pytest.raises(SetupError, match=r"job\.include: .* leads out of the workdir"):
        sent(workdir, pattern)


def test_a_glob_that_matches_nothing_is_an_error(workdir: Path) -> None:
    write(workdir, "data/a.csv")
    with pytest.raises(SetupError, match=r"nothing in .* matches data/\*\.cvs"):
        sent(workdir, "data/*.cvs")


def test_too_many_bytes_are_refused_with_the_heaviest_folders(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_sync, "MAX_BYTES", 10_000_000)
    for number in range(10):
        write(workdir, f"data/images/train/{number}.png", size=1_000_000)
    write(workdir, "notes.pdf", size=3_000_000)
    write(workdir, "logs/a/1", "logs/b/2", size=1_000_000)
    write(workdir, "train.py")
    with pytest.raises(SetupError) as caught:
        sent(workdir)
    message = "15 MB to send to other hosts, more than 10: "
    heaviest = "data/images/train/ (10 MB), notes.pdf (3 MB), logs/ (2 MB)"
    assert message + heaviest in str(caught.value)
    assert "runtime.hosts.H.data_dir" in str(caught.value)
    plan: Any = SimpleNamespace(
        workdir=str(workdir), include=(), withheld=(), nodes=[SimpleNamespace(backend="kubernetes")]
    )
    with pytest.raises(SetupError) as caught:
        code_sync.snapshot_of(plan)
    assert "runtime.kubernetes.volumes" in str(caught.value)
    assert "data_dir" not in str(caught.value)


def test_too_many_files_are_refused_with_the_fullest_folders(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_sync, "MAX_FILES", 5)
    write(workdir, "train.py", *(f"shards/{number}" for number in range(7)))
    with pytest.raises(SetupError, match=r"8 files .* more than 5: shards/ \(7 files\)"):
        sent(workdir)


def test_unusual_names_are_sent_unchanged(workdir: Path) -> None:
    names = ["a b", "quo\"te's", "new\nline", "é✓", os.fsdecode(b"\xff\xfe"), "-rf", "$(x)"]
    write(workdir, *names)
    assert sent(workdir) == sorted(names)
    git(workdir, "init", "-q")
    assert sent(workdir) == sorted(names)


def test_modes_keep_the_execute_bit_and_drop_write_access_for_others(workdir: Path) -> None:
    write(workdir, "run.sh", "train.py")
    (workdir / "run.sh").chmod(0o777)
    (workdir / "train.py").chmod(0o600)
    assert [oct(file.mode) for file in code_sync.snapshot(workdir).files] == ["0o755", "0o600"]


def test_files_with_secrets_are_not_sent_unless_they_are_included(workdir: Path) -> None:
    write(workdir, "train.py", ".env", "spec.json")
    withheld = [str(workdir / ".env"), str(workdir / "sub/../spec.json")]
    (workdir / "sub").mkdir()
    kept = [file.path for file in code_sync.snapshot(workdir, withheld=withheld).files]
    assert kept == ["train.py"]
    asked = [file.path for file in code_sync.snapshot(workdir, [".env"], withheld=withheld).files]
    assert asked == [".env", "train.py"]


CREDENTIALS = [".env", ".netrc", ".ssh/id_ed25519", ".aws/credentials", ".kube/config", "tls.pem",
               ".docker/config.json", "deploy/KUBECONFIG", "keys/id_rsa.old", ".npmrc"]  # fmt: skip
HARMLESS = [".env.example", "deploy_key.pub", "environment.yml", "monkey.py", "train.py"]


def test_without_git_credentials_are_not_sent_unless_they_are_included(workdir: Path) -> None:
    write(workdir, *CREDENTIALS, *HARMLESS)
    kept = code_sync.snapshot(workdir)
    assert [file.path for file in kept.files] == HARMLESS
    assert kept.credentials == tuple(sorted(CREDENTIALS))
    (warning,) = kept.warnings()
    assert "look like credentials: .aws/credentials, .docker/config.json, .env" in warning
    assert "and 5 more; if the job needs one, name it in job.include" in warning
    asked = code_sync.snapshot(workdir, [".env", ".ssh"])
    assert {".env", ".ssh/id_ed25519"} <= {file.path for file in asked.files}
    assert not {".env", ".ssh/id_ed25519"} & set(asked.credentials)


def test_credentials_that_git_tracks_are_sent(workdir: Path) -> None:
    """Committing them was the user's own decision."""
    git(workdir, "init", "-q")
    write(workdir, "train.py", "tests/server.pem", ".env", "new.key")
    git(workdir, "add", "train.py", "tests/server.pem")
    assert sent(workdir) == ["tests/server.pem", "train.py"]
    assert code_sync.snapshot(workdir).credentials == (".env", "new.key")


SHOW = """
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from tfcluster.nodes import code_sync as code
found = code.snapshot(Path(sys.argv[1]))
print([file.path for file in found.files])
print(*found.warnings())
"""


@pytest.mark.parametrize("has_git", [False, True])
def test_files_that_cannot_be_read_are_reported(workdir: Path, *, has_git: bool) -> None:
    write(workdir, "train.py", "jobs/a.py", "jobs/locked/b.py", "jobs/secret.py", "tracked/c.py")
    if has_git:
        git(workdir, "init", "-q")
        git(workdir, "add", "train.py", "tracked")
    for name in ("jobs/locked", "jobs/secret.py", "tracked"):
        (workdir / name).chmod(0)
    argv = without_override([sys.executable, "-c", SHOW, str(workdir / "jobs")])
    inner = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    argv = without_override([sys.executable, "-c", SHOW, str(workdir)])
    outer = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    for name in ("jobs/locked", "jobs/secret.py", "tracked"):
        (workdir / name).chmod(0o700)
    assert inner.startswith(
        "['a.py']\nnot sent to other machines because they cannot be read here:"
    )
    assert "cannot be read here: locked, secret.py; make them readable" in inner
    tracked = "tracked, tracked/c.py" if has_git else "tracked"
    assert outer.startswith("['jobs/a.py', 'train.py']\n")
    assert f"cannot be read here: jobs/locked, jobs/secret.py, {tracked};" in outer


def test_a_glob_too_long_for_a_name_matches_nothing(workdir: Path) -> None:
    with pytest.raises(SetupError, match=r"nothing in .* matches aaa"):
        sent(workdir, "a" * 300)


def test_a_link_to_a_credential_counts_as_a_credential(workdir: Path, tmp_path: Path) -> None:
    write(tmp_path, "home/.aws/credentials")
    write(workdir, "train.py")
    (workdir / "cloud").symlink_to(tmp_path / "home/.aws/credentials")
    assert sent(workdir) == ["train.py"]
