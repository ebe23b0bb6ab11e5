// Compares up to six runs: their curves on top of each other, and a table of what differs.

import { chosenAxis, onAxisChange, seriesColour, showCharts } from "./charts.js";
import { History } from "./curves.js";
import { byId, el } from "./dom.js";
import { bytes, metric, rate } from "./formats.js";
import { get, showProblem } from "./live.js";

const ids = (new URLSearchParams(location.search).get("runs") ?? "").split(",").filter(Boolean);
let runs = [];
let parts = [];

async function load() {
  if (ids.length < 2) {
    showProblem("Select at least two runs on the first page.");
    return;
  }
  const historyOf = ({ run }) => get(`/api/runs/${encodeURIComponent(run)}/history?most=400`);
  const compared = await get(`/api/compare?runs=${ids.map(encodeURIComponent).join(",")}`);
  const histories = await Promise.all(compared.runs.map(historyOf));
  runs = compared.runs.map((run, index) => ({ ...run, history: new History(histories[index]) }));
  parts = compared.parts;
  showLegend();
  drawCharts();
  showTable();
}

function showLegend() {
  const items = runs.map(({ run, label, arguments: own }, index) => {
    const sample = el("i");
    sample.style.borderColor = `var(--${seriesColour(index)})`;
    const link = el("a", { href: `/runs/${encodeURIComponent(run)}` }, label);
    return el("li", {}, sample, link, own && el("code", {}, own));
  });
  byId("legend").replaceChildren(...items);
}

function drawCharts() {
  const metrics = new Set(runs.flatMap(({ history }) => history.names("metric")));
  const wanted = [
    ...[...metrics]
      .sort((a, b) => (b === "loss") - (a === "loss"))
      .map((name) => [name, "metric", name, metric]),
    ["Examples/s", "speed", "examples_per_second", rate],
    ["Steps/s", "speed", "steps_per_second", rate],
    ["Memory of the chief", "usage", "rss_bytes", bytes],
  ];
  const axis = chosenAxis();
  const drawn = wanted.map(([title, kind, name, format]) => {
    const lines = runs.flatMap((run, index) => {
      const curve = run.history.ofChief(kind, name);
      const style = { label: run.label, dashed: false, colour: seriesColour(index) };
      return curve ? run.history.lines(curve, axis, style) : [];
    });
    return { title, format, lines };
  });
  const known = drawn.filter(({ lines }) => lines.length);
  showCharts(byId("charts"), known, [], axis);
  byId("no-charts").hidden = known.length > 0;
}

function showTable() {
  const isShown = ({ values }) => byId("all-rows").checked || new Set(values).size > 1;
  const heads = runs.map(({ label }) => el("th", { scope: "col" }, label));
  byId("differences").tHead.replaceChildren(el("tr", {}, el("td"), heads));
  const rowOf = ({ name, values }) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, name),
      values.map((value) => el("td", { class: "long" }, value)),
    );
  const bodyOf = ({ title, rows }) => {
    const shown = rows.filter(isShown).map(rowOf);
    const head = el("th", { scope: "rowgroup", colspan: 1 + runs.length, class: "part" }, title);
    return shown.length ? el("tbody", {}, el("tr", {}, head), shown) : null;
  };
  for (const body of [...byId("differences").tBodies]) body.remove();
  byId("differences").append(...parts.map(bodyOf).filter(Boolean));
}

onAxisChange(drawCharts);
byId("all-rows").addEventListener("change", showTable);
load().catch((error) => showProblem(`The runs could not be read: ${error.message}`));
