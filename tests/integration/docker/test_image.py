"""The worker image has an unprivileged user and a TensorFlow, and no secret, compiler or cache."""

from __future__ import annotations

import json
import re

import pytest
from tests.lab.docker_images import MARK, ROOT, STUB, WORKERS
from tests.lab.dockerd import Docker

from tfcluster.backends.docker import worker_image

NOBODY = "31337:31338"
"""A user and a group that /etc/passwd does not know."""
TOOLS = ("gcc", "cc", "g++", "make", "ld", "as")
LOOK = """
import os
import tensorflow as tf, tensorflow_datasets, keras_tuner
print(os.getuid(), tf.__version__, tf.reduce_sum(tf.ones([2, 3])).numpy())
if not tf.__version__.startswith("2.15."):
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


def pinned(image: str) -> str:
    """Return the version of TensorFlow that the constraints pin."""
    options = WORKERS[image]
    asked = options[1] if options else None
    return worker_image.choose(asked, ROOT / "constraints").version


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


@pytest.fixture(scope="module", params=WORKERS)
def image(request: pytest.FixtureRequest) -> str:
    return str(request.param)


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

    def test_an_unknown_user_can_import_tensorflow(self, worker_docker: Docker, image: str) -> None:
        run = ("run", "--rm", "--user", NOBODY, "--network", "none", image, "python3", "-c", LOOK)
        uid, version, total = worker_docker(*run, timeout=200).split()
        assert (uid, total) == ("31337", "6.0")
        assert version == pinned(image)

    def test_its_user_is_not_root(self, worker_docker: Docker, image: str) -> None:
        assert worker_docker("run", "--rm", image, "id", "-u") == "1000"

    def test_neither_history_nor_settings_hold_a_secret(
        self, worker_docker: Docker, image: str
    ) -> None:
        shown = worker_docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", image)
        shown += worker_docker("image", "inspect", image)
        assert "pip-install" in shown
        assert not re.search(r"://|BEGIN CERTIFICATE|index|trusted-host", shown)
        for variable in ("https_proxy", "PIP_"):
            assert variable not in shown

    def test_no_secret_no_compiler_and_no_cache_is_in_its_files(
        self, worker_docker: Docker, image: str
    ) -> None:
        said = worker_docker("run", "--rm", "--user", "0", image, "python3", "-IS", "-c", FIND)
        files = said.splitlines()
        assert any("site-packages/tensorflow/" in path for path in files)
        assert not [path for path in files if path.startswith(("/run/secrets", "/opt/pip", "/mnt"))]
        assert not [path for path in files if re.search(r"/\.cache/|/pip/cache|pip\.conf$", path)]
        assert not [path for path in files if path.startswith(("/tmp/", "/root/", "/home/"))
                    and not re.search(r"/\.(bash|profile)\w*$", path)]  # fmt: skip
        assert not [path for path in files if "/site-packages/pip/" in path]
        found = worker_docker("run", "--rm", image, "sh", "-c", which(*TOOLS, "pip", "python3"))
        assert found == "/opt/tf/bin/python3"

    def test_the_configuration_of_pip_is_in_no_layer(
        self, worker_docker: Docker, image: str
    ) -> None:
        """No layer has it as a file, not even as one that a later layer removes."""
        marks, modules = occurrences(worker_docker, image, MARK, "tensorflow/__init__.py")
        assert (marks, modules > 0) == (0, True)

    def test_the_image_has_at_most_five_layers_with_content(
        self, worker_docker: Docker, image: str
    ) -> None:
        """Each layer is ours or the base's; TensorFlow has its own, so the others travel fast."""
        history = worker_docker("history", "--no-trunc", "--format", "{{json .}}", image)
        layers = [json.loads(line) for line in history.splitlines()]
        real = [layer for layer in layers if layer["Size"] != "0B"]
        assert len(real) <= 5
