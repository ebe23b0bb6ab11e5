"""The page's modules alone, with a server that answers late, in another order, or not at all."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from tests.integration.commandline import wait_for

from .site import Page, Site
from .synthetic import new_run

pytestmark = pytest.mark.slow

TOOLS = """
const tick = async () => {  // some turns of the event loop, however long each takes
  for (let turn = 0; turn < 10; turn += 1) await new Promise((done) => setTimeout(done, 2));
};
const asked = [];
const answer = (page) => asked.shift()(new Response(JSON.stringify(page)));
const urls = [];
window.fetch = (url) => {
  urls.push(new URL(url, location));
  return new Promise((done) => asked.push(done));
};
const page = (fields) => ({ lines: [], hidden: 0, before: null, after: "a", behind: 0, at_end: true,
  ...fields });
const sources = [];
class Source extends EventTarget {
  constructor() { super(); sources.push(this); }
  say(type, data) { this.dispatchEvent(new MessageEvent(type, { data: JSON.stringify(data) })); }
  close() {}
}
"""


def evaluate(page: Page, script: str) -> Any:
    """Return what an asynchronous script returns that may import the page's modules."""
    return page.browser.driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        f"(async () => {{ {TOOLS} {script} }})().then(done, (error) => done(error.stack));"
    )


@pytest.fixture
def ended(page: Page, site: Site) -> Page:
    """The page of a run that is over, which asks for nothing any more."""
    run = new_run(site.home, "ended", started=time.time())
    run.start()
    run.end()
    page.open_run(run.paths.run_id)
    page.wait_for_text("#status", "succeeded")
    page.wait_for_text("#log-view", "started")
    return page


def test_what_arrives_while_the_state_is_read_is_not_lost(page: Page) -> None:
    script = """
    const { Live } = await import("/static/live.js");
    window.EventSource = Source;
    let [finish, shown] = [null, []];
    const refresh = () => new Promise((done) => (finish = done)).then(() => shown.push("older"));
    const live = new Live("/", { refresh, handlers: { state: (data) => shown.push(data) } });
    await tick();
    sources[0].say("state", "newer");
    await tick();
    finish();
    await tick();
    live.close();
    return shown;
    """
    assert evaluate(page, script) == ["older", "newer"]


def test_a_stream_that_fails_after_its_headers_is_asked_for_less_and_less_often(page: Page) -> None:
    script = """
    const { Live } = await import("/static/live.js");
    window.EventSource = Source;
    const live = new Live("/", { refresh: async () => {}, handlers: { state: () => {} } });
    const pauses = [];
    for (let round = 0; round < 4; round += 1) {
      if (round) live.connect();
      sources.at(-1).dispatchEvent(new Event("open"));
      if (round === 3) sources.at(-1).say("state", {});
      sources.at(-1).dispatchEvent(new Event("error"));
      pauses.push(live.pauseMs);
    }
    live.close();
    return pauses;
    """
    assert evaluate(page, script) == [1000, 2000, 4000, 1000]


def test_lines_that_come_during_a_request_are_read_after_it(ended: Page) -> None:
    script = """
    const { LogView } = await import("/static/logs.js");
    const view = new LogView("run");
    view.grown();
    answer(page({ lines: [{ task: "worker:0", attempt: 1, offset: 0, text: "one" }] }));
    await tick();
    answer(page({ lines: [{ task: "worker:0", attempt: 1, offset: 4, text: "the error" }] }));
    await tick();
    return [view.lines.map((line) => line.text), asked.length];
    """
    assert evaluate(ended, script) == [["one", "the error"], 0]


def test_a_search_goes_on_to_the_start_and_says_so_until_then(ended: Page) -> None:
    script = """
    const { LogView } = await import("/static/logs.js");
    document.getElementById("log-text").value = "rare";
    const view = new LogView("run");
    const notes = [];
    const reply = async (fields) => {
      answer(page(fields));
      await tick();
      notes.push(document.getElementById("log-note").textContent);
    };
    await reply({ before: "c", hidden: 1 });
    view.grown();
    await reply({ before: "b" });
    await reply({ after: "z", behind: 9e9, at_end: false });
    await reply({});
    await reply({ after: "zz" });
    return [notes, urls.map((url) => url.searchParams.get("offset")), asked.length];
    """
    notes, offsets, waiting = evaluate(ended, script)
    left_out = "1 line of TensorFlow’s own left out."
    assert notes == [f"Searching … {left_out}"] * 4 + [f"No line has this text. {left_out}"]
    assert offsets == ["end", "c", "a", "b", "z"], "it never begins anew"
    assert waiting == 0


def test_the_first_worker_stands_for_the_run_and_the_number_of_curves_is_limited(
    page: Page,
) -> None:
    script = """
    const { chartsOf, History } = await import("/static/curves.js");
    const history = new History({ started_at: 1, timeline: [], skipped: 0, curves: [] });
    for (let index = 99; index >= 0; index -= 1) {
      const metrics = Object.fromEntries([...Array(50).keys()].map((name) => [`m${name}`, 1]));
      history.addPoints([{ type: "progress", time: 2, task: `worker:${index}`, step: 1, metrics }]);
    }
    const charts = chartsOf(history);
    return [history.chief, history.of("metric", "m0").length, charts.length,
      new Set(charts.map(({ curves }) => curves[0].curve.task)).size];
    """
    assert evaluate(page, script) == ["worker:0", 65, 32, 1]


def test_the_parts_of_a_step_follow_a_live_run_and_count_once_for_a_repeated_step(
    page: Page,
) -> None:
    script = """
    const { stepChartsOf, History } = await import("/static/curves.js");
    const history = new History({ started_at: 1, timeline: [], skipped: 0, curves: [] });
    const report = (task, time, step, parts) =>
      history.addPoints([{ type: "step_times", time, task, step, steps: 10, parts }]);
    report("worker:1", 2, 10, { input: 1, waiting: 0, "a new part": 1 });
    const metrics = { loss: 1 };
    history.addPoints([{ type: "progress", time: 2, task: "worker:0", step: 12, metrics }]);
    report("worker:0", 3, 20, { input: 2 });
    history.addMoments([{ seq: 1, time: 4, type: "restarting" }]);
    for (const [time, step] of [[5, 10], [6, 30]]) report("worker:0", time, step, { input: 4 });
    const { charts } = stepChartsOf(history, []);
    const line = (axis) => history.joinedLine(charts[0].curves[0].curve, axis, {});
    return [charts.map(({ title, curves }) => [title, curves.map(({ label }) => label)]),
      line("step").points, line("time").points, line("time").gaps];
    """
    charts, over_steps, over_time, gaps = evaluate(page, script)
    assert charts == [["A step of worker:0", ["input"]], ["A step of worker:1", ["input"]]]
    assert over_steps == [[10, 0.4], [30, 0.4]]
    assert over_time == [[2, 0.2], [4, 0.4], [5, 0.4]]
    assert gaps == [3]


def test_the_average_of_a_smoothed_curve_does_not_begin_at_zero_and_keeps_gaps(page: Page) -> None:
    script = """
    const { smooth } = await import("/static/charts.js");
    return smooth([[0, 1], [1, 0], [2, null], [3, 0]], 0.5);
    """
    assert evaluate(page, script) == [[0, 1], [1, pytest.approx(1 / 3)], [2, None],
                                      [3, pytest.approx(1 / 7)]]  # fmt: skip


def test_labels_of_ticks_differ(page: Page) -> None:
    script = """
    const { labelTicks } = await import("/static/charts.js");
    return [[0, 0.5, 1], [0.98321, 0.98322, 0.98323], [0.1, null, 1], [1.0001e-4, 1.0002e-4]]
      .map(labelTicks);
    """
    assert evaluate(page, script) == [
        ["0", "0.5", "1"],
        ["0.98321", "0.98322", "0.98323"],
        ["0.1", "", "1"],
        ["1.0001e-4", "1.0002e-4"],
    ]


def test_the_axis_of_a_chart_fits_its_curve_and_follows_the_users_choice(ended: Page) -> None:
    script = """
    const { showCharts } = await import("/static/charts.js");
    const { metric } = await import("/static/formats.js");
    let plot;
    window.uPlot = class extends uPlot {
      constructor(...options) { super(...options); plot = this; }
    };
    const place = document.getElementById("charts");
    const facts = async () => {
      for (let frame = 0; frame < 3; frame += 1) await new Promise(requestAnimationFrame);
      const { min, max, distr } = plot.scales.y;
      return [distr, min, max, plot.series.length];
    };
    const show = (values) => {
      const points = values.map((y, x) => [x, y]);
      const line = { label: "loss", colour: "series-1", points, latest: values.at(-1) };
      showCharts(place, [{ title: "loss", format: metric, lines: [line] }], [], "step");
      return facts();
    };
    const found = [];
    for (const values of [[1, 1], [0, 0], [-50, -50 - 1e-9], [1, 2], [0.001, 9]])
      found.push(await show(values));
    await show([1, 2]);
    place.querySelector(".log").click();
    found.push(await facts());
    const slider = document.getElementById("smoothing");
    const choose = (value) => {
      slider.value = value;
      slider.dispatchEvent(new Event("input"));
    };
    choose(0.5);
    found.push(await facts());
    choose(0);
    localStorage.clear();
    return found;
    """
    linear, logarithmic = 1, 3
    constant_1, constant_0, constant_50, rising, wide, chosen, smoothed = evaluate(ended, script)
    assert constant_1 == [linear, pytest.approx(0.9), pytest.approx(1.1), 2]
    assert constant_0 == [linear, pytest.approx(-0.1), pytest.approx(0.1), 2]
    assert constant_50 == [linear, pytest.approx(-55), pytest.approx(-45), 2]
    assert rising[0] == linear
    assert rising[1] < 1 < 2 < rising[2] < 2.5
    assert (wide[0], chosen[0]) == (logarithmic, logarithmic)
    assert smoothed[0::3] == [logarithmic, 3], "the curve and its average"


def test_a_run_whose_loss_is_not_a_number_is_sorted_last(page: Page, site: Site) -> None:
    for place, (name, loss) in enumerate({"low": 0.1, "nan": math.nan, "high": 2.0}.items()):
        run = new_run(site.home, f"sorted {name}", started=time.time() - place)
        run.start()
        run.train(2, 2, loss=lambda step, loss=loss: loss)  # type: ignore[misc]
        run.end()
    page.open("/")
    page.fill("#status", "succeeded")
    page.fill("#text", "sorted")
    page.wait("document.querySelectorAll('#runs tbody tr').length === 3")
    for expected in ("low high nan", "high low nan"):
        page.click("th[data-sort=loss] button")
        rows = [f"sorted {name}" for name in expected.split()]
        wait_for(lambda rows=rows: page.texts("#runs tbody th a") == rows, what=expected)  # type: ignore[misc]


def test_a_run_that_ended_before_its_stop_is_not_said_to_stop(page: Page, site: Site) -> None:
    run = new_run(site.home, "live", started=time.time())
    run.start()
    run.writer.close()
    page.open_run(run.paths.run_id)
    page.wait("!document.getElementById('stop').hidden")
    evaluate(page, "window.fetch = async () => new Response('{\"stopping\": false}')")
    for selector in ("#stop", "#stop-confirm"):
        page.click(selector)
    page.wait_for_text("#problem", "Nothing was stopped: the run is over")
