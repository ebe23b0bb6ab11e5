"""The package of a submitted run: its folder, its spec and its code, as Secrets of the cluster.

The submitter packs what the coordinator needs (`build`), and the coordinator's pod unpacks it
(`unpack`). A Secret holds 1 MiB at most, so the package travels in pieces. ``job.env_file``, which
may hold secrets, stays in the first Secret: the pod reads it there, and no volume gets a copy.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import gzip
import io
import json
import os
import secrets
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from tfcluster.agent import foreign_json
from tfcluster.agent.error_text import describe_error
from tfcluster.backends.kubernetes.run_pods import PACKAGE_FOLDER
from tfcluster.errors import SetupError
from tfcluster.plans.plan import Plan
from tfcluster.rundir.paths import RunPaths
from tfcluster.wire.file_trees import FileToSend

KEY: Final = "package"
PIECE_BYTES: Final = 700 << 10
MOST_BYTES: Final = 8 << 20
SUBMITTED: Final = "submitted.json"
"""The job of the run, as the submitter records it: name and cluster."""
SUBMITTED_AT: Final = ".submitted-at"
"""The time by the submitter's clock immediately before it makes the Job."""
FOLDER: Final = ".folder"
"""The file with the id of a coordinator's run folder, and the lines of events it began with."""
_ENV_FILE: Final = "env-file"
"""The key of ``job.env_file`` in the first Secret."""
_UNPACKING: Final = ".unpacking-"


def build(
    paths: RunPaths, plan: Plan, code: Sequence[FileToSend], *, cluster: str, job: str, home: str
) -> list[dict[str, bytes]]:
    """Return what each Secret of the package of the run in `paths` holds, the pieces and more.

    `code`: the files of the workdir; `home`: the TFCLUSTER_HOME of the coordinator. Raises
    SetupError if the package is too large.
    """
    spec = foreign_json.read_json_object(paths.spec)
    variables = _path_of(spec, "env_file", paths)
    submitted = {"id": job, "cluster": cluster}
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        in_pod = _spec_in_pod(spec, paths.run_id, home, has_code=bool(code))
        _add_json(tar, f"run/{paths.spec.name}", in_pod)
        _add_json(tar, f"run/{SUBMITTED}", submitted)
        _add_json(tar, f"run/{SUBMITTED_AT}", time.time())
        for path in (paths.plan, paths.launch, paths.state, paths.events):
            tar.add(path, f"run/{path.name}")
        if paths.checkpoints.exists():
            tar.add(paths.checkpoints, f"run/{paths.checkpoints.name}")
        _add_folder(tar, "code")
        for file in code:
            _add_code(tar, file)
    package = buffer.getvalue()
    _require_size(len(package), paths, code)
    pieces = range(0, len(package), PIECE_BYTES)
    held = [{f"{KEY}-{n:03}": package[at : at + PIECE_BYTES]} for n, at in enumerate(pieces)]
    if variables is not None:
        held[0][_ENV_FILE] = variables.read_bytes()
    return held


def unpack(folder: Path, home: Path, run_id: str) -> RunPaths:
    """Unpack the pieces in `folder` into `home`, unless that was done; return the run's paths.

    The run folder appears last and whole: what a killed attempt has left does not count.
    """
    paths = RunPaths.of(run_id, home)
    if paths.state.exists():
        return paths
    paths.root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    code = code_folder(home, run_id)
    code.parent.mkdir(mode=0o700, exist_ok=True)
    for leftover in (*home.glob(f"{_UNPACKING}{run_id}-*"), code, paths.root):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(prefix=f"{_UNPACKING}{run_id}-", dir=home))
    package = b"".join(piece.read_bytes() for piece in sorted(folder.glob(f"{KEY}-*")))
    with tarfile.open(fileobj=io.BytesIO(package), mode="r:gz") as tar:
        tar.extraction_filter = lambda member, path: member  # the submitter made it: links, too
        tar.extractall(fresh)
    run = fresh / "run"
    lines = (run / paths.events.name).read_bytes().count(b"\n")
    (run / FOLDER).write_text(json.dumps({"id": secrets.token_hex(8), "lines": lines}))
    (run / paths.logs.name).mkdir()
    (fresh / "code").rename(code)
    run.rename(paths.root)
    fresh.rmdir()
    return paths


def unpack_copy(held: Mapping[str, bytes], paths: RunPaths) -> None:
    """Unpack only the run folder, as the submitter has made it; `held`: what all Secrets hold."""
    package = b"".join(held[key] for key in sorted(held) if key.startswith(KEY))
    paths.root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=_UNPACKING, dir=paths.root.parent.parent) as fresh:
        try:
            with tarfile.open(fileobj=io.BytesIO(package), mode="r:gz") as tar:
                extract_files(tar, Path(fresh), below="run/")
            Path(fresh, "run", paths.logs.name).mkdir()
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            raise SetupError(
                f"the package of {paths.run_id} in the cluster cannot be unpacked:"
                f" {describe_error(error)}"
            ) from error
        try:
            Path(fresh, "run").rename(paths.root)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # else another command was first
                raise


def extract_files(tar: tarfile.TarFile, folder: Path, *, below: str = "") -> None:
    """Unpack the files whose names begin with `below`, which somebody else has packed.

    A link, or a name that leads out of the folder, is an error. tarfile's own filter for that came
    with Python 3.11.4. Raises tarfile.TarError.
    """
    for member in tar:
        if member.isdir() or not member.name.startswith(below):
            continue
        parts = PurePosixPath(member.name).parts
        if not member.isreg() or ".." in parts or parts[0] == "/":
            raise tarfile.ExtractError(f"{member.name!r} is neither a file nor a folder below")
        target = folder.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        reader = tar.extractfile(member)
        assert reader is not None
        with reader, target.open("wb") as file:
            shutil.copyfileobj(reader, file)
        os.utime(target, (member.mtime, member.mtime))


def remove(home: Path, run_id: str) -> None:
    """Remove all that `unpack` and the run have made, which has been fetched."""
    for folder in (RunPaths.of(run_id, home).root, code_folder(home, run_id)):
        shutil.rmtree(folder, ignore_errors=True)


def code_folder(home: Path, run_id: str) -> Path:
    """Return the folder of the workdir's copy in the coordinator's pod."""
    return home / "code" / run_id


def _spec_in_pod(spec: dict[str, Any], run_id: str, home: str, *, has_code: bool) -> dict[str, Any]:
    """Return the spec with the paths of the pod; results are delivered by the submitter.

    The submitter has chosen the files of the workdir: from the pod all are sent to the tasks. Git,
    which would say that a file named like a credential is tracked, is not there.
    """
    changed = copy.deepcopy(spec)
    changed["job"]["workdir"] = str(code_folder(Path(home), run_id))
    changed["job"]["include"] = ["*"] if has_code else []
    if changed["job"].get("env_file") is not None:
        changed["job"]["env_file"] = f"{PACKAGE_FOLDER}/{_ENV_FILE}"
    changed.get("checkpoints", {}).pop("to", None)
    return changed


def _path_of(spec: dict[str, Any], field: str, paths: RunPaths) -> Path | None:
    """Return a path of ``job``, which is relative to the spec's folder."""
    written = spec["job"].get(field)
    if written is None:
        return None
    folder = foreign_json.read_json_object(paths.state).get("spec_folder") or "."
    return Path(folder, os.path.expandvars(os.path.expanduser(written)))


def _add_json(tar: tarfile.TarFile, name: str, value: Any) -> None:
    data = json.dumps(value).encode()
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o600
    tar.addfile(info, io.BytesIO(data))


def _add_folder(tar: tarfile.TarFile, name: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o755
    tar.addfile(info)


def _add_code(tar: tarfile.TarFile, file: FileToSend) -> None:
    info = tarfile.TarInfo(f"code/{file.path}")
    info.mode = file.mode
    if file.link is not None:
        info.type, info.linkname = tarfile.SYMTYPE, file.link
        tar.addfile(info)
        return
    with contextlib.suppress(FileNotFoundError), file.source.open("rb") as reader:
        status = os.fstat(reader.fileno())
        info.size, info.mtime = status.st_size, status.st_mtime
        tar.addfile(info, reader)


def _require_size(size: int, paths: RunPaths, code: Sequence[FileToSend]) -> None:
    if size <= MOST_BYTES:
        return
    sizes = {f.path: f.source.stat().st_size for f in code if f.link is None}
    seed = sum(path.stat().st_size for path in _files(paths.checkpoints))
    what = f"the run's package has {size / 1e6:.0f} MB, more than {MOST_BYTES / 1e6:.0f} MB"
    if seed > sum(sizes.values()):
        raise SetupError(
            f"{what}: the checkpoint to resume from has {seed / 1e6:.0f} MB",
            fix="set checkpoints.dir to a volume or an object store that the pods see, and copy"
            " the checkpoint there",
        )
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
    named = ", ".join(f"{name} ({sizes[name] / 1e6:.1f} MB)" for name in largest)
    raise SetupError(
        f"{what}; the largest files of the workdir: {named}",
        fix="have git ignore what is not code, or put data into a volume"
        " (runtime.kubernetes.volumes)",
    )


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())
