"""The worker image has an unprivileged user and a TensorFlow, and no secret, compiler or cache."""

from __future__ import annotations

import json
import re

import pytest
from tests.lab.docker_images import MARK, ROOT, STUB, WORKER
from tests.lab.dockerd import Docker

from tfcluster.backends.docker import worker_image

NOBODY = "31337:31338"
"""A user and a group that /etc/passwd does not know."""
TOOLS = ("gcc", "cc", "g++", "make", "ld", "as")
LOOK = """
import os
import tensorflow as tf, tensorflow_datasets, keras_tuner
print(os.getuid(), tf.__version__, tf.reduce_sum(tf.ones([2, 3])).numpy())
import tf_keras
"""
WRITE = """
import getpass, os, pathlib, sys
path = pathlib.Path.home() / ".cache" / "made"
path.mkdir(parents=True)
(path / "file").write_text("x")
print(os.getuid(), pathlib.Path.home(), getpass.getuser(), os.getcwd(), sys.prefix)
"""
FIND = r"""
import os
for top in ("/opt", "/home", "/root", "/tmp", "/var", "/run", "/mnt", "/etc"):
    for at, folders, names in os.walk(top):
        for name in names:
            path = os.path.join(at, name)
            print(path)
"""


def which(*tools: str) -> str:
    """Return a shell command that prints the paths of those tools that exist."""
    return f"for tool in {' '.join(tools)}; do command -v $tool; done; true"


def occurrences(docker: Docker, image: str, *texts: str) -> list[int]:
    """Count each text in the layers and settings of `image`, as `docker save` writes them."""
    sought, counts = [text.encode() for text in texts], [0] * len(texts)
    overlap = max(map(len, sought)) - 1
    with docker.start("save", image) as saving:
        assert saving.stdout is not None
        last = b""
        while piece := saving.stdout.read(1 << 22):
            for index, text in enumerate(sought):
                counts[index] += (last + piece).count(text) - last.count(text)
            last = piece[-overlap:]
    assert saving.returncode == 0
    return counts


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestWithoutTensorFlow:
    """The image before TensorFlow is installed into it."""

    def test_its_user_is_not_root(self, docker: Docker) -> None:
        assert docker("run", "--rm", STUB, "id", "-u") == "1000"

    def test_an_unknown_user_has_a_home_a_name_and_a_python(self, docker: Docker) -> None:
        said = docker("run", "--rm", "--user", NOBODY, STUB, "python3", "-c", WRITE)
        assert said == "31337 /home/worker worker /home/worker /opt/tf"

    def test_python_is_python3(self, docker: Docker) -> None:
        found = docker("run", "--rm", STUB, "sh", "-c", which("python", "python3"))
        assert found.split() == ["/opt/tf/bin/python", "/opt/tf/bin/python3"]

    def test_the_image_has_no_health_check_ports_or_volumes(self, docker: Docker) -> None:
        (found,) = json.loads(docker("image", "inspect", STUB))
        assert not found["Config"].get("Healthcheck")
        assert not found["Config"].get("ExposedPorts")
        assert not found["Config"].get("Volumes")


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestWithTensorFlow:
    """The image that trains."""

    def test_an_unknown_user_can_import_tensorflow(self, worker_docker: Docker) -> None:
        run = ("run", "--rm", "--user", NOBODY, "--network", "none", WORKER, "python3", "-c", LOOK)
        uid, version, total = worker_docker(*run, timeout=200).split()
        assert (uid, total) == ("31337", "6.0")
        assert version == worker_image.choose(None, ROOT / "constraints").version

    def test_its_user_is_not_root(self, worker_docker: Docker) -> None:
        assert worker_docker("run", "--rm", WORKER, "id", "-u") == "1000"

    def test_neither_history_nor_settings_hold_a_secret(self, worker_docker: Docker) -> None:
        shown = worker_docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", WORKER)
        shown += worker_docker("image", "inspect", WORKER)
        assert "pip-install" in shown
        assert not re.search(r"://|BEGIN CERTIFICATE|index|trusted-host", shown)
        for variable in ("https_proxy", "PIP_"):
            assert variable not in shown

    def test_its_files_hold_no_secret_no_compiler_and_no_cache(self, worker_docker: Docker) -> None:
        said = worker_docker("run", "--rm", "--user", "0", WORKER, "python3", "-IS", "-c", FIND)
        files = said.splitlines()
        assert any("site-packages/tensorflow/" in path for path in files)
        assert not [path for path in files if path.startswith(("/run/secrets", "/opt/pip", "/mnt"))]
        assert not [path for path in files if re.search(r"/\.cache/|/pip/cache|pip\.conf$", path)]
        assert not [path for path in files if path.startswith(("/tmp/", "/root/", "/home/"))
                    and not re.search(r"/\.(bash|profile)\w*$", path)]  # fmt: skip
        assert not [path for path in files if "/site-packages/pip/" in path]
        found = worker_docker("run", "--rm", WORKER, "sh", "-c", which(*TOOLS, "pip", "python3"))
        assert found == "/opt/tf/bin/python3"

    def test_the_configuration_of_pip_is_in_no_layer(self, worker_docker: Docker) -> None:
        """No layer has it as a file, not even as one that a later layer removes."""
        marks, modules = occurrences(worker_docker, WORKER, MARK, "tensorflow/__init__.py")
        assert (marks, modules > 0) == (0, True)

    def test_the_image_has_at_most_five_layers_with_content(self, worker_docker: Docker) -> None:
        """Each layer is ours or the base's; TensorFlow has its own, so the others travel fast."""
        history = worker_docker("history", "--no-trunc", "--format", "{{json .}}", WORKER)
        layers = [json.loads(line) for line in history.splitlines()]
        real = [layer for layer in layers if layer["Size"] != "0B"]
        assert len(real) <= 5
