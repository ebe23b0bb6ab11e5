"""`supervision.on_end`: a command or a webhook gets the end of a run; a failure is a warning."""

from __future__ import annotations

import json
import math
import os
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.integration.commandline import wait_for
from tests.integration.live import is_alive
from tests.launcher.conftest import plan_of

from tfcluster.coordinator import launch, on_end
from tfcluster.rundir.events import RunFinished
from tfcluster.rundir.fold import first_state
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import this_process
from tfcluster.rundir.run_writer import RunWriter


def end(paths: RunPaths, target: str, secrets: tuple[str, ...] = ()) -> list[str]:
    """End a run that has this `on_end`, and return its warnings."""
    plan = replace(plan_of(), workdir=str(paths.root))
    plan = replace(plan, supervision=replace(plan.supervision, on_end=target))
    writer = RunWriter(first_state(plan, paths, this_process(), 1.0), paths, secrets=secrets)
    writer.record(RunFinished(status="failed", exit_code=1, reason="worker:1 was killed"))
    on_end.tell(writer, plan)
    writer.close()
    return writer.state.warnings


def test_a_command_gets_the_end_on_stdin_and_in_its_environment(paths: RunPaths) -> None:
    command = "cat > end.json; echo $TFCLUSTER_RUN $TFCLUSTER_STATUS"
    assert end(paths, command) == []
    assert json.loads((paths.root / "end.json").read_text()) == {
        "run": paths.run_id,
        "status": "failed",
        "exit_code": 1,
        "reason": "worker:1 was killed",
        "text": f"{paths.run_id}: failed: worker:1 was killed",
    }
    assert paths.on_end_log.read_text() == f"{paths.run_id} failed\n"
    assert json.loads(paths.state.read_text())["status"] == "failed", "before the command"


def test_the_signals_of_a_command_are_neither_blocked_nor_ignored(paths: RunPaths) -> None:
    assert end(paths, "kill -INT $$; echo lives") == [
        "supervision.on_end: the command was killed by SIGINT"
    ]
    assert not paths.on_end_log.exists(), "nothing was said"


def test_a_command_that_fails_or_hangs_is_a_warning(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    (failed,) = end(paths, "echo no such channel >&2; exit 7")
    assert failed.endswith("the command ended with exit code 7: no such channel")
    monkeypatch.setattr(on_end, "LIMIT_S", 5.0)
    (killed,) = end(paths, "sleep 300 & echo $!; wait")
    assert "the command was killed after" in killed
    child = int(paths.on_end_log.read_text())
    wait_for(lambda: not is_alive(child), what="the end of what the command has started")


def test_a_signal_ends_a_command_unless_it_repeats_the_last_one(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as after the end of the tasks
    monkeypatch.setattr(on_end, "LIMIT_S", 30.0)
    try:
        monkeypatch.setattr(launch, "_repeated_until", 0.0)
        stopped = end(paths, "echo $$; kill -TERM $PPID; sleep 300")
        assert stopped == ["supervision.on_end: it was ended by SIGTERM"]
        assert not is_alive(int(paths.on_end_log.read_text()))
        monkeypatch.setattr(launch, "_repeated_until", math.inf)
        assert end(paths, "kill -TERM $PPID; echo goes on") == []
    finally:
        signal.signal(signal.SIGTERM, before)


def test_secrets_in_what_a_command_says_are_masked(paths: RunPaths) -> None:
    said = end(paths, "echo it is s3cret-token; exit 1", secrets=("s3cret-token",))
    assert said == ["supervision.on_end: the command ended with exit code 1: it is ********"]
    assert paths.on_end_log.read_text() == "it is ********\n"


class _Webhook(BaseHTTPRequestHandler):
    got: list[bytes]

    def do_POST(self) -> None:
        self.got.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response({"/ok": 204, "/moved": 302}.get(self.path, 404))
        self.send_header("Location", "/ok")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def webhook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the URL of a server whose certificate is trusted."""
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=hook",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("no_proxy", "*")
    _Webhook.got = []
    with HTTPServer(("127.0.0.1", 0), _Webhook) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_webhook_gets_the_end_by_post(
    paths: RunPaths, webhook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert end(paths, f"{webhook}/ok") == []
    (body,) = _Webhook.got
    assert json.loads(body)["run"] == paths.run_id

    (moved,) = end(paths, f"{webhook}/moved")
    assert moved == "supervision.on_end: 127.0.0.1 answered 302 Found"
    (refused,) = end(paths, f"{webhook}/services/s3cret")
    assert refused == "supervision.on_end: 127.0.0.1 answered 404 Not Found"
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    (masked,) = end(paths, "https://chat.example.org/…")
    assert masked.endswith("export TFCLUSTER_ON_END=URL")
    (untrusted,) = end(paths, f"{webhook}/ok")
    assert "127.0.0.1: " in untrusted
    assert "certificate" in untrusted
