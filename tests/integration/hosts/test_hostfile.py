"""A cluster can be given on the command line, as a file or a list of hosts."""

from __future__ import annotations

import json
import sys

import pytest

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
