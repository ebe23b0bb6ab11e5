"""Nobody outside a run's network reaches TensorFlow's ports, which ask for no password."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.commandline import CommandLine
from tests.integration.gang import MEET
from tests.lab.docker_images import STUB
from tests.lab.dockerd import Dockerd

from .harbor import Harbor, ended

pytestmark = pytest.mark.slow

LISTEN = f"""{MEET}
print("listens", my_port, flush=True)
print("reached its peers", flush=True)
while not os.path.exists("/tmp/go"):
    time.sleep(0.05)
"""
DIAL = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""
OUTSIDE = """
ip netns add outside
ip link add to-outside type veth peer name to-host netns outside
ip addr add 192.0.2.1/24 dev to-outside
ip link set to-outside up
ip -n outside addr add 192.0.2.2/24 dev to-host
ip -n outside link set to-host up
ip -n outside route add default via 192.0.2.1
"""
"""Commands that make another machine, which routes through the machine of the daemon."""


@pytest.fixture
def outside(dockerd: Dockerd) -> Iterator[tuple[str, ...]]:
    """The prefix that makes a command run on the other machine."""
    made = dockerd.run(["sh", "-e", "-c", OUTSIDE])
    try:
        assert made.returncode == 0, made.stderr
        yield ("ip", "netns", "exec", "outside")
    finally:
        dockerd.run(["ip", "netns", "delete", "outside"])


def dials(dockerd: Dockerd, *before: str, address: str, port: int) -> str:
    done = dockerd.run([*before, "python3", "-c", DIAL, address, str(port)])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_only_the_run_itself_and_the_daemons_machine_reach_a_task(
    dockerd: Dockerd, shell: CommandLine, outside: tuple[str, ...]
) -> None:
    harbor = Harbor(shell, dockerd.docker)
    dockerd.docker("network", "create", "strangers")
    run = harbor.up(harbor.spec(LISTEN))
    run.wait_for_line("reached its peers")
    port = int(next(x for x in run.log("worker:1").splitlines() if "listens" in x).split()[1])
    form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    address = dockerd.docker("inspect", "--format", form, harbor.container(run))

    assert (
        dials(dockerd, address=address, port=port) == "connected"
    )  # from the host: documented, and in the start panel
    # The other machine reaches the host, but nothing beyond it.
    assert dials(dockerd, *outside, address="192.0.2.1", port=9) == "ConnectionRefusedError"
    assert dials(dockerd, *outside, address=address, port=port) == "TimeoutError"
    dial = ("--entrypoint", "python3", STUB, "-c", DIAL, address, str(port))
    for network in ("bridge", "strangers"):
        assert dockerd.docker("run", "--rm", "--network", network, *dial) == "TimeoutError"

    for node in ("worker-0", "worker-1"):
        dockerd.docker("exec", harbor.container(run, node), "touch", "/tmp/go")
    ended(run)
    dockerd.docker("network", "rm", "strangers")
    assert harbor.left() == []
