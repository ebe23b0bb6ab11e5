"""What an API server answers, over real HTTP: some is asked again, some is refused in words."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import urllib3
from tests.launcher.backends.kubernetes.conftest import write_one

from tfcluster.backends.kubernetes.kube_client import (
    KubeCluster,
    KubeError,
    KubeSilentError,
    reach,
    reach_again,
)
from tfcluster.errors import SetupError

Answer = tuple[int, Any]
CURRENT = SimpleNamespace(context=None, namespace=None)


class Server(ThreadingHTTPServer):
    """Gives its answers in turn, and keeps the last one."""

    answers: list[Answer]
    asked: int


class Handler(BaseHTTPRequestHandler):
    server: Server

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked += 1
        answers = self.server.answers
        status, body = answers.pop(0) if len(answers) > 1 else answers[0]
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = do_DELETE = _answer

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    made.asked = 0
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def write(path: Path, server: Server, *, current: str | None = "b") -> None:
    contexts = [
        {"name": name, "context": {"cluster": "lab", "user": "me", "namespace": f"team-{name}"}}
        for name in ("a", "b")
    ]
    config = {
        "clusters": [
            {"name": "lab", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        ],
        "users": [{"name": "me", "user": {}}],
        "contexts": contexts,
    }
    path.write_text(json.dumps(config | ({"current-context": current} if current else {})))


def cluster(path: Path, server: Server, *answers: Answer, patience_s: float = 5.0) -> KubeCluster:
    server.answers = list(answers)
    write(path, server)
    return reach(CURRENT, patience_s=patience_s)


def status(code: int, message: str) -> Answer:
    return code, {"kind": "Status", "message": message}


def test_a_webhook_that_does_not_answer_is_a_refusal_that_names_it(
    server: Server, kubeconfig: Path
) -> None:
    message = 'Internal error occurred: failed calling webhook "v.k8s.io": timeout'
    place = cluster(kubeconfig, server, status(500, message))
    with pytest.raises(KubeError, match="failed calling webhook") as refused:
        place.create("pods", {})
    assert (type(refused.value), server.asked) == (KubeError, 1)


def test_a_quota_that_changed_meanwhile_is_asked_again(server: Server, kubeconfig: Path) -> None:
    conflict = status(409, "Operation cannot be fulfilled: the object has been modified; try again")
    place = cluster(kubeconfig, server, conflict, (201, {"metadata": {"name": "p"}}))
    assert place.create("pods", {})["metadata"]["name"] == "p"


def test_a_change_of_one_version_is_not_repeated_on_the_next(
    server: Server, kubeconfig: Path
) -> None:
    conflict = status(409, "Operation cannot be fulfilled: the object has been modified; try again")
    place = cluster(kubeconfig, server, conflict)
    with pytest.raises(KubeError) as refused:
        place.patch("batch/jobs/j", {"metadata": {"resourceVersion": "7"}})
    assert (refused.value.is_conflict, server.asked) == (True, 1)


@pytest.mark.parametrize(
    ("ask", "denied", "right"),
    [
        (lambda place: place.list("batch/jobs"), "list batch/jobs", "list jobs"),
        (lambda place: place.find("pods/p"), "get pods/p", "get pods"),
        (lambda place: place.get("/version"), "get /version", "get /version"),
        (
            lambda place: place.create("batch/jobs", {"metadata": {"name": "j"}}),
            "create batch/jobs/j",
            "create jobs",
        ),
    ],
)
def test_a_missing_right_is_named_as_kubectl_names_it(
    server: Server,
    kubeconfig: Path,
    ask: Callable[[KubeCluster], object],
    denied: str,
    right: str,
) -> None:
    why = 'forbidden: User "me" cannot do it'
    place = cluster(kubeconfig, server, status(403, why))
    with pytest.raises(KubeError) as refused:
        ask(place)
    assert refused.value.message == f"this user may not {denied} in the namespace team-b: {why}"
    assert refused.value.fix.startswith(f"`kubectl auth can-i {right} -n team-b` checks it; a Role")


def test_an_object_that_exists_is_a_conflict(server: Server, kubeconfig: Path) -> None:
    place = cluster(kubeconfig, server, status(409, 'pods "p" already exists'))
    with pytest.raises(KubeError) as refused:
        place.create("pods", {})
    assert refused.value.is_conflict
    assert server.asked == 1


@pytest.fixture
def closing() -> Iterator[tuple[int, list[int]]]:
    """The port of a load balancer without servers, and a list that grows by each connection."""
    came = list[int]()

    def serve() -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                listener.accept()[0].close()
                came.append(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1], came
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize("method", ["get", "create"])
def test_an_early_end_of_tls_is_silence_and_the_request_is_repeated(
    closing: tuple[int, list[int]], kubeconfig: Path, method: str
) -> None:
    port, came = closing
    write_one(kubeconfig, {"token": "t"}, server=f"https://127.0.0.1:{port}")
    place = reach(CURRENT, patience_s=2)
    with pytest.raises(KubeSilentError, match="does not answer"):
        place.get("pods/p") if method == "get" else place.create("pods", {})
    assert len(came) > 1


def test_a_failed_verification_is_a_matter_of_trust() -> None:
    def fail(*request: object, **options: object) -> None:
        raise urllib3.exceptions.SSLError(ssl.SSLCertVerificationError("self-signed certificate"))

    access: Any = SimpleNamespace(
        host="https://k", headers=dict, pool=SimpleNamespace(request=fail)
    )
    with pytest.raises(KubeError, match=r"no trusted connection .*self-signed") as refused:
        KubeCluster(access, namespace="n", patience_s=60).get("pods/p")
    assert type(refused.value) is KubeError


def test_an_answer_that_is_no_json_is_told(server: Server, kubeconfig: Path) -> None:
    place = cluster(kubeconfig, server, (200, b"<html>Sign in</html>"))
    with pytest.raises(KubeError, match="Sign in"):
        place.get("pods/p")


def test_a_context_can_be_chosen_where_none_is_current(server: Server, kubeconfig: Path) -> None:
    write(kubeconfig, server, current=None)
    place = reach(SimpleNamespace(context="a", namespace=None))
    assert place.namespace == "team-a"


def test_a_run_is_asked_about_with_the_context_that_started_it(
    server: Server, kubeconfig: Path
) -> None:
    write(kubeconfig, server, current="b")
    name = reach(SimpleNamespace(context="a", namespace="vision")).name
    assert name == f"http://127.0.0.1:{server.server_port}/vision (context a)"
    again = reach_again(name, patience_s=1)
    assert (again.access.context, again.namespace) == ("a", "vision")
    gone = name.replace("context a", "context that was removed")
    assert reach_again(gone, patience_s=1).access.context in ("a", "b")
    with pytest.raises(SetupError, match="no context of the kubeconfig leads to https://other:1"):
        reach_again("https://other:1/vision (context a)", patience_s=1)


@pytest.mark.parametrize("text", ["", "- 1", "a: [", "contexts: {}", "current-context: a"])
def test_a_damaged_kubeconfig_is_an_error_of_the_user(kubeconfig: Path, text: str) -> None:
    kubeconfig.write_text(text)
    with pytest.raises(SetupError, match="no Kubernetes cluster to use"):
        reach(CURRENT)
    with pytest.raises(SetupError):
        reach_again("https://lab:1/x", patience_s=1)


def test_a_kubeconfig_is_read_once_until_it_changes(kubeconfig: Path) -> None:
    write_one(kubeconfig, {"token": "secret"})
    first, again = reach(CURRENT), reach(CURRENT)
    assert (first.name, first.access.headers()) == (
        "https://lab:6443/n (context c)",
        {"authorization": "Bearer secret"},
    )
    assert again.access is first.access  # with its connections
    write_one(kubeconfig, {"token": "other!"})
    assert reach(CURRENT).access.headers() == {"authorization": "Bearer other!"}


def test_a_forked_child_has_connections_of_its_own(kubeconfig: Path) -> None:
    write_one(kubeconfig, {"token": "secret"})
    first = reach(CURRENT).access
    if (pid := os.fork()) == 0:
        os._exit(0 if reach(CURRENT).access is not first else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert reach(CURRENT).access is first


def test_a_program_of_the_kubeconfig_signs_in(kubeconfig: Path) -> None:
    credential: dict[str, Any] = {"apiVersion": "client.authentication.k8s.io/v1"}
    credential |= {"kind": "ExecCredential", "status": {"token": "made"}}
    program = {"command": "echo", "args": [json.dumps(credential)], "interactiveMode": "Never"}
    write_one(kubeconfig, {"exec": {"apiVersion": credential["apiVersion"], **program}})
    assert reach(CURRENT).access.headers() == {"authorization": "Bearer made"}


def test_several_kubeconfigs_are_one(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_one(kubeconfig, {"token": "secret"})
    other = kubeconfig.with_name("other")
    other.write_text('{"contexts": []}')
    monkeypatch.setenv("KUBECONFIG", f"{other}:{kubeconfig}")
    assert reach(CURRENT).host == "https://lab:6443"
