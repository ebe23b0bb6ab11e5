// The page of all runs: a table that filters, sorts and stays up to date; some runs may be compared.

import { byId, el, oncePerFrame, syncRows, write } from "./dom.js";
import { clock, count, duration, metric, plural, rate } from "./formats.js";
import { get, isFinal, Live, now, showProblem } from "./live.js";
import { position, showBar, showStatus } from "./progress.js";

const MOST_COMPARED = 6;
const rows = new Map();
const chosen = new Set();
let order = { by: "started", isDown: true };

const VALUES = {
  name: (row) => row.name,
  status: (row) => row.status,
  progress: (row) => row.done ?? (row.step != null ? 0 : -1),
  loss: (row) => Number(row.metrics.loss ?? NaN),
  examples: (row) => row.examples_per_second ?? -1,
  tasks: (row) => row.tasks,
  duration: (row) => seconds(row) ?? -1,
  started: (row) => row.started_at ?? 0,
};

function seconds(row) {
  if (row.started_at == null) return null;
  if (row.ended_at != null) return row.ended_at - row.started_at;
  return isFinal(row.status) ? null : now() - row.started_at;
}

function isLive(row) {
  return !isFinal(row.status);
}

function matches(row) {
  const words = byId("text").value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = [row.run, row.name, row.host, row.reason, row.status_text].join(" ").toLowerCase();
  const status = byId("status").value;
  const isOfStatus = {
    "": true,
    live: isLive(row),
    succeeded: row.status === "succeeded",
    failed: row.status === "failed" || row.status === "timed_out",
    other: ["interrupted", "lost", "damaged"].includes(row.status),
  }[status];
  return isOfStatus && words.every((word) => text.includes(word));
}

function sorted(found) {
  const value = VALUES[order.by];
  const sign = order.isDown ? -1 : 1;
  return found.sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    const last = Number.isNaN(x) - Number.isNaN(y); // both ways round
    return last || sign * (x < y ? -1 : x > y ? 1 : 0) || b.started_at - a.started_at;
  });
}

const draw = oncePerFrame(() => {
  const all = [...rows.values()];
  const shown = sorted(all.filter(matches));
  syncRows(byId("runs").tBodies[0], shown, (row) => row.run, makeRow, updateRow);
  const live = all.filter(isLive).length;
  write(
    byId("counts"),
    `${plural(all.length, "run")}${live ? `, ${live} live` : ""}${shown.length < all.length ? `, ${shown.length} shown` : ""}`,
  );
  byId("empty").hidden = shown.length > 0;
  write(
    byId("empty"),
    all.length
      ? "No run matches the filter."
      : "No runs yet. Write a spec with tfcluster init, then start a run with tfcluster up.",
  );
  byId("runs").parentElement.hidden = !shown.length;
  showChoice();
});

function makeRow(row) {
  const box = el("input", {
    type: "checkbox",
    "aria-label": `Select ${row.run}`,
    onchange: () => choose(row.run, box.checked),
  });
  box.checked = chosen.has(row.run);
  return el(
    "tr",
    {},
    el("td", {}, box),
    el(
      "th",
      { scope: "row", class: "long" },
      el("a", { href: `/runs/${encodeURIComponent(row.run)}` }, row.name),
      el("span", { class: "sub" }),
    ),
    el("td", {}, el("span", { class: "status" })),
    el("td", {}, el("span"), el("div", { class: "bar small", "aria-hidden": "true" }, el("span"))),
    ...["Loss", "Examples/s", "Tasks", "Duration", "Started"].map((label) =>
      el("td", { class: "number", "data-label": label }),
    ),
  );
}

function updateRow(element, row) {
  const [, name, status, progress, ...numbers] = element.cells;
  write(name.lastElementChild, row.reason || row.run);
  name.title = name.lastElementChild.textContent;
  showStatus(status.firstElementChild, row.status, row.status_text);
  write(progress.firstElementChild, position(row));
  showBar(progress.lastElementChild, isLive(row) ? row.done : null, row.status);
  progress.lastElementChild.hidden ||= !isLive(row);
  const texts = [
    row.metrics.loss == null ? "" : metric(row.metrics.loss),
    isLive(row) ? rate(row.examples_per_second) : "",
    count(row.tasks),
    duration(seconds(row)),
    clock(row.started_at),
  ];
  numbers.forEach((cell, index) => write(cell, texts[index]));
}

function choose(run, isChosen) {
  if (isChosen) chosen.add(run);
  else chosen.delete(run);
  showChoice();
}

function showChoice() {
  const isFull = chosen.size >= MOST_COMPARED;
  for (const box of byId("runs").querySelectorAll("input")) box.disabled = isFull && !box.checked;
  const link = byId("compare");
  write(link, chosen.size ? `Compare ${chosen.size}` : "Compare");
  const isPossible = chosen.size >= 2;
  link.setAttribute("aria-disabled", !isPossible);
  if (isPossible) link.href = `/compare?runs=${[...chosen].map(encodeURIComponent).join(",")}`;
  else link.removeAttribute("href");
}

function sortBy(head) {
  const by = head.dataset.sort;
  order = {
    by,
    isDown: order.by === by ? !order.isDown : by !== "name" && by !== "status" && by !== "loss",
  };
  for (const other of byId("runs").tHead.querySelectorAll("th")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order.isDown ? "descending" : "ascending");
  draw();
}

function take({ runs, gone = [] }) {
  for (const row of runs) rows.set(row.run, row);
  for (const run of gone) {
    rows.delete(run);
    chosen.delete(run);
  }
  draw();
}

for (const head of document.querySelectorAll("th[data-sort]"))
  head.querySelector("button").addEventListener("click", () => sortBy(head));
byId("text").addEventListener("input", draw);
byId("status").addEventListener("change", draw);
byId("filters").addEventListener("submit", (event) => event.preventDefault());
setInterval(() => [...rows.values()].some(isLive) && draw(), 1000);
new Live("/api/stream", {
  refresh: async () => {
    const { runs } = await get("/api/runs");
    const known = new Set(runs.map((row) => row.run));
    take({ runs, gone: [...rows.keys()].filter((run) => !known.has(run)) });
    showProblem("");
  },
  handlers: { runs: take },
});
