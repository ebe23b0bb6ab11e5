"""The pages of runs, one run and comparison in Chromium, over synthetic runs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys
from tests.browser import Browser
from tests.integration.commandline import CommandLine, wait_for
from tests.integration.live import free_ports

from tfcluster.rundir import events as ev

from .site import CONTRAST, NAMES, Page, Site, breakable, serve
from .synthetic import new_run, write_many, write_restarted, write_wide

pytestmark = pytest.mark.slow

RUNS = 200
EMPTY_LABELS = """
return [...document.querySelectorAll("[data-label], dt")]
  .filter((node) => node.checkVisibility())
  .filter((node) => !(node.tagName === "DT" ? node.nextElementSibling : node).textContent)
  .map((node) => node.outerHTML);
"""


@pytest.fixture(scope="module")
def home(site: Site) -> Path:
    """A home with 200 ended runs, one that was restarted, and a live one of 64 tasks."""
    write_many(site.home, RUNS, now=time.time() - 3600)
    write_restarted(site.home, "restarted", started=time.time() - 900)
    write_wide(site.home, "wide", started=time.time() - 60)
    return site.home


def run_id(home: Path, name: str) -> str:
    return next((home / "runs").glob(f"{name}-2*")).name


def shown_rows(page: Page) -> list[str]:
    return page.texts("#runs tbody th a")


def open_list(page: Page) -> None:
    page.open("/")
    page.wait(f"document.querySelectorAll('#runs tbody tr').length > {RUNS}")


def test_200_runs_are_shown_at_once_newest_first(page: Page, home: Path) -> None:
    open_list(page)
    assert page.text("#counts") == f"{RUNS + 2} runs, 1 live"
    assert shown_rows(page)[:4] == ["wide", "restarted", "sweep-000", "sweep-001"]
    assert "input-bound: worker:63 waits" in page.text("#runs tbody tr")


def test_runs_are_filtered_by_text_and_status(page: Page, home: Path) -> None:
    open_list(page)
    page.fill("#text", "LEARNING rate sweep-0")
    page.wait("document.querySelectorAll('#runs tbody tr').length < 20")
    assert shown_rows(page)[:2] == ["sweep-003", "sweep-010"]
    page.fill("#text", "")
    page.fill("#status", "live")
    page.wait("document.querySelectorAll('#runs tbody tr').length === 1")
    page.fill("#text", "no such run")
    page.wait_for_text("#empty", "No run matches")


def test_runs_are_sorted_by_a_column_with_the_keyboard(page: Page, home: Path) -> None:
    open_list(page)
    page.script("document.querySelector('th[data-sort=loss] button').focus()")
    page.type(Keys.ENTER)
    page.wait("document.querySelector('th[data-sort=loss]').ariaSort === 'ascending'")
    page.wait("document.querySelector('#runs tbody th a').innerText === 'sweep-016'")
    page.type(Keys.SPACE)
    page.wait("document.querySelector('th[data-sort=loss]').ariaSort === 'descending'")


def test_a_run_appears_changes_and_goes_without_a_reload(page: Page, home: Path) -> None:
    open_list(page)
    run = new_run(home, "fresh", started=time.time())
    run.start()
    run.writer.save()
    page.wait("document.querySelector('#runs tbody th a').innerText === 'fresh'")
    run.train(2, 20, total=40)
    run.writer.save()
    page.wait_for_text("#runs tbody tr", "step 20/40")
    run.train(22, 40, total=40)
    run.end()
    page.wait_for_text("#runs tbody tr", "succeeded")
    for path in sorted(run.paths.root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    run.paths.root.rmdir()
    page.wait("document.querySelector('#runs tbody th a').innerText !== 'fresh'")


def test_selected_runs_are_compared(page: Page, home: Path) -> None:
    open_list(page)
    assert page.script("return document.getElementById('compare').href") == ""
    for place in range(2, 9):
        page.click(f"#runs tbody tr:nth-child({place}) input")
    assert page.text("#compare") == "Compare 6", "the seventh cannot be selected"
    page.click("#compare")
    page.wait("document.querySelectorAll('#charts figure').length >= 4")
    assert page.texts("#legend code") == [f"--seed {number}" for number in range(5)]
    assert page.texts("#differences .part") == ["Settings", "Results"]
    rows = page.texts("#differences tbody th")
    assert {"--seed", "loss", "duration", "started"} <= set(rows)
    assert "tasks" not in rows, "they all have two"
    page.click("#all-rows")
    assert {"tasks", "job.script"} <= set(page.texts("#differences tbody th"))
    page.click("input[name=axis][value=time]")
    page.wait("document.querySelectorAll('#charts canvas').length >= 4")


def test_the_page_of_a_restarted_run_tells_its_story(page: Page, home: Path) -> None:
    page.open_run(run_id(home, "restarted"))
    page.wait("document.querySelectorAll('#charts figure').length === 5")
    assert page.text("#status") == "succeeded"
    assert "epoch 6/6 · step 240/240" in page.text("#position")
    story = "\n".join(page.texts("#timeline li"))
    assert "attempt 1: worker:0, worker:1 started" in story
    assert "attempt 2 of 4, from step 80: worker:1: killed by SIGKILL" in story
    assert "gathered a checkpoint of step 240" in story
    assert "input-bound: worker:1 waits" in story
    assert page.texts("#warnings li") == ["worker:1 is 20 % slower than worker:0"]
    assert page.text("#verdict-text").startswith("input-bound: worker:1 waits 42% of a step")
    assert page.text("#verdict-fix").startswith("→ dataset.cache()")
    assert '"cluster"' in page.text("#plan-parts")
    assert page.script("return document.getElementById('stop').hidden")


def test_a_chart_has_its_values_as_text_and_shows_what_is_not_a_number(
    page: Page, home: Path
) -> None:
    page.open_run(run_id(home, "restarted"))
    page.wait("document.querySelectorAll('#charts canvas').length === 5")
    table = page.wait("document.querySelector('#charts figure table').textContent")
    assert "loss" in table
    figure = "document.querySelector('#charts figure')"
    page.script(f"{figure}.focus()")
    page.type(Keys.ARROW_LEFT)
    page.wait(f"{figure}.querySelector('.where').textContent === 'at step 240'")
    page.type(Keys.HOME)
    page.wait(f"{figure}.querySelector('.where').textContent === 'at step 2'")
    assert "at step 2, loss" in page.script(
        f"return {figure}.querySelector('[role=status]').textContent"
    )
    page.type(Keys.ESCAPE)
    page.wait(f"{figure}.querySelector('.where').textContent === ''")


def test_smoothing_and_logarithmic_axes_are_chosen_and_stay(page: Page, home: Path) -> None:
    keys = "document.querySelector('#charts .keys').innerText"
    pressed = "document.querySelector('#charts .log').ariaPressed"

    def open_and_check(*, is_chosen: bool) -> None:
        page.open_run(run_id(home, "restarted"))
        page.wait("document.querySelectorAll('#charts canvas').length === 5")
        assert page.script(f"return {pressed}") == str(is_chosen).lower()
        assert ("smoothed" in page.script(f"return {keys}")) == is_chosen

    open_and_check(is_chosen=False)
    assert len(page.texts("#charts .log")) == 2, "metrics have one; speed and memory have none"
    page.fill("#smoothing", "0.9")
    page.wait(f"{keys}.startsWith('loss 0.2329, smoothed 0.')")
    page.click("#charts .log")
    open_and_check(is_chosen=True)
    page.fill("#smoothing", "0")
    page.wait(f"!{keys}.includes('smoothed')")
    page.click("#charts .log")
    page.wait(f"{pressed} === 'false'")


def test_the_parts_of_a_step_are_a_stack_for_each_task(page: Page, home: Path) -> None:
    page.open_run(run_id(home, "restarted"))
    page.wait("document.querySelectorAll('#steps canvas').length === 2")
    slow = "document.querySelectorAll('#steps figure')[1]"
    keys = page.script(f"return {slow}.querySelector('.keys').innerText").splitlines()
    assert keys[:2] == ["compute 38 % 38 ms", "input 43 % 43.5 ms"]
    table = page.script(f"return {slow}.querySelector('table').textContent")
    assert "A step of worker:1" in table
    assert "waiting1.09 ms" in table
    for axis, first in (("step", "at step 10: 100 ms"), ("time", "at 1 s: 100 ms")):
        page.click(f"input[name=axis][value={axis}]")

        def is_at(first: str = first) -> bool:  # once the chart is drawn anew
            page.script(f"{slow}.focus()")
            page.type(Keys.HOME)
            return bool(page.script(f"return {slow}.querySelector('.where').textContent") == first)

        wait_for(is_at, what=first)
        said = page.script(f"return {slow}.querySelector('[role=status]').textContent")
        assert f"{first}, compute 41 % 41.2 ms, input 41 %" in said
        page.type(Keys.ESCAPE)
    page.wait(f"{slow}.querySelector('.where').textContent === '100 ms'")


def test_the_trials_of_a_search_are_listed_with_the_best(page: Page, home: Path) -> None:
    run = new_run(home, "search", started=time.time() - 60, tasks=["chief:0", "worker:0"])
    run.start()
    for number, score in enumerate((0.7, 0.9, None)):
        trial = {"task": "worker:0", "attempt": 1, "id": f"{number:02d}", "tuner": "worker:0"}
        values = {"units": 32 + number, "rate": 1e-4}
        run.record(ev.Trial(**trial, status="RUNNING", values=values, direction="max"))  # type: ignore[arg-type]
        if score is not None:
            run.record(ev.Trial(**trial, status="COMPLETED", score=score))  # type: ignore[arg-type]
    run.end()
    page.open_run(run.paths.run_id)
    page.wait_for_text("#trials", "running")
    assert [text.split() for text in page.texts("#trials tbody tr")] == [
        ["00", "completed", "worker:0", "0.7", "units", "32,", "rate", "1.00e-4"],
        ["01", "completed", "worker:0", "0.9", "(best)", "units", "33,", "rate", "1.00e-4"],
        ["02", "running", "worker:0", "units", "34,", "rate", "1.00e-4"],
    ]


def test_64_tasks_stay_readable_and_follow_the_run(page: Page, home: Path) -> None:
    page.open_run(run_id(home, "wide"))
    page.wait("document.querySelectorAll('#tasks tbody tr').length === 64")
    assert page.text("#task-counts") == "64 running"
    page.wait("document.body.innerText.includes('and 58 more tasks')")
    assert "attempt 1: 64 tasks started" in page.text("#timeline")
    titles = page.texts("#steps figcaption strong")
    assert titles[:3] == [f"A step of worker:{n}" for n in (0, 63, 1)], "the chief and the cause"
    assert len(titles) == 6
    assert page.text("#more-steps") == "and 58 more tasks"
    page.assert_fits()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_pages_fit_and_can_be_read(page: Page, home: Path, width: int, dark: bool) -> None:
    page.resize(width, dark=dark)
    ids = [run_id(home, name) for name in ("restarted", "sweep-003", "sweep-004")]
    for path in ("/", f"/runs/{ids[0]}", f"/runs/{ids[1]}", f"/compare?runs={','.join(ids)}"):
        page.open(path)
        page.wait("document.querySelector('tbody tr, #charts figure')")
        page.assert_fits()
        if width == 360:
            assert page.script(EMPTY_LABELS) == []
        assert page.script(CONTRAST) == [], path
        assert page.script(NAMES) == [], path


def test_the_theme_can_be_chosen_and_stays(page: Page, home: Path) -> None:
    page.open("/")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.script(f"return {background}")
    page.click("#theme")
    page.click("#theme")
    assert page.text("#theme") == "Theme: dark"
    assert page.script(f"return {background}") != light
    page.open("/")
    assert page.text("#theme") == "Theme: dark"
    page.click("#theme")


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(page: Page, home: Path) -> None:
    (cookie,) = page.browser.driver.get_cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert page.script("return document.cookie") == ""
    assert "token" not in page.script("return location.href")


def test_a_page_follows_its_run_and_says_so_and_resumes_when_it_loses_its_server(
    chromium: Browser, site: Site, home: Path
) -> None:
    run = new_run(home, "watched", started=time.time() - 5)
    run.start()
    run.writer.save()
    with breakable(site) as link:
        page = Page(chromium, link.site)
        page.open_run(run.paths.run_id)
        page.wait_for_text("#position", "no progress")
        run.train(2, 40, total=80)
        run.judge()
        run.writer.save()
        page.wait("document.querySelectorAll('#steps canvas').length === 2")
        page.wait_for_text("#verdict", "input-bound: worker:1")
        page.wait_for_text("#figures", "val_accuracy")
        cards = page.texts("#figures dt")
        assert cards[:3] == ["loss", "accuracy", "val_loss"]
        run.restart("worker:1: killed by SIGKILL", from_step=0)
        run.train(2, 10, total=80)
        run.writer.save()
        page.wait_for_text("#position", "step 10/80")
        figures = dict(zip(page.texts("#figures dt"), page.texts("#figures dd"), strict=True))
        assert [name for name in figures if name in cards] == cards, "no card went or moved"
        assert (figures["val_loss"], figures["loss"]) == ("–", "2.049")
        link.cut()
        page.wait_for_text("#connection", "Reconnecting")
        run.train(12, 20, total=80)
        run.writer.close()
        link.restore()
        page.wait("document.getElementById('connection').hidden")
        page.wait_for_text("#position", "step 20/80")
        page.wait("document.querySelectorAll('#charts canvas').length === 5")
        chromium.console.clear()  # the failed connections


def test_a_page_of_an_earlier_server_says_what_to_do(
    line: CommandLine, chromium: Browser, home: Path
) -> None:
    port = str(*free_ports(1))  # which nobody takes between the servers
    with serve(line, "--port", port) as first:
        page = Page(chromium, first)
        page.wait("document.querySelectorAll('#runs tbody tr').length")
    page.wait_for_text("#connection", "Reconnecting")
    with serve(line, "--port", port):
        page.wait_for_text("#connection", "open the link that `tfcluster ui` printed")
        page.resize(360)
        page.open("/")
        assert page.text("h1") == "The token of the link is missing or old"
        assert "start it with tfcluster ui --open" in page.text("main")
        page.assert_fits()
        assert page.script(CONTRAST) == []
        assert "Content Security" not in "".join(chromium.console)
    chromium.console.clear()


def test_a_reader_can_skip_to_the_content(page: Page, home: Path) -> None:
    page.open("/")
    page.type(Keys.TAB)
    assert page.focused() == "Skip to the content"
    page.type(Keys.ENTER)
    assert page.focused() == "main"
