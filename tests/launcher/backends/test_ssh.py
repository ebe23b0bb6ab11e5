"""The system's ssh gets tfcluster's options, and the user's configuration where it is harmless."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tfcluster.backends.relayed import STARTER, Unreached
from tfcluster.backends.ssh import ssh_nodes
from tfcluster.errors import NodeLostError
from tfcluster.plans.plan import NodePlan


def test_the_users_forwardings_do_not_apply_to_tasks_but_jump_hosts_do(tmp_path: Path) -> None:
    """Options of the command line take precedence over a configuration file (ssh_config(5))."""
    config = tmp_path / "config"
    config.write_text(
        "Host *\n  ForwardAgent yes\n  ForwardX11 yes\n  RemoteForward 9000 localhost:9000\n"
        "  ControlMaster auto\n  ControlPath ~/.ssh/%C\n  ProxyJump gate\n"
    )
    program, *options = ssh_nodes.SshNodes.argv(NodePlan("gpu1", "ssh", None, "/"))
    argv = [program, "-G", "-F", str(config), *options]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {"forwardagent no", "forwardx11 no", "clearallforwardings yes"} <= set(shown)
    assert {"controlmaster false", "proxyjump gate", "batchmode yes"} <= set(shown)


def test_words_before_the_python_reach_the_hosts_shell_quoted(tmp_path: Path) -> None:
    node = NodePlan("gpu1", "ssh", None, "/", wrap=("apptainer", "exec", "~/my tf.sif", "$X"))
    *_, command = ssh_nodes.SshNodes.argv(node)
    stub = tmp_path / "apptainer"
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "HOME": "/home/ann"}
    shown = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=env)
    python = ["python3", "-I", "-S", "-c", STARTER]
    assert shown.stdout.splitlines() == ["exec", "/home/ann/my tf.sif", "$X", *python]


def test_an_unreachable_wrapped_node_names_the_words_too() -> None:
    node = NodePlan("gpu1", "ssh", None, "/", wrap=("apptainer", "exec"))
    with pytest.raises(NodeLostError) as caught, ssh_nodes.SshNodes._naming(node):
        raise Unreached("sh: 1: exec: apptainer: not found", "apptainer: not found")
    assert "`apptainer exec python3 -V`" in caught.value.fix
