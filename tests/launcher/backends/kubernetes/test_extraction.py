"""Tar files are unpacked alike with and without the filters of PEP 706 (Python 3.11.4)."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from tfcluster.backends.kubernetes.extraction import extract

PYTHONS = ["without filters", *(["with filters"] if hasattr(tarfile, "data_filter") else [])]


@pytest.fixture(params=PYTHONS, autouse=True)
def _python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without filters":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)


def packed(name: str, *, link: str | None = None) -> tarfile.TarFile:
    """Return a tar file with a file called `name`, or a link to `link`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.mode = 0o640
        if link is not None:
            info.type, info.linkname = tarfile.SYMTYPE, link
        else:
            info.size = 4
        tar.addfile(info, io.BytesIO(b"text"))
    buffer.seek(0)
    return tarfile.open(fileobj=buffer)


@pytest.mark.parametrize("rules", ["tar", "data"])
def test_files_arrive_with_their_content(tmp_path: Path, rules: str) -> None:
    with packed("a/b.txt") as tar:
        extract(tar, tmp_path, rules)  # type: ignore[arg-type]
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"text"


def test_a_trusted_file_may_hold_links(tmp_path: Path) -> None:
    with packed("link", link="b.txt") as tar:
        extract(tar, tmp_path, "tar")
    assert (tmp_path / "link").readlink() == Path("b.txt")


@pytest.mark.parametrize(("name", "link"), [("../out", None), ("link", "/etc/passwd")])
def test_nothing_leads_out_of_the_folder(tmp_path: Path, name: str, link: str | None) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    with packed(name, link=link) as tar, pytest.raises(tarfile.TarError):
        extract(tar, folder, "data")
    assert [*folder.iterdir(), *tmp_path.iterdir()] == [folder]
