"""The agent of a pod that imports before a coordinator comes, reached through its seat."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.launcher.agent.conftest import Peer, wait_until
from tests.launcher.agent.tasks.test_preloader import BOOT
from tests.launcher.agent.test_pod_seat import Pod

from tfcluster.agent import bootstrap
from tfcluster.agent.containers import pod_seat
from tfcluster.backends import bundle

KEY = "the key"
SLOW = "import time; time.sleep(600)"


class EarlyPod:
    """A seat that has the bundle and an order beside it; `home` is the pod's own folder."""

    def __init__(
        self, folder: Path, imports: str, *options: str, built: bundle.Bundle | None = None
    ) -> None:
        self.folder, self.home, self.closing = folder, folder / "home", contextlib.ExitStack()
        (folder / "lib").mkdir()
        (folder / "lib" / "heavy.py").write_text(imports)
        env = {"PYTHONPATH": str(folder / "lib")}
        self.process_order = {"argv": [sys.executable, str(BOOT), "preload", "heavy"], "env": env}
        self.bundle = built or bundle.build()
        (folder / "bundle.zip").write_bytes(self.bundle.zip_bytes)
        order = {"process": self.process_order, "key": KEY}
        about = {"digest": self.bundle.digest, "orders": [order], "of": {"worker-0": 0}}
        (folder / "preload.json").write_text(json.dumps(about))
        self.seat = Pod(folder, "--preload=worker-0", *options)
        self.needs_code: bool | None = None
        """Whether the newest relay asked for the bundle."""

    @property
    def code(self) -> Path:
        return self.home / ".cache" / "tfcluster" / "bundles" / self.bundle.digest

    @property
    def socket(self) -> Path:
        return self.home / ".cache" / "tfcluster" / "early"

    def connect(self) -> Peer:
        """Have a relay reach the agent, as a coordinator does."""
        config: dict[str, Any] = {"run_id": "run-1", "node": "local", "token": "secret"}
        config |= {"lease_s": 30.0, "former": None, "is_tied": False, "starts": True, "early": True}
        config |= {"socket": f"{self.folder}/run/agent.sock", "ports_dir": f"{self.folder}/ports"}
        cache = str(self.home / ".cache" / "tfcluster")
        order = {"digest": self.bundle.digest, "cache": cache, "config": config}
        source = Path(bootstrap.__file__).read_text()
        argv = self.seat.dial(sys.executable, "-I", "-S", "-c", source)
        self.relay = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.relay.stdin is not None
        assert self.relay.stdout is not None
        self.relay.stdin.write(json.dumps(order).encode() + b"\n")
        self.relay.stdin.flush()
        self.needs_code = self.relay.stdout.readline() == bootstrap.NEED
        if self.needs_code:
            data = self.bundle.zip_bytes
            self.relay.stdin.write(b"%d\n" % len(data) + data)
            self.relay.stdin.flush()
        wait_until(lambda: listens(config["socket"]))
        self.closing.callback(self.relay.communicate)
        self.closing.callback(self.relay.kill)
        return self.closing.enter_context(contextlib.closing(Peer(config["socket"])))

    def children(self) -> Sequence[psutil.Process]:
        return psutil.Process(self.seat.process.pid).children(recursive=True)

    def importers(self) -> list[int]:
        return [each.pid for each in self.children() if "preload" in each.cmdline()]

    def close(self) -> None:
        self.closing.close()
        left = self.children() if self.seat.process.poll() is None else []
        kill_all(left)
        self.seat.process.kill()
        self.seat.process.communicate()


def listens(path: str) -> bool:
    """Return whether a process accepts connections at `path`; a file may be there before."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


def kill_all(processes: Iterable[psutil.Process]) -> None:
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    made = list[EarlyPod]()

    def make_pod(imports: str = "", *options: str, **named: Any) -> EarlyPod:
        made.append(EarlyPod(tmp_path, imports, *options, **named))
        return made[-1]

    yield make_pod
    for each in made:
        each.close()


def preload(peer: Peer, pod: EarlyPod, key: str = KEY) -> Mapping[str, Any]:
    peer.send("preload", process=pod.process_order, key=key)
    return peer.take("preload_ready", "preload_failed")


def test_a_relay_gets_the_agent_that_has_imported_already(make: Any) -> None:
    pod = make("print('imported')")
    wait_until(lambda: len(pod.importers()) == 1)
    (importer,) = pod.importers()
    peer = pod.connect()
    welcome = peer.hello()
    assert os.getpgid(welcome["pid"]) == welcome["pid"] != welcome["guard_pid"]
    assert psutil.Process(importer).ppid() == welcome["pid"]
    assert preload(peer, pod)["type"] == "preload_ready"
    assert pod.importers() == [importer]
    script = pod.folder / "main.py"
    script.write_text("import heavy, os; print('task', os.getppid(), os.umask(0o022))")
    log = pod.folder / "task.log"
    task = {"task": "worker:0", "env": {}, "cwd": "/", "log": str(log), "preload": True}
    task["argv"] = [sys.executable, str(BOOT), "script", str(script)]
    peer.send("start", attempt=1, tasks=[task])
    assert peer.take("task_exited")["exit_code"] == 0
    umask = os.umask(0o022)
    os.umask(umask)  # the seat's, not the private one of the bundle
    assert log.read_text().split("\n")[:2] == ["imported", f"task {welcome['pid']} {umask}"]
    assert not pod.socket.exists()


def test_the_code_that_the_image_has_is_used_where_it_is(make: Any) -> None:
    pod = make()
    wait_until(pod.code.exists)  # a relay that comes before would send the code
    peer = pod.connect()
    peer.hello()
    assert not pod.needs_code
    agent, workers = pod.code / "agent/tfcluster/agent", pod.code / "workers/tfcluster_workers"
    assert agent.resolve() == Path(bootstrap.__file__).parent
    assert workers.resolve() == bundle.workers_folder()
    assert [path.name for path in pod.code.parent.iterdir()] == [pod.bundle.digest]
    pod.relay.kill()
    peer = pod.connect()  # as after a lost connection, when no early agent waits any more
    assert not pod.needs_code
    assert agent.is_symlink()


def test_the_code_of_another_version_than_the_image_s_is_unpacked(
    make: Any, tmp_path: Path
) -> None:
    files = {**bundle.build().files, "workers/tfcluster_workers/newer.py": b"# newer\n"}
    unpacked = bundle.Bundle(files, "")
    bundle._write(unpacked, str(tmp_path / "newer"))
    digest = bootstrap.digest_of(str(tmp_path / "newer"))
    pod = make(built=bundle.Bundle(files, digest))
    wait_until(pod.code.exists)
    pod.connect().hello()
    assert not pod.needs_code
    assert bootstrap.is_intact(str(pod.code))  # which no link to a folder is
    assert [path.name for path in pod.code.parent.iterdir()] == [digest]


def test_a_relay_that_comes_while_the_code_is_installed_keeps_it(make: Any, tmp_path: Path) -> None:
    bundles = tmp_path / "home" / ".cache" / "tfcluster" / "bundles"
    bundles.mkdir(parents=True)
    lock = os.open(bundles, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # the early agent waits for it
    pod = make()
    pod.closing.callback(os.close, lock)
    with ThreadPoolExecutor() as pool:
        connected = pool.submit(pod.connect)
        wait_until(lambda: pod.needs_code is not None)
        fcntl.flock(lock, fcntl.LOCK_UN)
        connected.result().hello()
    assert pod.needs_code
    assert bootstrap.is_intact(str(pod.code), follows_links=True)
    assert [path.name for path in bundles.iterdir()] == [pod.bundle.digest]


def test_another_order_ends_the_early_importer(make: Any) -> None:
    pod = make(SLOW)
    wait_until(lambda: len(pod.importers()) == 1)
    peer = pod.connect()
    peer.hello()
    (pod.folder / "lib" / "heavy.py").write_text("")
    before = pod.importers()
    assert preload(peer, pod, "another")["type"] == "preload_ready"
    assert len(pod.importers()) == 1
    assert pod.importers() != before


def test_early_imports_that_failed_are_reported_to_the_order(make: Any) -> None:
    pod = make("raise ImportError('no such library')")
    peer = pod.connect()
    peer.hello()
    failed = preload(peer, pod)
    assert failed["type"] == "preload_failed"
    assert "no such library" in failed["error"]


def test_without_an_early_agent_the_relay_starts_one(make: Any, tmp_path: Path) -> None:
    (tmp_path / "home" / ".cache").mkdir(parents=True)
    (tmp_path / "home" / ".cache" / "tfcluster").touch()  # no folder can be made there
    pod = make()
    wait_until(lambda: not pod.children())
    (tmp_path / "home" / ".cache" / "tfcluster").unlink()
    peer = pod.connect()
    peer.hello()
    assert preload(peer, pod)["type"] == "preload_ready"


def test_a_pod_to_which_nobody_came_ends_with_its_importer(make: Any) -> None:
    pod = make(SLOW)
    wait_until(lambda: len(pod.importers()) == 1)
    left = pod.children()
    pod.seat.process.terminate()
    assert pod.seat.process.wait(60) == 128 + signal.SIGTERM
    psutil.wait_procs(left, timeout=20)
    assert not [each for each in left if each.is_running()]
    assert not pod.socket.exists()


def test_a_pod_whose_agent_never_gets_a_run_ends_when_nobody_comes(make: Any) -> None:
    pod = make(SLOW, "--idle-s=5")
    wait_until(lambda: len(pod.importers()) == 1)
    left = pod.children()
    assert pod.seat.process.wait(60) == pod_seat.NOBODY_CAME
    kill_all(left)  # as the kernel does when a pod's first process ends
