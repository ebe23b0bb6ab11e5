"""A gang that went on without a lost host takes it in again at a checkpoint, once it is back."""

from __future__ import annotations

import pytest
from tests.integration.saving import SAVES

from .office import Office, until

pytestmark = pytest.mark.slow
SUPERVISION = {"lease_s": 4, "min_workers": 2, "max_restarts": 1, "backoff_s": 0}


def test_a_gang_grows_again_when_its_lost_host_is_back(office: Office) -> None:
    _, _, third = office.add_hosts(3)
    supervision = {**SUPERVISION, "grow_every_s": 0.1}
    env = {"WORKERS": "3", "ATTEMPT": "3"}
    job = {"script": "train.py", "hooks": "off", "env": env}
    run = office.up(office.spec(SAVES, job=job, supervision=supervision))
    run.wait_for_line("step 5", "worker:0", "worker:1", "worker:2")
    number = int(third.address.rpartition(".")[2])
    third.power_off()
    until(lambda: "2 workers" in run.log("worker:0", 2), "a gang of two")
    office.lab.remove(third)
    office.hosts[2] = office.lab.add(third.name, number=number)
    assert run.end() == 0, run.said
    *_, smaller, grown = run.of_type("restarting")
    assert smaller["members"] == ["worker:0", "worker:1"]
    assert "members" not in grown
    assert grown["reason"] == "worker:2 is back: growing to 3 workers"
    assert (grown["planned"], grown["counts"]) == (True, False)
    (back,) = run.of_type("node_back")
    assert (back["node"], back["tasks"]) == (third.address, ["worker:2"])
    assert len(run.of_type("diagnosis")) == len(run.of_type("restarting")) - 1
    first_lines = {run.log(f"worker:{n}", 3).splitlines()[0] for n in range(3)}
    step = grown["from_checkpoint"].removeprefix("ckpt-")
    assert first_lines == {f"3 workers from step {step}"}
    assert f"node {third.address} is back: worker:2 can join at the next checkpoint" in run.said


def test_a_gang_starts_without_a_host_that_is_down_and_takes_it_in_later(office: Office) -> None:
    _, _, third = office.add_hosts(3)
    third.power_off()
    office.lab.remove(third)
    env = {"WORKERS": "3", "ATTEMPT": "2"}
    prepare = {"command": ["sh", "-c", "hostname > prepared.txt"]}
    job = {"script": "train.py", "hooks": "off", "env": env, "prepare": prepare}
    script = f"open('prepared.txt').close()\n{SAVES}"
    run = office.up(office.spec(script, job=job, supervision={**SUPERVISION, "grow_every_s": 0.1}))
    until(lambda: "2 workers" in run.log("worker:0"), "a gang of two")
    number = int(third.address.rpartition(".")[2])
    office.hosts[2] = office.lab.add(third.name, number=number)
    assert run.end() == 0, run.said
    what = "starting with 2 of 3 workers, without worker:2"
    assert f"{what}: {third.address} cannot be reached" in run.said
    assert run.log("worker:2", 2).startswith("3 workers"), run.said
