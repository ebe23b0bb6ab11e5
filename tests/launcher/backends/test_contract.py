"""The backends of this machine and the template for new ones keep the contract of all backends.

`ssh` and `docker` are checked in tests/integration, against real hosts and a real daemon.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.backend_contract import NAMES, UNREACHED, results
from tests.installed_template import SOURCE, install

ROOT = Path(__file__).parents[3]


def _node(name: str, backend: str, python: str) -> dict[str, Any]:
    interpreter = {"path": python, "why": "the tests'"}
    return {"name": name, "backend": backend, "interpreter": interpreter, "workdir": "/"}


LOCAL = {"nodes": [_node("local", "local", sys.executable)]}
TEMPLATE = {
    "runtime": {"backend": "template", "python": sys.executable},
    "broken": _node("node-0", "template", "/no/python"),
}
SIMULATED = {"runtime": {"network": {"rate": "1gbit"}}}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="tfc-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(LOCAL, id="local"),
        pytest.param(SIMULATED, id="simulated", marks=pytest.mark.linux("namespaces")),
        pytest.param(TEMPLATE, id="template"),
    ],
)
def outcomes(request: pytest.FixtureRequest, folder: Path) -> Mapping[str, str]:
    """Run all checks once; two slots are free."""
    facts: dict[str, Any] = dict(request.param)
    queue, path = folder / "queue", [str(ROOT)]
    queue.mkdir(exist_ok=True)
    for host in ("127.0.0.1", "localhost"):
        (queue / f"{host}.free").touch()
    if (runtime := facts.pop("runtime", None)) is not None:
        if runtime.get("backend") == "template":
            runtime = {**runtime, "template": {"queue": str(queue)}}
            path.append(str(install(folder / "package")))
        facts["spec"] = str(folder / "spec.json")
        spec = {"cluster": {"worker": 2}, "job": {"command": ["true"]}, "runtime": runtime}
        (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "facts.json").write_text(json.dumps(facts))
    env = {**os.environ, "HOME": str(folder), "PYTHONPATH": os.pathsep.join(path)}
    argv = [sys.executable, "-m", "tests.backend_contract", str(folder / "facts.json")]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300)
    assert sorted(path.name for path in queue.iterdir()) == ["127.0.0.1.free", "localhost.free"]
    return results(done.stdout + done.stderr)


@pytest.mark.parametrize("check", NAMES)
def test_the_contract_is_kept(
    request: pytest.FixtureRequest, outcomes: Mapping[str, str], check: str
) -> None:
    is_here = not request.node.callspec.id.startswith("template")
    if is_here and check == UNREACHED:
        assert outcomes[check].startswith("was not run"), "this machine can always be reached"
    else:
        assert outcomes[check] == "ok"


def test_the_template_is_small() -> None:
    """A new backend of another package is one folder, and a line of its pyproject.toml."""
    assert sum(len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")) <= 120
