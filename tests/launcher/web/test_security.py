"""Only this user's browser, from our own pages, gets an answer from the server."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from tests.launcher.conftest import MakeRun

from tfcluster.errors import SetupError
from tfcluster.rundir.states import Status
from tfcluster.web.security import CSRF_HEADER, Keys
from tfcluster.web.serving import read_token

from .conftest import HOST, PORT, Open, TestClient

PAGES = ("/", "/compare", "/static/run.js", "/api/runs", "/api/stream", "/nowhere")
ORIGIN = f"http://{HOST}"


@pytest.mark.parametrize("path", PAGES)
def test_without_the_cookie_nothing_is_shown(open_client: Open, path: str) -> None:
    answer = open_client(has_cookie=False).get(path)

    assert answer.status_code == 401
    assert "tfcluster ui" in answer.text
    assert "set-cookie" not in answer.headers


def test_a_browser_gets_a_page_that_says_how_to_get_the_link_and_a_script_json(
    open_client: Open,
) -> None:
    client = open_client(has_cookie=False)
    browser = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}

    for path in ("/", "/runs/some-run", "/?token=old"):
        answer = client.get(path, headers=browser)
        assert answer.status_code == 401
        assert answer.headers["content-type"].startswith("text/html")
        assert "<h1>The token of the link is missing or old</h1>" in answer.text
        assert "<code>tfcluster ui --open</code>" in answer.text
    refused = client.get("/api/runs", headers=browser).json()
    assert refused["error"] == "The token of the link is missing or old"
    assert refused["fix"].startswith("open the link that `tfcluster ui` printed")


def test_the_token_is_exchanged_for_a_cookie_and_leaves_the_url(
    open_client: Open, keys: Keys
) -> None:
    client = open_client(has_cookie=False)

    answer = client.get(f"/?token={keys.token}", follow_redirects=False)

    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert answer.headers["set-cookie"] == (
        f"tfcluster-{PORT}={keys.session}; HttpOnly; Path=/; SameSite=strict"
    )
    assert client.get("/api/runs").status_code == 200


@pytest.mark.parametrize("token", ["", "x", "é", "\ud800".encode("utf-8", "replace").decode()])
def test_a_wrong_token_gets_no_cookie(open_client: Open, token: str) -> None:
    answer = open_client().get("/", params={"token": token}, follow_redirects=False)

    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


def test_the_session_is_no_token_and_the_token_no_session(open_client: Open, keys: Keys) -> None:
    client = open_client(has_cookie=False)
    client.cookies.set(f"tfcluster-{PORT}", keys.token)

    assert client.get("/api/runs").status_code == 401
    assert client.get(f"/?token={keys.session}").status_code == 401
    assert client.get(f"/api/runs?token={keys.token}").status_code == 401


def test_a_click_on_another_sites_page_leads_to_the_page_by_a_page_of_ours(
    open_client: Open, keys: Keys
) -> None:
    """A browser would not send a strict cookie with the request that follows a redirect."""
    client = open_client(has_cookie=False)

    answer = client.get(f"/?token={keys.token}", headers={"sec-fetch-site": "cross-site"})

    assert answer.status_code == 200
    assert 'http-equiv="refresh" content="0;url=/"' in answer.text
    assert keys.token not in answer.text
    assert "set-cookie" in answer.headers


def test_the_keys_have_256_bits_and_are_never_shown(keys: Keys) -> None:
    found = {keys.token, keys.session, keys.csrf}

    assert len(found) == 3
    assert all(len(key) == 43 for key in found)  # 32 bytes in base64
    assert not any(key in repr(keys) for key in found)


@pytest.mark.parametrize(
    "host",
    ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:80", f"127.0.0.2:{PORT}",
     f"0.0.0.0:{PORT}", f"[::1]:{PORT}", f"127.0.0.1.evil.example:{PORT}", f"{HOST}.", ""],
)  # fmt: skip
def test_another_host_name_is_refused_as_dns_may_have_been_rebound(
    client: TestClient, host: str
) -> None:
    answer = client.get("/api/runs", headers={"host": host})
    assert answer.status_code == 421
    assert f"only the names {HOST} and localhost:{PORT}" in answer.text
    assert client.get("/api/runs", headers=[("host", HOST), ("host", host)]).status_code == 421
    cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    ours = {"host": f"localhost:{PORT}", "cookie": cookie}
    assert client.get("/api/runs", headers=ours).status_code == 200
    assert client.delete("/api/runs").status_code == 405


FOREIGN = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},  # a page on another port of this machine
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": f"http://localhost:{PORT}"},  # the page has the other name
    {"origin": f"https://{HOST}"},
]


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize("path", ["/api/runs", "/api/stream", "/static/run.js"])
def test_another_page_gets_no_data(client: TestClient, path: str, headers: dict[str, str]) -> None:
    assert client.get(path, headers=headers).status_code == 403


@pytest.mark.parametrize("destination", ["iframe", "embed", "object", "image", "script", "empty"])
def test_a_page_is_not_shown_inside_another_page(client: TestClient, destination: str) -> None:
    assert client.get("/", headers={"sec-fetch-dest": destination}).status_code == 403


@pytest.mark.parametrize("headers", [{}, {"sec-fetch-site": "none"}, {"origin": ORIGIN}])
def test_our_own_page_and_the_user_get_data(client: TestClient, headers: dict[str, str]) -> None:
    assert client.get("/api/runs", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        *FOREIGN,
        {},
        {"origin": ORIGIN, CSRF_HEADER: ""},
        {"origin": ORIGIN, CSRF_HEADER: "x" * 43},
        {CSRF_HEADER: "right"},  # without an origin, which every browser sends
        {"origin": ORIGIN, CSRF_HEADER: "right", "sec-fetch-site": "same-site"},
    ],
)
def test_only_our_own_page_can_stop_a_run(
    client: TestClient, make_run: MakeRun, keys: Keys, headers: dict[str, str]
) -> None:
    url = f"/api/runs/{make_run().run_id}/stop"
    headers = {name: keys.csrf if text == "right" else text for name, text in headers.items()}

    assert client.post(url, json={"now": True}, headers=headers).status_code == 403

    answer = client.post(url, json={}, headers={"origin": ORIGIN, CSRF_HEADER: keys.csrf})
    why = "the run has already ended: succeeded"
    assert (answer.status_code, answer.json()) == (200, {"stopping": False, "why": why})


@pytest.mark.parametrize(
    ("status", "why"),
    [(Status.LOST, "is lost: its coordinator died"), (Status.TIMED_OUT, "ended: timed out")],
)
def test_a_run_that_cannot_be_stopped_says_why(
    client: TestClient, make_run: MakeRun, keys: Keys, status: Status, why: str
) -> None:
    url = f"/api/runs/{make_run(status=status).run_id}/stop"
    answer = client.post(url, json={}, headers={"origin": ORIGIN, CSRF_HEADER: keys.csrf})
    assert why in answer.json()["why"]


def test_read_only_stops_nothing(open_client: Open, make_run: MakeRun, keys: Keys) -> None:
    client, paths = open_client(read_only=True), make_run(status=Status.RUNNING)

    headers = {"origin": ORIGIN, CSRF_HEADER: keys.csrf}
    answer = client.post(f"/api/runs/{paths.run_id}/stop", json={}, headers=headers)

    assert answer.status_code == 403
    assert "--read-only" in answer.text


def test_every_answer_says_what_a_browser_may_do_with_it(
    open_client: Open, make_run: MakeRun
) -> None:
    client, run_id = open_client(), make_run().run_id
    answers = [client.get(path) for path in ("/", f"/runs/{run_id}", "/api/runs", "/nowhere")]
    answers += [open_client(has_cookie=False).get("/"), client.get("/", headers={"host": "x"})]
    for answer in answers:
        policy = re.sub(r"sha256-[\w+/]{43}=", "HASH", answer.headers["content-security-policy"])
        assert policy == (
            "default-src 'none'; script-src 'self'; style-src 'self' 'HASH'; img-src 'self' data:;"
            " connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self';"
            " frame-ancestors 'none'"
        )
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"


def test_a_large_request_is_refused(client: TestClient, make_run: MakeRun, keys: Keys) -> None:
    url = f"/api/runs/{make_run().run_id}/stop"
    headers = {"origin": ORIGIN, CSRF_HEADER: keys.csrf}

    def in_chunks() -> list[bytes]:
        return [b"x" * 1000] * 10

    for body in (b"x" * 5000, iter(in_chunks())):
        assert client.post(url, content=body, headers=headers).status_code == 413
    assert client.post(url, content=b"[" * 4000, headers=headers).status_code == 400
    assert client.get("/api/runs", headers={"content-length": "-1"}).status_code == 413


def test_a_scraper_with_its_own_token_reads_the_metrics_and_nothing_else(
    open_client: Open, make_run: MakeRun
) -> None:
    paths = make_run(status=Status.RUNNING)
    client = open_client(has_cookie=False, metrics="s" * 43)
    right = {"authorization": f"Bearer {'s' * 43}"}

    answer = client.get("/metrics", headers=right)

    assert (answer.status_code, answer.headers["content-type"]) == (
        200,
        "text/plain; version=0.0.4; charset=utf-8",
    )
    assert f'tfcluster_run_status{{run="{paths.run_id}",status="running"}} 1\n' in answer.text
    for headers in ({}, {"authorization": f"Bearer {'t' * 43}"}, {"authorization": "s" * 43}):
        assert client.get("/metrics", headers=headers).status_code == 401
    assert client.get("/metrics", headers={**right, "host": "evil.example"}).status_code == 421
    assert client.post("/metrics", headers=right).status_code == 401
    assert client.get("/api/runs", headers=right).status_code == 401
    assert client.get(f"/?token={'s' * 43}").status_code == 401


@pytest.mark.parametrize("header", ["Bearer ", "Bearer", "Bearer None", ""])
def test_without_a_token_for_scrapers_only_the_browser_reads_the_metrics(
    open_client: Open, header: str
) -> None:
    answer = open_client(has_cookie=False).get("/metrics", headers={"authorization": header})
    assert answer.status_code == 401
    assert open_client().get("/metrics").status_code == 200


def test_the_metrics_have_live_and_lost_runs_and_those_that_have_just_ended(
    client: TestClient, make_run: MakeRun
) -> None:
    now = time.time()
    lost = make_run("lost", status=Status.LOST, started=now - 9000)
    shown = {make_run("live", status=Status.RUNNING).run_id, lost.run_id}
    shown.add(make_run("ended", started=now - 300).run_id)
    make_run("old", started=now - 9000)

    found = client.get("/metrics").text

    assert {*re.findall(r'run_info\{run="([^"]+)"', found)} == shown


def test_the_token_of_a_scraper_is_made_once_for_this_user_only(tmp_path: Path) -> None:
    path = tmp_path / "token"
    made = read_token(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_token(path) == made
    path.write_text("short\n")
    with pytest.raises(SetupError, match="fewer than 16"):
        read_token(path)
    with pytest.raises(SetupError, match=r"(?i)no such"):
        read_token(tmp_path / "nowhere" / "token")
