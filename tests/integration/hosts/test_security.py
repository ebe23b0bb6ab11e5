"""Secrets stay where they are needed, and tfcluster's files on a host are private to the user."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from tests.lab.machines import Machine

from .office import Office, Run, is_whole, until

pytestmark = pytest.mark.slow

IN_SPEC, EXPORTED, OF_HOST = "t0ken-0f-4nna", "l1cense-0f-4nna", "p4ssw0rd-0f-4nna"
SECRETS = (IN_SPEC, EXPORTED, OF_HOST)
SCRIPT = """
import os, sys, time
names = ("SERVICE_TOKEN", "LICENSE", "DB_PASSWORD")
print("lengths", [len(os.environ[name]) for name in names], flush=True)
for name in names:  # cut into pieces, as it may come
    for letter in "it is " + os.environ[name] + "!":
        os.write(1, letter.encode())
    os.write(2, b"\\n")
print("ready", flush=True)
while not os.path.exists("/tmp/go-on"):
    time.sleep(0.05)
raise ValueError("refused: " + os.environ["LICENSE"] + os.environ["DB_PASSWORD"])
"""


def test_a_secret_is_in_its_tasks_environment_and_nowhere_else(office: Office) -> None:
    office.add_hosts(2)
    hosts = {"*": {"python": sys.executable, "env": {"DB_PASSWORD": OF_HOST}}}
    job = {"script": "train.py", "env": {"SERVICE_TOKEN": IN_SPEC}, "secrets": ["LICENSE"]}
    supervision = {"max_restarts": 0}
    spec = office.spec(SCRIPT, job=job, runtime={"hosts": hosts}, supervision=supervision)
    run = office.up(spec, env={"LICENSE": EXPORTED})
    tasks = ("worker:0", "worker:1")
    for task in tasks:
        run.wait_for_line("ready", task)
    assert not [line for line in command_lines() if holds(line)]
    for host in office.hosts:
        knowing = [names for names in environments(host) if holds(b"".join(names.values()))]
        assert len(knowing) == 1, "one task"
        assert b"TFCLUSTER_TASK" in knowing[0]
    for machine in (office.home, *office.hosts):
        assert not spilled(machine)
    for host in office.hosts:
        assert not open_to_others(host)
        (host.folder / "tmp/go-on").touch()
    assert run.end() == 1, run.said
    for task in tasks:
        lines = run.log(task).splitlines()
        assert lines[0] == f"lengths {[len(value) for value in SECRETS]}"
        assert lines[1:4] == ["it is ********!"] * 3
    error = run.of_type("task_error")[0]
    assert error["message"] == "refused: ****************"
    assert not holds(run.said.encode())
    for machine in (office.home, *office.hosts):
        assert not spilled(machine)
    assert kept_env(run) == {"SERVICE_TOKEN": None}


def test_a_folder_that_another_user_made_under_our_name_blocks_no_run(office: Office) -> None:
    """Neither a run nor the reconnection to its agent is blocked."""
    (host,) = office.add_hosts(1)
    taken = host.folder / f"tmp/tfcluster-{os.getuid()}"
    taken.mkdir(0o700)
    os.chown(taken, 12345, 12345)
    run = office.up(office.spec(lasts=True))
    run.wait_for_line("line 5", "worker:0")
    taken.rmdir()
    assert office.send(f"-- {host.address} ", signal.SIGKILL)
    run.wait_for_event("node_reconnected")
    office.release()
    assert run.end() == 0, run.said
    assert is_whole(run.log("worker:0"))
    assert not run.of_type("restarting")


LIST = """
import os
names = [os.path.relpath(os.path.join(f, n)) for f, _, ns in os.walk(".") for n in ns]
print("agent", os.environ.get("SSH_AUTH_SOCK"), "files", *sorted(names))
"""
PRIVATE_KEY = "t0ken-0f-4nna"


def test_credentials_of_the_user_are_not_sent_to_hosts(office: Office) -> None:
    """The test has files beside the code, and an ssh agent that the user forwards everywhere."""
    (host,) = office.add_hosts(1)
    for name in (".env", ".ssh/id_ed25519", "certs/server.pem", ".kube/config", ".aws/credentials"):
        office.write(name, PRIVATE_KEY)
    spec = office.spec(LIST, job={"script": "train.py", "hooks": "off", "include": [".kube"]})
    with forwarded_agent(office) as variables:
        run = office.up(spec, env=variables)
        assert run.end() == 0, run.said
    assert run.log("worker:0") == "agent None files .kube/config spec.json train.py\n"
    kept = (host.root / ".cache/tfcluster/files").iterdir()
    assert [path.read_text() for path in kept].count(PRIVATE_KEY) == 1, "what was asked for"
    (warning,) = [
        one["message"] for one in run.of_type("warned") if "credentials" in one["message"]
    ]
    assert ".aws/credentials, .env, .ssh/id_ed25519, certs/server.pem; if the job" in warning


@contextlib.contextmanager
def forwarded_agent(office: Office) -> Iterator[dict[str, str]]:
    """Start an ssh agent at the desk, with a configuration that forwards it to every host."""
    config = office.home.root / ".ssh/config"
    config.write_text("Host *\n  ForwardAgent yes\n")
    socket = f"{Path('~').expanduser()}/{office.desk.name}.agent"
    agent = office.home.start(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    try:
        until((office.home.root / f"{office.desk.name}.agent").exists, "the ssh agent")
        yield {"SSH_AUTH_SOCK": socket}
    finally:
        config.unlink()
        agent.terminate()
        agent.wait()


def holds(data: bytes) -> bool:
    return any(secret.encode() in data for secret in SECRETS)


def command_lines() -> Iterator[bytes]:
    """Yield the command lines of all processes of all machines."""
    yield from processes("cmdline")


def environments(host: Machine) -> list[dict[bytes, bytes]]:
    """Return the environments of all processes of one machine."""
    inside = os.readlink(f"/proc/{host.pid}/ns/pid")
    found = []
    for data in processes("environ", of=inside):
        pairs = (pair.partition(b"=") for pair in data.split(b"\0"))
        found.append({name: value for name, _, value in pairs})
    return found


def processes(file: str, *, of: str | None = None) -> Iterator[bytes]:
    """Yield a file of /proc for all processes or for one machine's, if we may read it."""
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                if of in (None, os.readlink(process / "ns/pid")):
                    yield (process / file).read_bytes()


def spilled(machine: Machine) -> list[str]:
    """Return the files of a machine with a secret in them, except the user's own spec."""
    files = [path for place in ("home", "tmp") for path in found(machine.folder / place)]
    return [str(p) for p in files if holds(content(p)) and not is_own_spec(machine, p)]


def content(path: Path) -> bytes:
    """Return what a regular file holds, or b"" if it has been replaced or deleted meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes() if stat.S_ISREG(path.lstat().st_mode) else b""
    return b""


def is_own_spec(machine: Machine, path: Path) -> bool:
    return machine.name == "home" and path.match("desk-*/spec.json")


def found(folder: Path) -> Iterable[Path]:
    for above, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != ".pyenv"]
        yield from (Path(above, name) for name in (*folders, *names))


def open_to_others(host: Machine) -> list[str]:
    """Return tfcluster's folders and files that are not 0700 and 0600.

    The user's own files in the copy of the code, and Python's caches, lie in folders that are.
    """
    cache, sockets = host.root / ".cache/tfcluster", host.folder / f"tmp/tfcluster-{os.getuid()}"
    ours = [cache, sockets, *found(cache), *found(sockets)]
    wrong = []
    for path in ours:
        inside = {"work", "__pycache__"} & set(path.parts[:-1])
        mode = stat.S_IMODE(path.lstat().st_mode)
        is_private = mode & 0o077 == 0 or path.name in ("work", "__pycache__")
        if not inside and not is_private:
            wrong.append(f"{path}: {mode:o}")
    assert len(ours) > 20
    return wrong


def kept_env(run: Run) -> object:
    return json.loads((run.folder / "spec.json").read_text())["job"]["env"]
