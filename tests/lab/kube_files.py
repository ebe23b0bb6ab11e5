"""The configuration files of the lab's Kubernetes: shortened timers, two users, small nodes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .machines import NETWORK

CONTROL = 200
"""The number of the machine with the API server, the scheduler and the name server."""
API = f"{NETWORK}.{CONTROL}"
PODS = "10.244"
SERVICES = "10.96.0.0/16"
PRIORITIES = {"low": -100, "high": 1000}
"""The priority classes of the cluster; pods have 0 without one."""
SETTINGS = {"TTLAfterFinished": "true"}
SYSTEM_USERS = {
    "admin": "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
    "system:kube-proxy": "",
    "dns": "system:masters",
}


def token(user: str) -> str:
    """Return the token of a system user or node."""
    return f"token-{user.rpartition(':')[2]}"


def tokens(nodes: Sequence[str]) -> str:
    """Return the API server's file of tokens."""
    rows = [f'{token(user)},{user},{user},"{group}"' for user, group in SYSTEM_USERS.items()]
    rows += [f'{token(node)},system:node:{node},{node},"system:nodes"' for node in nodes]
    return "\n".join([*rows, ""])


def kubeconfig(server: str, bearer: str, authority: Path, *, namespace: str = "default") -> str:
    """Return a kubeconfig, as JSON, which is YAML too."""
    cluster = {"server": server, "certificate-authority": str(authority)}
    context = {"cluster": "lab", "user": "user", "namespace": namespace}
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": cluster}],
        "users": [{"name": "user", "user": {"token": bearer}}],
        "contexts": [{"name": "lab", "context": context}],
        "current-context": "lab",
    }
    return json.dumps(config, indent=1)


def api_server(folder: Path, grace_s: int) -> list[str]:
    """Return the API server's command line; `grace_s`: for pods of nodes that are not ready."""
    pki = folder / "pki"
    options: Mapping[str, object] = {
        "etcd-servers": "http://127.0.0.1:2379",
        "service-cluster-ip-range": SERVICES,
        "bind-address": "0.0.0.0",
        "secure-port": 6443,
        "insecure-port": 0,
        "advertise-address": API,
        "kubelet-preferred-address-types": "InternalIP",
        "tls-cert-file": pki / "api.crt",
        "tls-private-key-file": pki / "api.key",
        "token-auth-file": folder / "tokens",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "allow-privileged": "true",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-signing-key-file": pki / "accounts.key",
        "service-account-key-file": pki / "accounts.key",
        "default-not-ready-toleration-seconds": grace_s,
        "default-unreachable-toleration-seconds": grace_s,
        "feature-gates": _gates(),
    }
    return ["kube-apiserver", *_words(options)]


def controller_manager(folder: Path, silence_s: int) -> list[str]:
    options: Mapping[str, object] = {
        "kubeconfig": folder / "conf" / "kube-controller-manager",
        "use-service-account-credentials": "true",
        "service-account-private-key-file": folder / "pki" / "accounts.key",
        "root-ca-file": folder / "pki" / "api.crt",
        "leader-elect": "false",
        "bind-address": "127.0.0.1",
        "node-monitor-period": "2s",
        "node-monitor-grace-period": f"{silence_s}s",
        "controllers": "*,-cloud-node-lifecycle",
        "feature-gates": _gates(),
    }
    return ["kube-controller-manager", *_words(options)]


def scheduler(folder: Path) -> list[str]:
    options: Mapping[str, object] = {
        "kubeconfig": folder / "conf" / "kube-scheduler",
        "leader-elect": "false",
        "bind-address": "127.0.0.1",
    }
    return ["kube-scheduler", *_words(options)]


def etcd(folder: Path) -> list[str]:
    here = "http://127.0.0.1:2379"
    options = {
        "data-dir": folder / "etcd",
        "listen-client-urls": here,
        # Requests would time out on a disk that others keep busy, and nothing here loses power.
        "unsafe-no-fsync": "true",
    }
    peers = {"advertise-client-urls": here, "listen-peer-urls": "http://127.0.0.1:2380"}
    return ["etcd", *_words({**options, **peers})]


def proxy(folder: Path, name: str) -> list[str]:
    options: Mapping[str, object] = {
        "kubeconfig": folder / "conf" / "kube-proxy",
        "hostname-override": name,
        "proxy-mode": "iptables",
        "cluster-cidr": f"{PODS}.0.0/16",
        "conntrack-max-per-core": 0,
        "metrics-bind-address": "127.0.0.1",
    }
    return ["kube-proxy", *_words(options)]


def kubelet(folder: Path, name: str, address: str) -> list[str]:
    node = folder / name
    options: Mapping[str, object] = {
        "config": node / "kubelet.yaml",
        "kubeconfig": folder / "conf" / name,
        "hostname-override": name,
        "node-ip": address,
        "container-runtime": "remote",
        "container-runtime-endpoint": "unix:///run/containerd/containerd.sock",
        "root-dir": node / "kubelet",
        "cert-dir": node / "pki",
        "node-labels": f"lab/node={name}",
    }
    return ["kubelet", *_words(options)]


def kubelet_config(folder: Path, address: str, group: str, cpus: int) -> str:
    """Return the kubelet's configuration, of a node that gives `cpus` CPUs to pods."""
    reserved = max(0, (os.cpu_count() or cpus) - cpus)
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "address": address,
            "healthzBindAddress": "127.0.0.1",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{group}",
            "cgroupsPerQOS": True,
            "enforceNodeAllocatable": ["pods"],
            "failSwapOn": False,
            "clusterDNS": [API],
            "clusterDomain": "cluster.local",
            "resolvConf": str(folder / "resolv.conf"),
            "nodeStatusUpdateFrequency": "2s",
            "syncFrequency": "5s",
            # Kubernetes 1.27's defaults: with those of 1.20, 5 and 10, the mounts of two Secrets
            # hold up a pod for a second, or not, as the requests before them fall.
            "kubeAPIQPS": 50,
            "kubeAPIBurst": 100,
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi"},
            "systemReserved": {"cpu": str(reserved)} if reserved else {},
            "maxPods": 100,
        }
    )


def containerd_config(node: Path, pause: str) -> str:
    cri = '[plugins."io.containerd.grpc.v1.cri"'
    return f"""
version = 2
root = "{node}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt"]
{cri}]
  sandbox_image = "{pause}"
  stream_server_address = "127.0.0.1"
  restrict_oom_score_adj = true
{cri}.cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "{node}/cni"
{cri}.containerd]
  snapshotter = "overlayfs"
"""


def cni_config(node: Path, number: int) -> str:
    """Return the network of a node's pods: a bridge, which does not enforce NetworkPolicy."""
    ranges = [[{"subnet": f"{PODS}.{number}.0/24"}]]
    ipam = {"type": "host-local", "dataDir": str(node / "ipam"), "ranges": ranges}
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {**ipam, "routes": [{"dst": "0.0.0.0/0"}]},
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, ports]})


def first_objects() -> list[dict[str, Any]]:
    """Return what a cluster has before its users come."""
    group = "rbac.authorization.k8s.io"
    proxies: dict[str, Any] = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "proxies"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "system:node-proxier"},
        "subjects": [{"kind": "User", "name": "system:kube-proxy", "apiGroup": group}],
    }
    priorities = [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
        for name, value in PRIORITIES.items()
    ]
    return [proxies, *priorities]


def _gates() -> str:
    return ",".join(f"{name}={value}" for name, value in SETTINGS.items())


def _words(options: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items()]
