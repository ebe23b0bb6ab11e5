// Compares up to six runs: their curves on top of each other, and a table of what differs.

import { Chart, extentOf, seriesColour } from "./charts.js";
import { History } from "./curves.js";
import { byId, el } from "./dom.js";
import { bytes, clock, count, duration, metric, rate } from "./formats.js";
import { get, showProblem } from "./live.js";
import { statusText } from "./progress.js";

const MOST = 6;
const ids = (new URLSearchParams(location.search).get("runs") ?? "")
  .split(",")
  .filter(Boolean)
  .slice(0, MOST);
const charts = new Map();
let runs = [];

function axis() {
  return document.querySelector("input[name=axis]:checked").value;
}

async function load() {
  if (ids.length < 2) {
    showProblem("Select at least two runs on the first page.");
    return;
  }
  const read = async (id) => {
    const path = `/api/runs/${encodeURIComponent(id)}`;
    const [facts, past] = await Promise.all([get(path), get(`${path}/history?most=400`)]);
    return { ...facts, history: new History(past) };
  };
  runs = await Promise.all(ids.map(read));
  showLegend();
  showCharts();
  showTable();
}

function showLegend() {
  const items = runs.map(({ snapshot }, index) => {
    const sample = el("i");
    sample.style.borderColor = `var(--${seriesColour(index)})`;
    return el(
      "li",
      {},
      sample,
      el("a", { href: `/runs/${encodeURIComponent(snapshot.run)}` }, label(index)),
    );
  });
  byId("legend").replaceChildren(...items);
}

/** Return the name of a run, with the end of its id where two have the same name. */
function label(index) {
  const { name, run } = runs[index].snapshot;
  const isShared = runs.some((other, place) => place !== index && other.snapshot.name === name);
  return isShared ? `${name} ${run.slice(-4)}` : name;
}

function showCharts() {
  const metrics = new Set(runs.flatMap(({ history }) => history.names("metric")));
  const wanted = [
    ...[...metrics]
      .sort((a, b) => (b === "loss") - (a === "loss"))
      .map((name) => [name, "metric", name, metric]),
    ["Examples/s", "speed", "examples_per_second", rate],
    ["Steps/s", "speed", "steps_per_second", rate],
    ["Memory of the chief", "usage", "rss_bytes", bytes],
  ];
  const drawn = wanted.map(([title, kind, name, format]) => {
    const lines = runs.flatMap((run, index) => {
      const curve = run.history.ofChief(kind, name);
      const style = { label: label(index), dashed: false, colour: seriesColour(index) };
      return curve ? run.history.lines(curve, axis(), style) : [];
    });
    return { title, format, lines };
  });
  const extent = extentOf(drawn.flatMap(({ lines }) => lines));
  for (const { title, format, lines } of drawn.filter((one) => one.lines.length)) {
    if (!charts.has(title)) {
      charts.set(title, new Chart(title, format));
      byId("charts").append(charts.get(title).root);
    }
    charts.get(title).show(lines, [], axis(), extent);
  }
  byId("no-charts").hidden = charts.size > 0;
}

const ROWS = [
  ["Status", ({ snapshot }) => statusText(snapshot.status)],
  ["Reason", ({ snapshot, diagnosis }) => diagnosis?.reason ?? snapshot.reason ?? ""],
  ["Started", ({ snapshot }) => clock(snapshot.started_at)],
  [
    "Duration",
    ({ snapshot }) => (snapshot.ended_at ? duration(snapshot.ended_at - snapshot.started_at) : ""),
  ],
  ["First step after", ({ snapshot }) => duration(snapshot.figures.first_step_s)],
  ["Tasks", ({ snapshot }) => count(snapshot.tasks.length)],
  ["Host", ({ snapshot }) => snapshot.host],
  ["Step", ({ snapshot }) => count(snapshot.figures.step)],
  ["Examples/s on average", ({ snapshot }) => rate(snapshot.figures.mean_examples_per_second)],
  ["Steps/s on average", ({ snapshot }) => rate(snapshot.figures.mean_steps_per_second)],
  [
    "Peak memory of a task",
    ({ snapshot }) =>
      bytes(Math.max(0, ...snapshot.tasks.map((task) => task.peak_rss_bytes ?? 0)) || null),
  ],
  ["Restarts", ({ snapshot }) => count(snapshot.restarts.length)],
  [
    "Checkpoint",
    ({ snapshot }) =>
      snapshot.checkpoints.at(-1)?.step != null
        ? `step ${count(snapshot.checkpoints.at(-1).step)}`
        : "",
  ],
  ["Spec", ({ snapshot }) => snapshot.spec ?? ""],
  ["Strategy", ({ plan }) => plan.strategy ?? ""],
  ["Command", ({ plan }) => plan.tasks?.[0]?.start ?? ""],
];

function showTable() {
  const metrics = [
    ...new Set(runs.flatMap(({ snapshot }) => Object.keys(snapshot.figures.metrics))),
  ];
  const ofMetrics = metrics.map((name) => [
    name,
    ({ snapshot }) => metric(snapshot.figures.metrics[name]),
  ]);
  const all = [...ROWS.slice(0, 2), ...ofMetrics, ...ROWS.slice(2)].map(([name, value]) => [
    name,
    runs.map(value),
  ]);
  const shown = all.filter(
    ([, values]) => values.some(Boolean) && (byId("all-rows").checked || new Set(values).size > 1),
  );
  const heads = runs.map((_, index) => el("th", { scope: "col" }, label(index)));
  byId("differences").tHead.replaceChildren(el("tr", {}, el("td"), heads));
  byId("differences").tBodies[0].replaceChildren(
    ...shown.map(([name, values]) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, name),
        values.map((value) => el("td", { class: "long" }, value)),
      ),
    ),
  );
}

for (const input of document.querySelectorAll("input[name=axis]"))
  input.addEventListener("change", showCharts);
byId("all-rows").addEventListener("change", showTable);
load().catch((error) => showProblem(`The runs could not be read: ${error.message}`));
