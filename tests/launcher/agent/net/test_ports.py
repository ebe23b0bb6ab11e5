"""Held ports belong only to the run and its tasks, and exactly as long as the run lasts."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.live import free_ports
from tests.launcher.agent.conftest import NewRig, Rig, kill, wait_until

from tfcluster.agent.net.ports import remove_left
from tfcluster.agent.node import probe

LISTEN = """
import socket, sys, time
family = socket.AF_INET6 if sys.argv[2] == "6" else socket.AF_INET
s = socket.socket(family)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(sys.argv[3]))
s.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", int(sys.argv[1])))
s.listen()
print("listening", flush=True)
time.sleep(60)
"""


def hold(rig: Rig, *ports: int) -> dict[str, object]:
    wanted = [
        {"task": f"worker:{i}", "host": "localhost", "port": port} for i, port in enumerate(ports)
    ]
    rig.peer.send("hold_ports", ports=wanted)
    return rig.peer.take("ports_held", "port_taken")


def can_bind(port: int, host: str = "0.0.0.0", *, reuse_port: bool = False) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(reuse_port))
        try:
            trial.bind((host, port))
        except OSError:
            return False
        return True


@pytest.mark.linux("the range of ports is in /proc")
def test_chosen_ports_differ_and_exclude_other_processes(rig: Rig) -> None:
    ports = hold(rig, 0, 0, 0)["ports"]
    assert isinstance(ports, dict)
    assert len(set(ports.values())) == 3
    for port in ports.values():
        assert not can_bind(port)
        assert not can_bind(port, "127.0.0.1")


def test_ports_are_chosen_from_the_range_of_the_spec(rig: Rig) -> None:
    def held(count: int, last: int) -> dict[str, object]:
        wanted = [{"task": f"worker:{i}", "host": "a", "port": 0} for i in range(count)]
        rig.peer.send("hold_ports", ports=wanted, among=[first, last])
        return rig.peer.take("ports_held", "port_taken")

    first, _ = free_ports(2)
    ports = held(2, first + 1)["ports"]
    assert isinstance(ports, dict)
    assert set(ports.values()) == {first, first + 1}
    taken = held(3, first + 1)
    assert (taken["type"], taken["port"]) == ("port_taken", 0)


@pytest.mark.linux("the holder of a port is found in /proc")
def test_a_task_that_listens_on_its_port_can_keep_it(rig: Rig) -> None:
    ports = hold(rig, 0, 0)["ports"]
    assert isinstance(ports, dict)
    kept, left = ports["worker:0"], ports["worker:1"]
    with listener(kept, "4", "1", run_id="run-1"):
        again = hold(rig, kept, 0)["ports"]
    assert isinstance(again, dict)
    assert again["worker:0"] == kept
    assert again["worker:1"] != left
    assert not can_bind(kept)


def test_a_port_that_another_run_holds_is_reported_with_its_holder(
    new_rig: NewRig, rig: Rig
) -> None:
    port, other = free_ports(2)
    assert hold(rig, port) == {"type": "ports_held", "ports": {"worker:0": port}, "n": 1}
    second = new_rig(ports_dir=rig.config.ports_dir)
    taken = hold(second, other, port)
    assert taken["type"] == "port_taken"
    assert (taken["task"], taken["port"]) == ("worker:1", port)
    assert (taken["pid"], taken["run_id"]) == (rig.pid, "run-1")
    assert can_bind(other), "after a refusal nothing is held"


@pytest.mark.linux("the holder of a port is found in /proc")
@pytest.mark.parametrize("family", ["4", "6"])
@pytest.mark.parametrize("reuse_port", ["0", "1"])
def test_a_process_that_listens_on_a_port_is_reported_as_its_holder(
    rig: Rig, family: str, reuse_port: str
) -> None:
    (port,) = free_ports(1)
    with listener(port, family, reuse_port, run_id="run-0") as pid:
        taken = hold(rig, port)
        assert (taken["type"], taken["pid"], taken["run_id"]) == ("port_taken", pid, "run-0")
        assert sys.executable in str(taken["command"])
    assert hold(rig, port)["type"] == "ports_held"


class listener:
    def __init__(self, port: int, family: str, reuse_port: str, *, run_id: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", LISTEN, str(port), family, reuse_port],
            env={"TFCLUSTER_RUN_ID": run_id},
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> int:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"listening\n"
        return self.process.pid

    def __exit__(self, *_: object) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process.kill()
        self.process.wait()


@pytest.mark.parametrize("family", ["4", "6"])
def test_a_task_with_so_reuseport_listens_on_the_held_port(rig: Rig, family: str) -> None:
    ports = hold(rig, 0)["ports"]
    assert isinstance(ports, dict)
    port = ports["worker:0"]
    rig.start_python(LISTEN, str(port), family, "1")
    wait_until(lambda: rig.log().read_bytes() == b"listening\n")
    socket.create_connection(("localhost", port)).close()
    assert not can_bind(port)
    assert rig.start_python(LISTEN, str(port), family, "0", task="worker:1")["pid"]
    assert rig.exited("worker:1")["exit_code"] == 1


def test_ports_are_free_after_the_agent_is_killed(rig: Rig) -> None:
    ports = hold(rig, 0)["ports"]
    assert isinstance(ports, dict)
    assert (rig.folder / "ports" / f"{ports['worker:0']}.json").exists()
    kill(rig.pid)
    wait_until(lambda: can_bind(ports["worker:0"]))
    wait_until(lambda: not list((rig.folder / "ports").iterdir()))


def test_a_stale_lock_file_is_ignored(rig: Rig) -> None:
    (port,) = free_ports(1)
    lock = rig.folder / "ports" / f"{port}.json"
    lock.parent.mkdir(0o700)
    lock.write_text('{"port": 1, "pid": 1, "run_id": "dead", "node": "local"}')
    assert hold(rig, port)["type"] == "ports_held"


def test_lock_files_of_a_killed_agent_of_the_same_run_are_removed(rig: Rig) -> None:
    folder = Path(str(rig.config.ports_dir))
    ports = hold(rig, 0)["ports"]
    assert isinstance(ports, dict)
    of_node = {"run_id": rig.config.run_id, "node": rig.config.node}
    for port, record in ((1, of_node), (2, {**of_node, "node": "other"}), (3, {})):
        (folder / f"{port}.json").write_text(json.dumps(record))
    remove_left(str(folder), **of_node)
    assert {path.stem for path in folder.iterdir()} == {"2", "3", str(ports["worker:0"])}


def test_holding_again_replaces_all_ports_of_these_tasks(rig: Rig) -> None:
    first = hold(rig, 0, 0)["ports"]
    assert isinstance(first, dict)
    again = hold(rig, 0, 0)["ports"]
    assert isinstance(again, dict)
    assert not set(first.values()) & set(again.values()), "a chosen port is a fresh one"
    assert all(can_bind(port) for port in first.values())
    crossed = [again["worker:1"], again["worker:0"]]
    assert hold(rig, *crossed)["ports"] == {"worker:0": crossed[0], "worker:1": crossed[1]}
    assert len(list((rig.folder / "ports").iterdir())) == 2


def test_a_taken_port_when_holding_again_releases_all(rig: Rig) -> None:
    first = hold(rig, 0, 0)["ports"]
    assert isinstance(first, dict)
    (port,) = free_ports(1)
    with listener(port, "4", "0", run_id="run-0"):
        assert hold(rig, 0, port)["type"] == "port_taken"
    assert not list((rig.folder / "ports").iterdir())
    assert all(can_bind(port) for port in first.values())


def test_the_probe_does_not_block_a_fixed_port_for_the_next_run() -> None:
    listener = probe.open_listener(0)
    port = listener.getsockname()[1]
    caller = socket.create_connection(("127.0.0.1", port))
    listener.accept()[0].close()  # closed first: the connection stays in TIME_WAIT here
    assert caller.recv(1) == b""
    caller.close()
    listener.close()
    assert can_bind(port)


@pytest.mark.linux("ports are not reserved on macOS")
def test_a_port_for_torch_admits_a_server_that_only_reuses_addresses(rig: Rig) -> None:
    """torch's TCPStore sets SO_REUSEADDR and never SO_REUSEPORT (torch/csrc/distributed/c10d)."""
    wanted = [{"task": "worker:0", "host": "a", "port": 0, "reuses_address": True}]
    rig.peer.send("hold_ports", ports=wanted)
    (port,) = rig.peer.take("ports_held")["ports"].values()
    with socket.socket() as server:
        with pytest.raises(OSError, match="in use"):
            server.bind(("127.0.0.1", port))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("0.0.0.0", port))
        server.listen()
        assert not can_bind(port)
