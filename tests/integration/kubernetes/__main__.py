"""Start a Kubernetes cluster to try things by hand; it ends with Ctrl-C, SIGTERM or its owner.

python -m tests.integration.kubernetes up [--owner PID] [--nodes N]
python -m tests.integration.kubernetes down PID

`up` prints one line of JSON when the cluster is ready: the path of a kubeconfig, of kubectl, the
id of the process to end, and an image with a `pod_template` for it. As root.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal

from tests.lab.kube import KubeCluster, LabError, missing_tools
from tests.lab.kube_binaries import programs
from tests.lab.kube_images import HOST, host_template


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.integration.kubernetes")
    actions = parser.add_subparsers(dest="action", required=True)
    up = actions.add_parser("up")
    up.add_argument("--owner", type=int, help="end with this process")
    up.add_argument("--nodes", type=int, default=2)
    actions.add_parser("down").add_argument("pid", type=int)
    options = parser.parse_args()
    if options.action == "down":
        os.kill(options.pid, signal.SIGTERM)
    elif missing := missing_tools():
        raise LabError(f"needs {', '.join(missing)}: see .ci/packages")
    else:
        stay_up(options.nodes, options.owner)


def stay_up(nodes: int, owner: int | None) -> None:
    """Hold a cluster until a signal comes or the owner ends."""
    owners = [] if owner is None else [os.pidfd_open(owner)]  # it tells of an end that nobody reaps
    ends = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # not while it is being made or removed
    # A busy machine is no lost node: faults are for the clusters of the tests that make them.
    with KubeCluster(nodes=nodes, silence_s=40, grace_s=300) as cluster:
        about = {
            "KUBECONFIG": str(cluster.config),
            "kubectl": str(programs() / "kubectl"),
            "pid": os.getpid(),
            "folder": str(cluster.folder),
            "image": HOST,
            "pod_template": host_template(),
        }
        print(json.dumps(about), flush=True)
        while signal.sigtimedwait(ends, 0.2) is None:
            if select.select(owners, [], [], 0)[0]:
                break


if __name__ == "__main__":
    main()
