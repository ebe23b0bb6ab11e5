"""A cluster can be given on the command line, as a file or a list of hosts."""

from __future__ import annotations

import json
import sys

import pytest
from tests.integration.gang import GREET

from .office import Office, numbered

pytestmark = pytest.mark.slow


def test_a_file_of_hosts_defines_the_cluster_and_the_run_records_it(office: Office) -> None:
    first, second = office.add_hosts(2)
    office.write("hosts", f"root@{first.address} slots=2  # a pair\n{second.address}\n")
    cluster = {"worker": 7}
    spec = office.spec(count=3, cluster=cluster)
    run = office.up(spec, "--hosts", str(spec.with_name("hosts")))
    assert run.end() == 0, run.said
    for task in ("worker:0", "worker:1", "worker:2"):
        assert run.log(task).splitlines() == numbered(3)
    assert len(run.of_type("node_connected")) == 2
    kept = json.loads((run.folder / "spec.json").read_text())
    addresses = [task["address"] for task in kept["cluster"]["worker"]]
    assert addresses == [f"{first.address}:0", f"{first.address}:0", f"{second.address}:0"]
    logins = kept["runtime"]["hosts"]
    assert logins == {
        "*": {"python": sys.executable},
        first.address: {"ssh": f"root@{first.address}"},
    }


@pytest.mark.parametrize("variable", ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE"])
def test_up_in_a_job_of_a_scheduler_uses_its_nodes_through_ssh(
    office: Office, variable: str
) -> None:
    """The file has a line for each slot; three tasks share two nodes."""
    first, second = office.add_hosts(2)
    office.write("nodes", f"{first.address}\n{first.address}\n{second.address}\n")
    script = f"{GREET}print(*addresses, flush=True)\n"
    spec = office.spec(script, cluster={"worker": 3})
    run = office.up(spec, env={variable: str(spec.with_name("nodes"))})
    assert run.end() == 0, run.said
    assert f"({variable}): {first.address}, {second.address}" in run.said
    for task in ("worker:0", "worker:1", "worker:2"):
        hosts = [address.partition(":")[0] for address in run.log(task).split()]
        assert hosts == [first.address, first.address, second.address]
    kept = json.loads((run.folder / "spec.json").read_text())
    assert kept["cluster"] == {"worker": 3}, "a later run has other nodes"
