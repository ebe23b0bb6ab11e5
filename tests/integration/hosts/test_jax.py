"""JAX's processes on two hosts reach each other, whose own names none of them can look up."""

from __future__ import annotations

import re

import pytest
from tests.integration.jobs.lab import ROOT

from .office import Office

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]


def test_gloo_uses_the_addresses_of_the_spec(office: Office) -> None:
    hosts = office.add_hosts(2)
    spec = office.spec(
        cluster={"worker": [f"{host.address}:0" for host in hosts]},
        job={"module": "tfcluster_workers.jobs.keras_jax"},
        strategy={"name": "jax"},
        runtime={"hosts": {"*": {"python": str(ROOT / ".venv-jax/bin/python")}}},
    )
    run = office.up(spec, "--", "--epochs=1", "--examples=192")
    assert run.end(300) == 0, run.said
    losses = re.findall(r"^worker:\d │ epoch 1 loss (\S+)", run.said, re.MULTILINE)
    assert len(losses) == 2
    assert losses[0] == losses[1]
    assert "process 1 of 2" in run.said
