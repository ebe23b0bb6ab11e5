// The page of a scaling study: tables of its cells and predictions, and charts over the workers.
// Without simulated networks there are no rates and no model, but what a step consists of.

import { seriesColour, showCharts } from "./charts.js";
import { byId, clean, el, write } from "./dom.js";
import { percent, stepTime } from "./formats.js";
import { inside } from "./live.js";

const MOST_LINES = 6;
const { study } = inside;

/** Return `100 Mbit/s`, in the same words as the tables (ui/formats.py). */
function bits(rate) {
  let unit = "bit";
  for (const larger of ["kbit", "Mbit", "Gbit", "Tbit"]) {
    if (rate < 999.5) break;
    [rate, unit] = [rate / 1000, larger];
  }
  return `${+rate.toPrecision(3)} ${unit}/s`;
}

const COLLECTIVE = [
  "The collective",
  stepTime,
  ({ workers, communication, compute_s }, step_s) =>
    workers === 1 ? 0 : Math.max(0, step_s - (compute_s ?? study.fits[communication].compute_s)),
];

/** Title, format, and the value that a chart shows of a cell or a prediction whose step takes `step_s`. */
const CHARTS = [
  ["A step", stepTime, (_, step_s) => step_s],
  ...(study.is_simulated ? [COLLECTIVE] : []),
  [
    "Efficiency of a worker",
    percent,
    ({ efficiency, step_s: median_s }, step_s) => (efficiency * median_s) / step_s,
  ],
];

/** Return the measured cells and the predictions of each communication and rate, with its name. */
function curves() {
  const alone = study.cells.filter((cell) => cell.workers === 1);
  const found = new Map();
  for (const cell of study.cells) {
    if (cell.workers === 1) continue;
    const rate = cell.rate === null ? null : bits(cell.rate);
    const name = [cell.communication, rate].filter(Boolean).join(", ") || "measured";
    if (!found.has(name)) found.set(name, [...alone]);
    found.get(name).push(cell);
  }
  return [...found].map(([name, cells]) => {
    const { communication, rate } = cells.at(-1);
    const isSame = (one) => one.communication === communication && one.rate === rate;
    return { name, cells, predictions: study.predictions.filter(isSame) };
  });
}

function linesOf({ name, cells, predictions }, index, value) {
  const colour = seriesColour(index);
  const point = (one, step_s) => [one.workers, value(one, step_s)];
  const bar = (one, range) =>
    [one.workers, ...range.map((step_s) => value(one, step_s)).sort((a, b) => a - b)];
  const model = [
    ...cells.filter((cell) => cell.fitted_s !== null).map((cell) => point(cell, cell.fitted_s)),
    ...predictions.map((one) => point(one, one.step_s)),
  ];
  const measured = {
    label: name,
    colour,
    points: cells.map((cell) => point(cell, cell.step_s)),
    bars: cells.map((cell) => bar(cell, cell.quartiles_s)),
  };
  // The reciprocal of an interval that begins at 0 has no end.
  const known = predictions.filter(({ interval_s: range }) => range?.[0] > 0);
  const fitted = {
    label: `${name}, model`,
    colour,
    dashed: true,
    points: [...new Map(model).entries()].sort((a, b) => a[0] - b[0]),
    bars: known.map((one) => bar(one, one.interval_s)),
  };
  const latest = (line) => ({ ...line, latest: line.points.at(-1)?.[1] });
  return (model.length ? [measured, fitted] : [measured]).map(latest);
}

/** Return a chart of what a step consists of: a line for each part. */
function chartOfParts({ name, cells }) {
  const known = cells.filter((cell) => cell.parts !== null);
  const names = [...new Set(known.flatMap((cell) => Object.keys(cell.parts)))];
  const lines = names.map((part, index) => {
    const points = known.map((cell) => [cell.workers, cell.parts[part] ?? 0]);
    return { label: part, colour: seriesColour(index), points, latest: points.at(-1)[1] };
  });
  return { title: `Parts of a step, ${name}`, format: stepTime, lines };
}

function drawCharts() {
  const all = curves();
  const more = all.slice(MOST_LINES).map(({ name }) => `not drawn: ${name}`).join(", ");
  const drawn = CHARTS.map(([title, format, value]) => {
    const lines = all.slice(0, MOST_LINES).flatMap((one, index) => linesOf(one, index, value));
    return { title, format, lines, more };
  });
  const parts = study.is_simulated ? [] : all.map(chartOfParts);
  const charts = [...drawn, ...parts.filter(({ lines }) => lines.length)];
  showCharts(byId("charts"), charts, [], "workers");
}

function showTable(id, { headers, rows, right_aligned: numbers }) {
  const classOf = (index) => (numbers.includes(headers[index]) ? "number" : "");
  const cells = (name, texts, attributes) =>
    texts.map((text, index) => el(name, { class: classOf(index), ...attributes }, text));
  byId(id).tHead.replaceChildren(el("tr", {}, cells("th", headers, { scope: "col" })));
  byId(id).tBodies[0].replaceChildren(...rows.map((row) => el("tr", {}, cells("td", row))));
}

write(byId("name"), `Scaling of ${study.name}`);
document.title = `Scaling of ${clean(study.name)} · tfcluster`;
write(byId("facts"), `Measured on ${inside.place}. ${inside.command}`);
showTable("cells", inside.cells);
byId("fits").append(
  ...inside.fits.map(([name, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, text))),
);
byId("notes").append(...study.notes.map((note) => el("li", {}, note)));
byId("parts-section").hidden = study.is_simulated;
if (!study.is_simulated) showTable("parts", inside.parts);
byId("model").hidden = !Object.keys(study.fits).length;
byId("predictions-section").hidden = !study.predictions.length;
if (study.predictions.length) showTable("predictions", inside.predictions);
drawCharts();
