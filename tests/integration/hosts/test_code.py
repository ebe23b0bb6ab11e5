"""Code reaches hosts under any file name, is cached there, and is not copied to shared storage."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.lab.machines import Machine

from .office import Office, Run, until

pytestmark = pytest.mark.slow

ODD = ["a b", "quo\"te's", "new\nline", "é✓ $HOME `x`", os.fsdecode(b"\xff\xfe"), "-rf", "~"]
TELL = """
import json, os, sys
found = sorted(os.path.relpath(os.path.join(f, n)) for f, _, names in os.walk(".") for n in names)
print(json.dumps({
    "python": sys.executable, "args": sys.argv[1:], "files": found, "cwd": os.getcwd(),
    "data": os.environ.get("TFDS_DATA_DIR"), "host": os.uname().nodename}))
open("made-by-" + os.environ["TFCLUSTER_TASK"], "w").close()
"""
HOME = Path("~").expanduser()


def facts_of(run: Run, task: str = "worker:0") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run.log(task))
    return found


def cache(host: Machine) -> Path:
    return host.root / ".cache/tfcluster"


def test_files_and_folders_with_odd_names_arrive(office: Office) -> None:
    """Workdir, script, arguments and the host's Python (below its home) have odd names."""
    (host,) = office.add_hosts(1)
    (host.root / "my env's/bin").mkdir(parents=True)
    (host.root / "my env's/bin/python").symlink_to(sys.executable)
    for name in ODD:
        office.write(f"code/{ODD[2]}/sub {ODD[1]}/{name}", name.encode(errors="replace").decode())
    script = "tr ain'\"é\n$.py"
    office.write(f"code/{ODD[2]}/{script}", TELL)
    args = ["a b", "~/x", "$TFCLUSTER_RUN_ID", "quo\"te's", "new\nline", "é", "", "*"]
    runtime = {"hosts": {"*": {"python": "~/my env's", "data_dir": "~/my data"}}}
    job = {"workdir": f"code/{ODD[2]}", "script": script, "args": args, "hooks": "off"}
    run = office.up(office.spec(TELL, job=job, runtime=runtime))
    assert run.end() == 0, run.said
    facts = facts_of(run)
    assert facts["args"] == args
    assert facts["files"] == sorted([*(f"sub {ODD[1]}/{name}" for name in ODD), script])
    assert facts["python"] == f"{HOME}/my env's/bin/python"
    assert facts["data"] == f"{HOME}/my data"
    assert facts["host"] == host.name


def test_a_hosts_cached_files_are_verified_and_removed_when_old(office: Office) -> None:
    (host,) = office.add_hosts(1)
    office.write("library.py", "WORD = 'good'")
    spec = office.spec("import library; print(library.WORD)")
    assert office.up(spec).end() == 0
    kept = next(path for path in (cache(host) / "files").iterdir() if b"good" in path.read_bytes())
    kept.write_text("WORD = 'evil'")
    (bundle,) = (cache(host) / "bundles").iterdir()
    (bundle / "agent/tfcluster/agent/tasks/runner.py").unlink()
    old = cache(host) / "files" / ("0" * 128)
    old.write_text("of a project that ended")
    moment = time.time() - 40 * 86400
    for path in (old, bundle):
        os.utime(path, (moment, moment))
    run = office.up(spec)
    assert run.end() == 0, run.said
    runs = office.home.root / ".local/state/tfcluster/runs"
    logs = [path.read_text() for path in runs.glob("far-*/logs/attempt-1/worker-0.log")]
    assert logs == ["good\n", "good\n"]
    until(lambda: not old.exists(), "the end of what is old")
    assert bundle.is_dir()
    assert (bundle / "agent/tfcluster/agent/tasks/runner.py").is_file()
    assert kept.read_text() == "WORD = 'good'"


SAVES = """
import os, time
folder = os.environ["TFCLUSTER_CHECKPOINT_DIR"]
os.makedirs(folder, exist_ok=True)
task, attempt = os.environ["TFCLUSTER_TASK"], os.environ["TFCLUSTER_ATTEMPT"]
print(os.getcwd(), sorted(os.listdir(folder)), flush=True)
if attempt == "1":
    import zipfile
    with zipfile.ZipFile(f"{folder}/new", "w") as file:
        for name in ("metadata.json", "config.json", "model.weights.h5"):
            file.writestr(name, "x" * 3_000_000)
    os.rename(f"{folder}/new", f"{folder}/model-1.keras")
    while task != "worker:1" or not os.path.exists(os.environ["RELEASE"]):
        time.sleep(0.05)
    os.kill(os.getpid(), 9)
"""
"""A job that saves once; on its release, its second worker dies."""


def test_hosts_that_share_a_home_do_not_disturb_each_other(office: Office) -> None:
    """Both get the code, and before the restart the chief's checkpoint, at the same time."""
    first, second = office.add_hosts(2)
    served = office.lab.share(first, second, where=".cache") / "tfcluster"
    run = office.up(office.spec(SAVES, lasts=True, supervision={"backoff_s": 0}))
    run.wait_for_event("checkpoint_gathered")
    office.release()
    assert run.end() == 0, run.said
    for task, host in (("worker:0", first), ("worker:1", second)):
        cwd, _, found = run.log(task, attempt=2).strip().partition(" ")
        assert cwd.endswith(f"/{host.address}/work")
        assert found == "['model-1.keras']"
    assert not any((served / "nodes").rglob("*"))
    assert len(list((served / "bundles").iterdir())) == 1
    assert {len(path.name) for path in (served / "files").iterdir()} == {128}, "no half files"


def test_a_workdir_on_storage_that_hosts_share_is_not_copied(office: Office) -> None:
    """The folder is on a file server, which the second host mounts under another name."""
    first, second = office.add_hosts(2)
    served = office.lab.share(office.home, first, where="project")
    second.share(served, "mnt/project")
    for path in served.iterdir():
        path.unlink()
    (served / "library.py").write_text("WORD = 'here'")
    hosts = {
        "*": {"python": sys.executable},
        second.address: {"workdir": "~/mnt/project", "python": sys.executable},
    }
    job = {"script": "train.py", "workdir": "../project", "hooks": "off"}
    (served / "train.py").write_text("import library\n" + TELL)
    run = office.up(office.spec(job=job, runtime={"hosts": hosts}))
    assert run.end() == 0, run.said
    assert facts_of(run)["cwd"] == f"{HOME}/project"
    assert facts_of(run, "worker:1")["cwd"] == f"{HOME}/mnt/project"
    assert {"library.py", "train.py"} <= set(facts_of(run)["files"])
    made = {path.name for path in served.iterdir() if path.is_file()}
    assert made == {"library.py", "train.py", "made-by-worker:0", "made-by-worker:1"}
    for host in (first, second):
        assert not (cache(host) / "files").exists()
    assert (served / "train.py").read_text().startswith("import library")
