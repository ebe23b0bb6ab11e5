"""`tfcluster ui` as a user starts it: its URL, live changes, its end, and who else may use it."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from .commandline import CommandLine, wait_for

HANG_S = 60.0
IDLE = 256
"""More connections than a process of the test may have open."""
TRAIN = """
import time
from tfcluster_workers import reporting
for step in range(1, 100_000):
    reporting.progress(step, metrics={"loss": 1 / step})
    print("step", step, flush=True)
    time.sleep(0.05)
"""


@dataclass(slots=True)
class Server:
    """A running `tfcluster ui`, and a browser that has opened its URL."""

    process: subprocess.Popen[bytes]
    url: str
    browser: httpx.Client

    @property
    def place(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def token(self) -> str:
        return urlsplit(self.url).query.removeprefix("token=")

    def get(self, path: str) -> Any:
        answer = self.browser.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    @contextlib.contextmanager
    def events(self, path: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """Open a stream; yield name and data of its events."""
        with self.browser.stream("GET", path) as answer:
            assert answer.status_code == 200
            yield _events(answer.iter_lines())

    def end(self, number: signal.Signals = signal.SIGINT) -> str:
        """Send a signal; return the rest of what the command printed."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=HANG_S)
        return (out + err).decode()


def _events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


@contextlib.contextmanager
def serving(shell: CommandLine, *options: str) -> Iterator[Server]:
    """Start `tfcluster ui` on any free port, and open its URL."""
    process = shell.start("ui", "--port", "0", *options)
    assert process.stdout is not None
    url = process.stdout.readline().decode().strip()
    with httpx.Client(base_url=url.partition("?")[0], timeout=HANG_S, trust_env=False) as browser:
        assert browser.get(url).status_code == 303
        yield Server(process, url, browser)


def start_run(shell: CommandLine) -> str:
    shell.script("train.py", TRAIN)
    done = shell.run("run", "-n", "2", "-d", "train.py")
    assert done.code == 0, done.err
    return done.out.decode().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_is_watched_live_and_ctrl_c_ends_open_streams(
    shell: CommandLine, number: signal.Signals
) -> None:
    run_id = start_run(shell)
    with serving(shell) as server:
        assert [row["run"] for row in server.get("/api/runs")["runs"]] == [run_id]
        with (
            server.events(f"/api/runs/{run_id}/stream") as events,
            server.events("/api/stream") as listed,
        ):
            assert next(events)[0] == "state"
            batches = [data for name, data in islice(events, 12) if name == "progress"]
            steps = [e["step"] for batch in batches for e in batch if e.get("task") == "worker:0"]
            assert steps
            assert steps == sorted(set(steps))
            assert next(listed)[0] == "runs"
            newest = server.get(f"/api/runs/{run_id}/logs?task=worker:1")["lines"]
            assert newest[-1]["text"].startswith("step ")
            printed = server.end(number)

    assert server.process.returncode == (0 if number is signal.SIGINT else -signal.SIGTERM)
    assert server.token not in printed
    assert "Traceback" not in printed
    assert "error" not in printed.lower()
    assert shell.run("down").code == 0


def test_the_port_is_the_next_free_one_unless_one_was_asked_for(shell: CommandLine) -> None:
    processes = [shell.start("ui") for _ in range(2)]
    urls = [process.stdout.readline().decode() for process in processes if process.stdout]
    ports = [urlsplit(url).port or 0 for url in urls]
    assert len(set(ports)) == 2
    assert min(ports) >= 6020

    refused = shell.run("ui", "--port", str(ports[0]))

    assert refused.code == 3
    assert f"cannot listen on 127.0.0.1:{ports[0]}" in refused.err
    assert "leave out --port" in refused.err
    for process in processes:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=HANG_S)


def test_only_the_loopback_interface_listens(shell: CommandLine) -> None:
    with serving(shell) as server:
        port = urlsplit(server.url).port

        found = [c for c in psutil.net_connections("inet") if c.pid == server.process.pid]

        listening = [tuple(c.laddr) for c in found if c.status == psutil.CONN_LISTEN]
        assert listening == [("127.0.0.1", port)]
        for family, address in ((socket.AF_INET, "127.0.0.2"), (socket.AF_INET6, "::1")):
            with socket.socket(family) as other, pytest.raises(OSError, match=r"refused|assign"):
                other.connect((address, port))
        server.end()


@pytest.mark.pinned
def test_the_browser_is_opened_without_the_token_on_its_command_line(shell: CommandLine) -> None:
    from tests.browser import browser  # Selenium

    record = shell.root / "opened"
    opener = shell.script(
        "browser.py",
        f"import sys; open({str(record)!r}, 'w').write(sys.argv[1] + '\\n')",
    )
    shell.env["BROWSER"] = f"{sys.executable} {opener} %s"
    with serving(shell, "--open") as server:
        wait_for(lambda: record.exists() and record.read_text().endswith("\n"))

        opened = record.read_text().strip()
        path = Path(opened.removeprefix("file://"))

        assert opened.startswith("file://")
        assert server.token not in opened
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert f'content="0;url={server.url}"' in path.read_text()
        with browser() as chromium:
            chromium.open(opened)
            wait_for(lambda: chromium.driver.current_url == f"http://{server.place}/")
            wait_for(lambda: "No runs yet" in chromium.driver.page_source)
            assert [line for line in chromium.console if "401" in line or "403" in line] == []
        assert "if the browser shows an error, open the URL above" in server.end()
        assert not path.exists()


ATTACKS = """
const [base, run] = arguments;
const done = arguments[arguments.length - 1];
const stop = `${base}api/runs/${run}/stop`;
const read = (url, more) => fetch(url, {credentials: "include", ...more}).then((a) => a.text());
const attempts = [
  read(`${base}api/runs`),
  read(`${base}api/runs`, {mode: "no-cors"}),
  read(`${base}runs/${run}`, {mode: "no-cors"}),
  read(stop, {method: "POST", body: "{}"}),
  read(stop, {method: "POST", body: "{}", mode: "no-cors"}),
  read(stop, {method: "POST", body: "{}", headers: {"X-CSRF-Token": "guess"}}),
  new Promise((resolve) => {
    const source = new EventSource(`${base}api/stream`, {withCredentials: true});
    source.onmessage = () => resolve("a message");
    source.onerror = () => resolve("");
  }),
  new Promise((resolve) => {
    const script = Object.assign(document.createElement("script"), {src: `${base}static/run.js`});
    script.onload = () => resolve("a script");
    script.onerror = () => resolve("");
    document.body.append(script);
  }),
];
Promise.allSettled(attempts).then((all) => done(all.map((one) => one.value ?? "")));
"""
FORM = """
const form = Object.assign(document.createElement("form"), {method: "post", enctype: "text/plain"});
form.action = `${arguments[0]}api/runs/${arguments[1]}/stop`;
document.body.append(form);
form.submit();
"""


@pytest.mark.pinned
def test_a_page_on_another_port_reads_nothing_and_stops_nothing(shell: CommandLine) -> None:
    """Ports of 127.0.0.1 are one site: the browser sends the cookie with that page's requests."""
    from tests.browser import browser  # Selenium

    run_id = start_run(shell)
    (shell.root / "evil").mkdir()
    (shell.root / "evil" / "index.html").write_text("<!doctype html><title>evil</title><body>")
    handler = partial(SimpleHTTPRequestHandler, directory=str(shell.root / "evil"))
    with serving(shell) as server, ThreadingHTTPServer(("127.0.0.1", 0), handler) as evil:
        threading.Thread(target=evil.serve_forever, daemon=True).start()
        with browser() as chromium:
            chromium.open(server.url)
            wait_for(lambda: run_id in chromium.driver.page_source)
            chromium.open(f"http://127.0.0.1:{evil.server_port}/")
            base = f"http://{server.place}/"
            assert chromium.driver.execute_async_script(ATTACKS, base, run_id) == [""] * 8
            chromium.script(FORM, base, run_id)
            wait_for(lambda: "another page" in chromium.driver.page_source)
        evil.shutdown()
        assert server.get(f"/api/runs/{run_id}")["snapshot"]["status"] == "running"
        server.end()
    assert shell.run("down", "--now").code == 0


def test_without_its_packages_the_command_names_the_line_that_installs_them(
    shell: CommandLine,
) -> None:
    for name in ("starlette", "uvicorn"):
        code = (
            f"import sys; sys.modules[{name!r}] = None; sys.argv[1:] = ['ui'];"
            " from tfcluster.cli.main import main; main()"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], env=shell.env, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 3
        assert "pip install 'tfcluster[ui]'" in done.stderr
        assert "Traceback" not in done.stderr


def test_idle_connections_of_others_neither_exhaust_the_page_nor_print(
    shell: CommandLine,
) -> None:
    """Any user of the machine can connect, and once held all connections of the process."""
    with serving(shell) as server, contextlib.ExitStack() as held:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (IDLE, IDLE))
        host, _, port = server.place.partition(":")
        for _ in range(IDLE):
            held.enter_context(socket.create_connection((host, int(port)), HANG_S))
        with socket.create_connection((host, int(port)), HANG_S) as stranger:
            stranger.sendall(b"no request at all\r\n\r\n")
            assert stranger.recv(4096).startswith(b"HTTP/1.1 400")

        with httpx.Client(base_url=f"http://{server.place}", trust_env=False) as new:
            assert new.get(server.url).status_code == 303
            assert new.get("/api/runs").json() == {"runs": []}
        held.close()
        assert server.end().split("; ")[1:] == ["Ctrl-C ends the page, the runs continue\n\n"]
