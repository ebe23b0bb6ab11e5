// The page of one run: what it does now, its curves, tasks, timeline, diagnosis, logs and plan.

import { chosenAxis, onAxisChange, seriesColour, showCharts } from "./charts.js";
import { chartsOf, History, stepChartsOf } from "./curves.js";
import { byId, clean, el, oncePerFrame, syncRows, write } from "./dom.js";
import { bytes, clock, count, duration, exit, metric, percent, plural, rate } from "./formats.js";
import { restartCost, showGoodput } from "./goodput.js";
import { get, inside, isFinal, Live, now, post, showProblem } from "./live.js";
import { LogView } from "./logs.js";
import { position, showBar, showStatus, stallText, statusText } from "./progress.js";
import { timelineLines, timelineRow } from "./timeline.js";

const CHART_INTERVAL_MS = 300;
const MOST_CHARTS = 12;
const MOST_TIMELINE = 60;
const MOST_METRICS = 4;
const RUN = document.body.dataset.run;
const API = `/api/runs/${encodeURIComponent(RUN)}`;

let snapshot = null;
let history = null;
let facts = null;
let showsAllOfTimeline = false;
let chartsAt = 0;
const cards = new Set(); // the names of the figures that the live run has had

const drawState = oncePerFrame(() => {
  showHeader();
  showFigures();
  showTasks();
  showTrials();
  showWarnings();
  showVerdict();
});
const drawTimeline = oncePerFrame(showTimeline);

async function refresh() {
  const [run, past] = inside
    ? [inside, inside.history]
    : await Promise.all([get(API), get(`${API}/history?most=600`)]);
  facts = run;
  snapshot = run.snapshot;
  history = new History(past);
  showDiagnosis();
  showNodes();
  showPlan();
  drawState();
  drawTimeline();
  drawCharts();
  logs?.offer(
    snapshot.tasks.map((task) => task.task),
    snapshot.attempt,
  );
  if (isFinal(snapshot.status)) live?.close();
  showProblem("");
}

/** Take the fields that have changed; of the tasks, those that have. */
async function takeState(changes) {
  if (!snapshot) return;
  const { tasks = [], ...fields } = changes;
  const changed = new Map(tasks.map((task) => [task.task, task]));
  const merged = snapshot.tasks.map((task) => changed.get(task.task) ?? task);
  snapshot = { ...snapshot, ...fields, tasks: merged };
  drawState();
  logs.offer(
    merged.map((task) => task.task),
    snapshot.attempt,
  );
  if (fields.diagnosis || isFinal(fields.status)) {
    facts = await get(API);
    showDiagnosis();
  }
}

async function end() {
  await refresh();
  live.close();
  logs.grown();
}

function takePoints(events) {
  const isLong = history?.addPoints(events);
  drawChartsSoon();
  return isLong ? refresh() : null;
}

function takeMoments(events) {
  history?.addMoments(events);
  drawTimeline();
  drawChartsSoon();
}

// -- header and figures

function showHeader() {
  showStatus(byId("status"), snapshot.status);
  write(byId("name"), snapshot.name);
  document.title = `${clean(snapshot.name)}: ${statusText(snapshot.status)} · tfcluster`;
  const parts = [
    RUN,
    snapshot.started_at && `started ${clock(snapshot.started_at)}`,
    snapshot.host && `on ${snapshot.host}`,
    snapshot.ended_at && `ended ${clock(snapshot.ended_at)}`,
    snapshot.exit_code != null && exit(snapshot.exit_code),
  ];
  const waits =
    stallText(snapshot.stall) ||
    (snapshot.waits_for ?? (snapshot.gathering ? `gathering ${snapshot.gathering.what}` : ""));
  const lines = facts.facts.map(([name, text]) => `${name}: ${text}`);
  write(byId("facts"), [[...parts, waits].filter(Boolean).join(" · "), ...lines].join("\n"));
  const stop = byId("stop");
  if (stop) {
    stop.hidden = isFinal(snapshot.status);
    stop.disabled = snapshot.status === "stopping";
    write(stop, snapshot.status === "stopping" ? "Stopping …" : "Stop …");
    if (stop.hidden) byId("stop-dialog").close();
  }
}

function showFigures() {
  const task = snapshot.figures;
  showBar(byId("bar"), task.done, snapshot.status);
  const left = task.eta_s == null ? "" : `${duration(task.eta_s)} left`;
  write(
    byId("position"),
    [position(task, { isLong: true }) || "no progress reported yet", left]
      .filter(Boolean)
      .join(" · "),
  );
  const checkpoint = snapshot.checkpoints.at(-1);
  const figures = [
    ...[...new Map([...history.latestMetrics(), ...Object.entries(task.metrics)])]
      .slice(0, MOST_METRICS)
      .map(([name, value]) => [name, metric(value)]),
    ...speed(task),
    ["Elapsed", elapsed()],
    ["Goodput", percent(snapshot.goodput?.share)],
    ["Restart cost", duration(restartCost(snapshot.goodput))],
    ["First step", duration(task.first_step_s)],
    ["Memory", bytes(task.rss_bytes)],
    ["Peak memory", bytes(peakMemory())],
    ["Attempt", snapshot.attempt > 1 ? count(snapshot.attempt) : ""],
    [
      "Checkpoint",
      checkpoint ? (checkpoint.step != null ? `step ${count(checkpoint.step)}` : "gathered") : "",
    ],
  ];
  if (isFinal(snapshot.status)) cards.clear();
  for (const [name, value] of figures) if (value !== "") cards.add(name);
  syncRows(
    byId("figures"),
    figures.filter(([name]) => cards.has(name)), // one that was there stays while the run goes on
    ([name]) => name,
    () => el("div", {}, el("dt"), el("dd")),
    (row, [name, value]) => {
      write(row.firstElementChild, name);
      row.firstElementChild.title = clean(name);
      write(row.lastElementChild, value || "–");
    },
  );
  showGoodput(byId("goodput"), snapshot.goodput);
}

/** Return the most memory that a task has had; null while none has ended. */
function peakMemory() {
  return Math.max(0, ...snapshot.tasks.map((task) => task.peak_rss_bytes ?? 0)) || null;
}

/** Return the present speed; of a run that has ended, its mean. */
function speed(figures) {
  const isOver = isFinal(snapshot.status);
  const [prefix, suffix] = isOver ? ["mean_", " on average"] : ["", ""];
  const examples = figures[`${prefix}examples_per_second`];
  return examples != null || cards.has(`Examples/s${suffix}`)
    ? [[`Examples/s${suffix}`, rate(examples)]]
    : [[`Steps/s${suffix}`, rate(figures[`${prefix}steps_per_second`])]];
}

function elapsed() {
  if (isFinal(snapshot.status) && !snapshot.ended_at) return "";
  return duration((snapshot.ended_at ?? now()) - snapshot.started_at);
}

// -- tasks, trials, warnings

const CELLS = [
  (task) => task.node,
  (task) => count(task.step),
  (task) => rate(task.steps_per_second),
  (task) => bytes(task.rss_bytes ?? task.peak_rss_bytes),
  (task) => (task.cores == null ? "" : task.cores.toFixed(1)),
  (task) =>
    [
      task.gpu == null ? "" : percent(task.gpu),
      task.gpu_memory_bytes ? bytes(task.gpu_memory_bytes) : "",
      registeredGpus(task),
    ]
      .filter(Boolean)
      .join(" · "),
  (task) => exit(task.exit_code, task.signal) || (snapshot.stall?.tasks?.[task.task] ?? ""),
];

function registeredGpus(task) {
  const gpus = (task.devices ?? []).filter((device) => device.startsWith("GPU"));
  const models = [...new Set(gpus)].map((gpu) => gpu.replace(/^GPU /, ""));
  return gpus.length ? `${gpus.length} × ${models.join(", ")}` : "";
}

const FIRST_NUMBER = 1;
const LAST_NUMBER = 5;

function showTasks() {
  const states = new Map();
  for (const task of snapshot.tasks) states.set(task.state, (states.get(task.state) ?? 0) + 1);
  write(
    byId("task-counts"),
    [...states].map(([state, number]) => `${count(number)} ${state}`).join(", "),
  );
  const makeCell = (_, index) =>
    el("td", { class: index >= FIRST_NUMBER && index <= LAST_NUMBER ? "number" : "" });
  syncRows(
    byId("tasks").tBodies[0],
    snapshot.tasks,
    (task) => task.task,
    (task) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, task.task),
        el("td", {}, el("span", { class: "status" })),
        CELLS.map(makeCell),
      ),
    (row, task) => {
      const state = task.frozen_by ? "warn" : task.state;
      showStatus(
        row.cells[1].firstElementChild,
        state,
        task.frozen_by ? `stopped by ${exit(null, task.frozen_by)}` : statusText(task.state),
      );
      CELLS.forEach((cell, index) => write(row.cells[index + 2], cell(task)));
    },
  );
}

function showTrials() {
  byId("trials-section").hidden = !snapshot.trials.length;
  syncRows(
    byId("trials").tBodies[0],
    snapshot.trials,
    (trial) => trial.id,
    (trial) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, trial.id),
        el("td"),
        el("td"),
        el("td", { class: "number" }),
        el("td", { class: "long" }),
      ),
    (row, trial) => {
      const best = trial.id === snapshot.best_trial ? " (best)" : "";
      const values = Object.entries(trial.values ?? {}).map(
        ([name, value]) => `${name} ${typeof value === "number" ? metric(value) : value}`,
      );
      [
        String(trial.status ?? "").toLowerCase(),
        trial.tuner,
        `${metric(trial.score)}${best}`,
        [...values, trial.message].filter(Boolean).join(", "),
      ].forEach((text, index) => write(row.cells[index + 1], text));
    },
  );
}

function showWarnings() {
  const texts = [...Object.values(snapshot.alerts), ...snapshot.warnings];
  byId("warnings").hidden = !texts.length;
  syncRows(
    byId("warnings").querySelector("ul"),
    texts,
    (text) => text,
    (text) => el("li", {}, text),
    () => {},
  );
}

/** Show which part makes the steps as long as they are; computing is what they are for. */
function showVerdict() {
  const verdict = snapshot.step_verdict;
  byId("verdict").hidden = !verdict;
  byId("verdict").classList.toggle("warn", verdict?.bound !== "compute");
  write(byId("verdict-text"), verdict?.message);
  write(byId("verdict-fix"), verdict?.fix ? `→ ${verdict.fix}` : "");
}

function showDiagnosis() {
  const found = facts.diagnosis;
  byId("diagnosis").hidden = !found;
  if (!found) return;
  const how = [found.task, found.how].filter(Boolean).join(", ");
  const isDamaged = snapshot.status === "damaged";
  write(byId("diagnosis-title"), how ? "Root cause" : isDamaged ? "Damaged" : "Why it ended");
  write(byId("cause"), how ? `${how}: ${found.reason}` : found.reason);
  write(byId("fix"), found.text.join("\n"));
  write(byId("others"), how ? snapshot.reason : "");
  byId("last-lines").hidden = !found.lines.length;
  write(byId("last-lines").querySelector("h3"), `Last lines of ${found.lines_of}`);
  byId("last-lines").querySelector("pre").textContent = found.lines.map(clean).join("\n");
}

// -- charts and timeline

function drawChartsSoon() {
  if (chartsAt) return;
  chartsAt = setTimeout(() => {
    chartsAt = 0;
    drawCharts();
  }, CHART_INTERVAL_MS);
}

function drawCharts() {
  const isGang = (facts.plan.kind ?? "training") === "training";
  const wanted = chartsOf(history, isGang).slice(0, MOST_CHARTS);
  byId("no-charts").hidden = wanted.length > 0;
  const axis = chosenAxis();
  const marks = history.marks(axis);
  showMarks(marks);
  const linesOf = ({ curve, label, dashed }, index) =>
    history.lines(curve, axis, { label, dashed, colour: seriesColour(index) });
  showCharts(
    byId("charts"),
    wanted.map((one) => ({ ...one, lines: one.curves.flatMap(linesOf) })),
    marks,
    axis,
  );
  showSteps(marks, axis);
}

/** Show the parts of the steps, of each task as a stack over steps or time. */
function showSteps(marks, axis) {
  const { charts, more } = stepChartsOf(history, snapshot.step_verdict?.causes ?? []);
  byId("steps-section").hidden = !charts.length;
  const lineOf = ({ curve, label, index }) =>
    history.joinedLine(curve, axis, { label, colour: seriesColour(index) });
  showCharts(
    byId("steps"),
    charts.map((one) => ({ ...one, lines: one.curves.map(lineOf) })),
    marks,
    axis,
  );
  write(byId("more-steps"), more);
}

const MARKS = {
  restart: ["┆", "restart"],
  failure: ["┆", "failure"],
  checkpoint: ["▲", "checkpoint"],
  gap: ["×", "not a number"],
};

/** Explain the marks that the charts have. */
function showMarks(marks) {
  const kinds = new Set(marks.map((mark) => mark.kind));
  if (history.hasGaps()) kinds.add("gap");
  syncRows(
    byId("marks"),
    Object.keys(MARKS).filter((kind) => kinds.has(kind)),
    (kind) => kind,
    (kind) => el("span", { "data-kind": kind }, el("b", {}, MARKS[kind][0]), ` ${MARKS[kind][1]}`),
    () => {},
  );
}

function showTimeline() {
  const all = timelineLines(history.timeline);
  const shown = showsAllOfTimeline
    ? all
    : [...all.slice(0, 10), ...all.slice(10).slice(10 - MOST_TIMELINE)];
  syncRows(
    byId("timeline"),
    shown,
    (line) => line.key,
    timelineRow,
    () => {},
  );
  write(byId("timeline-note"), history.skipped ? `${count(history.skipped)} events left out` : "");
  byId("all-timeline").hidden = shown.length === all.length;
  write(byId("all-timeline"), `Show all ${plural(all.length, "event")}`);
}

// -- nodes and plan

function showNodes() {
  byId("nodes-section").hidden = !facts.nodes.length;
  const rows = facts.nodes.map(({ packages, ...node }) => {
    const versions = Object.entries(packages).map(([name, version]) => `${name} ${version}`);
    return [node.node, node.backend, node.place, node.python, versions.join(", "), node.gpus];
  });
  byId("nodes").tBodies[0].replaceChildren(
    ...rows.map(([name, ...cells]) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, name),
        cells.map((cell) => el("td", { class: "long" }, cell)),
      ),
    ),
  );
}

function showPlan() {
  const { problem, tasks = [], left_out: more, kind, strategy, notes = [] } = facts.plan;
  const select = byId("plan-task");
  select.hidden = tasks.length < 2;
  if (select.options.length !== tasks.length)
    select.replaceChildren(...tasks.map(({ task }) => el("option", {}, task)));
  const task = tasks[Math.max(0, select.selectedIndex)];
  const shown = [kind, strategy, task?.node && `node ${task.node}`, ...notes];
  if (more) shown.push(`${plural(more, "more task")}: tfcluster env shows theirs`);
  const places = [snapshot.spec && `spec ${snapshot.spec}`, `folder ${snapshot.folder}`];
  write(byId("plan-facts"), [problem, ...shown, ...places].filter(Boolean).join(" · "));
  byId("plan-parts").replaceChildren(...(task ? partsOf(task) : []), ...partsOfSpec());
}

function partsOfSpec() {
  return Object.keys(facts.spec).length ? asParts({ Spec: JSON.stringify(facts.spec, null, 2) }) : [];
}

function partsOf(task) {
  const variables = (task.env ?? [])
    .filter(({ name }) => name !== "TF_CONFIG")
    .map(({ name, value }) => `${name}=${value ?? ""}`);
  return asParts({
    Command: task.start,
    TF_CONFIG: task.tf_config && JSON.stringify(task.tf_config, null, 2),
    Environment: variables.join("\n"),
  });
}

function asParts(parts) {
  return Object.entries(parts)
    .filter(([, text]) => text)
    .flatMap(([title, text]) => [
      el("h3", {}, title),
      el("pre", { tabindex: "0", "aria-label": title }, text),
    ]);
}

// -- stop

function offerStop() {
  const dialog = byId("stop-dialog");
  if (!dialog) return;
  byId("stop").addEventListener("click", () => {
    byId("stop-now").checked = false;
    dialog.returnValue = "";
    dialog.showModal();
  });
  dialog.addEventListener("close", async () => {
    if (dialog.returnValue !== "stop") return;
    try {
      const { stopping, why } = await post(`${API}/stop`, { now: byId("stop-now").checked });
      showProblem(stopping ? "" : `Nothing was stopped: ${why ?? "the run is over"}`);
    } catch (error) {
      showProblem(`The run was not stopped: ${error.message}`);
    }
  });
}

offerStop();
onAxisChange(() => history && drawCharts());
byId("all-timeline").addEventListener("click", () => {
  showsAllOfTimeline = true;
  showTimeline();
});
byId("plan-task").addEventListener("change", showPlan);
let logs = null;
let live = null;
if (inside) {
  refresh();
} else {
  setInterval(() => snapshot && !isFinal(snapshot.status) && showFigures(), 1000);
  logs = new LogView(RUN);
  live = new Live(`${API}/stream`, {
    refresh,
    handlers: {
      state: takeState,
      progress: takePoints,
      timeline: takeMoments,
      logs: () => logs.grown(),
      end,
    },
  });
}
