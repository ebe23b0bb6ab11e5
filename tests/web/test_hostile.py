"""Names, metrics and messages of a run are only text on its pages, whatever they contain."""

from __future__ import annotations

import json
import time

import pytest

from tfcluster.rundir import events as ev

from .site import Page, Site
from .synthetic import new_run

pytestmark = pytest.mark.slow

MARKUP = "<script>window.hit=1</script><img src=x onerror=window.hit=1>\"'`</title></option>"
CONTROLS = "\x1b]0;owned\x07\x1b[31m\u202ename\x00"
NAMES = {
    "markup": MARKUP,
    "controls": CONTROLS,
    "a URL": "javascript:window.hit=1",
    "a prototype": "__proto__",
    "a template": "{{ config }}{% include 'x' %}",
    "very long": "long-" * 2000,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_only_text_on_every_page(page: Page, site: Site, name: str) -> None:
    text = NAMES[name]
    runs = [new_run(site.home, text, started=time.time() - 10) for _ in range(2)]
    for run in runs:
        run.start()
        run.train(2, 40, total=40)
        run.record(ev.Warned(message=text))
        odd = {text[:100]: 1e308, "constructor": -0.0, "loss": float("inf"), "hasOwnProperty": 1}
        run.record(ev.Progress(task="worker:0", attempt=1, step=41, metrics=odd), after_s=1)
        run.fail(text)
    ids = [run.paths.run_id for run in runs]
    for path in ("/", f"/runs/{ids[0]}", f"/compare?runs={','.join(ids)}"):
        page.open(path)
        page.wait("document.querySelector('#runs tbody tr, #charts figure, #timeline li')")
        page.assert_fits()
        assert page.script("return window.hit") is None, path
        assert (
            page.script("return document.querySelectorAll('main :is(script, img, style)').length")
            == 0
        )
        links = page.script("return [...document.links].map((one) => one.protocol)")
        assert set(links) == {"http:"}
        assert page.script("return document.title") != "owned"
    shown = page.texts("#legend li")[0]
    assert not {"\x1b", "\u202e", "\0"} & set(shown)


def test_a_damaged_run_is_listed_and_says_why(page: Page, site: Site) -> None:
    run = new_run(site.home, "broken-state", started=time.time())
    run.writer.close()
    page.open("/")
    page.wait_for_text("#runs", "broken-state")
    run.paths.state.write_text('{"run": "<b>", "tasks": 7')
    page.wait_for_text("#runs", "damaged")
    page.open(f"/runs/{run.paths.run_id}")
    page.wait_for_text("#status", "damaged")
    page.wait_for_text("#cause", "state.json cannot be read")
    page.wait_for_text("#log-note", "cannot be read")
    page.browser.open("about:blank")  # by then the browser has reported the 409
    page.browser.console.clear()


def test_a_run_whose_folder_has_a_hostile_name_is_listed_and_opened(page: Page, site: Site) -> None:
    run = new_run(site.home, "plain", started=time.time())
    run.start()
    run.writer.close()
    odd = 'x" onmouseover="window.hit=1" <b>%2e%2e&amp;#?'
    moved = run.paths.root.rename(run.paths.root.with_name(odd))
    state = json.loads((moved / "state.json").read_text())
    (moved / "state.json").write_text(json.dumps(state | {"run": odd}))
    page.open("/")
    page.wait_for_text("#runs", "onmouseover")
    rows = "[...document.querySelectorAll('#runs tbody tr')]"
    page.script(f"{rows}.find((row) => row.innerText.includes('mouse')).querySelector('a').click()")
    page.wait_for_text("#status", "running")
    assert odd in page.text("#facts")
    assert page.script("return window.hit") is None
