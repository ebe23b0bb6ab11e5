"""The system's ssh gets tfcluster's options, and the user's configuration where it is harmless."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tfcluster.backends.ssh import ssh_nodes
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
