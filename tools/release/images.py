"""The images that the installed wheel builds with docker, and a command in a container of each."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.lab.docker_images import JOIN, WORKER, build_worker, cache, exclusive
from tests.lab.dockerd import Dockerd, LabError, existing_daemon, missing_tools
from tests.lab.way_out import way_out

from .archives import wheel
from .commands import Failed, NotRun, install, ticking

CHECKED = {
    WORKER: (("python3", "-c", "import tensorflow; print(tensorflow.__version__)"), "2."),
    JOIN: (("--version",), "tfcluster"),
}
"""Image → the arguments of its container, and a part of what that prints."""


def check_images() -> str:
    """Build the images of workers and coordinator with the wheel; run each. Raises Failed.

    The docker daemon is this machine's own, or one that the tests' lab starts as root. The base
    image is the lab's, so no registry is needed. Raises NotRun if there can be no daemon.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tfc-")))
        docker, outside = existing_daemon(), dict[str, str]()
        if docker is None:
            if missing := missing_tools():
                raise NotRun(f"no docker daemon answers; starting one needs {', '.join(missing)}")
            stack.enter_context(exclusive("daemon"))
            run_folder = Path(tempfile.mkdtemp(prefix="dockerd-", dir="/var/tmp"))
            daemon = stack.enter_context(Dockerd(run_folder, cache() / "docker"))
            docker = daemon.docker
            outside = {"https_proxy": stack.enter_context(way_out(daemon.pid))}
        tfcluster = install(folder / "env", sys.executable, str(wheel())) / "tfcluster"
        printed = []
        try:
            for name, (arguments, part) in CHECKED.items():
                with ticking(f"tfcluster build of {name}"):
                    build_worker(docker, name, outside=outside, tfcluster=[str(tfcluster)])
                output = docker("run", "--rm", "--network", "none", name, *arguments, timeout=300)
                if part not in output:
                    raise Failed(f"{name}: {part!r} is not in {output!r}")
                printed.append(output.splitlines()[-1])
        except LabError as error:
            raise Failed(str(error)) from None
    return ", ".join(printed)
