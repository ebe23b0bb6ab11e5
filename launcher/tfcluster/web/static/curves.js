// The curves of a run: from the server's history to the lines of charts, over steps or time.

import { clean } from "./dom.js";
import { bytes, metric, percent, plural, rate, stepTime } from "./formats.js";

const MOST_LINES = 6;
const MOST_POINTS = 3000;
const MOST_TASKS = 64; // with curves of one kind, and
const MOST_NAMES = 32; // names of one task and kind, as the server has at most
const LEADERS = ["chief:0", "worker:0"]; // the tasks that stand for a run
const NOT_FINITE = ["NaN", "Infinity", "-Infinity"];
const PROGRESS = ["metric", "speed"]; // the kinds of the curves from a task's reports of its steps
const SPEEDS = ["steps_per_second", "examples_per_second"];

/** The history of one run: the server's curves and timeline, and the events that followed. */
export class History {
  constructor(record) {
    this.startedAt = record.started_at;
    this.timeline = record.timeline;
    this.skipped = record.skipped;
    this.curves = new Map();
    this.steps = new Map();
    /** The task whose metrics stand for the run: chief:0, worker:0, or the first one. */
    this.chief = null;
    for (const curve of record.curves) {
      this.insert(curve);
      if (PROGRESS.includes(curve.kind)) this.steps.set(curve.task, curve.points.at(-1)?.[1]);
    }
  }

  /** Add `progress`, `usage` and `step_times` events; return whether a curve is now too long for a chart. */
  addPoints(events) {
    for (const event of events) {
      const time = this.timeOf(event);
      if (event.type === "progress") {
        this.steps.set(event.task, event.step);
        this.add(time, event.task, "metric", event.metrics);
        this.add(
          time,
          event.task,
          "speed",
          Object.fromEntries(SPEEDS.map((name) => [name, event[name]])),
        );
      } else if (event.type === "step_times") {
        const parts = Object.entries(event.parts ?? {}).map(([name, s]) => [name, s / event.steps]);
        this.add(time, event.task, "step", Object.fromEntries(parts), event.step);
      } else {
        for (const [task, used] of Object.entries(event.tasks ?? {}))
          this.add(time, task, "usage", used);
      }
    }
    return [...this.curves.values()].some((curve) => curve.points.length > MOST_POINTS);
  }

  add(time, task, kind, values, step = this.steps.get(task)) {
    for (const [name, value] of Object.entries(values ?? {})) {
      if (typeof value !== "number" && !NOT_FINITE.includes(value)) continue;
      const known = this.curves.get(keyOf(task, kind, name));
      if (!known && !this.hasRoom(task, kind)) return;
      const curve = known ?? this.insert({ task, kind, name, points: [] });
      if (time > (curve.points.at(-1)?.[0] ?? -1))
        curve.points.push([time, step ?? null, value]);
    }
  }

  insert(curve) {
    this.curves.set(keyOf(curve.task, curve.kind, curve.name), curve);
    const isFirst = this.chief === null || place(curve.task) < place(this.chief);
    if (PROGRESS.includes(curve.kind) && isFirst) this.chief = curve.task;
    return curve;
  }

  hasRoom(task, kind) {
    const names = new Map();
    for (const curve of this.curves.values())
      if (curve.kind === kind) names.set(curve.task, (names.get(curve.task) ?? 0) + 1);
    return names.has(task)
      ? names.get(task) < MOST_NAMES
      : names.size < MOST_TASKS || LEADERS.includes(task);
  }

  /** Add events of the timeline; those it has already, by their numbers, are ignored. */
  addMoments(events) {
    const last = this.timeline.at(-1)?.seq ?? 0;
    for (const event of events)
      if (event.seq > last && isFinite(event.time))
        this.timeline.push({ t: this.timeOf(event), ...event });
  }

  timeOf(event) {
    this.startedAt ||= event.time;
    return Math.round(1000 * (event.time - this.startedAt)) / 1000;
  }

  of(kind, name) {
    return [...this.curves.values()].filter((curve) => curve.kind === kind && curve.name === name);
  }

  names(kind) {
    return [
      ...new Set(
        [...this.curves.values()].filter((curve) => curve.kind === kind).map((curve) => curve.name),
      ),
    ];
  }

  /** Return the curve of the task that stands for the run, or of the first task that has one. */
  ofChief(kind, name) {
    return this.curves.get(keyOf(this.chief, kind, name)) ?? this.of(kind, name)[0];
  }

  /**
   * Return `[name, value]` for each metric of the chief, the loss first, then as they were first reported.
   *
   * The value is the latest one of the present attempt, null where that has none.
   */
  latestMetrics() {
    const since = this.restartsOf(this.chief).at(-1) ?? 0;
    return [...this.curves.values()]
      .filter((curve) => curve.kind === "metric" && curve.task === this.chief)
      .map(({ name, points }) => {
        const [time, , value] = points.at(-1) ?? [];
        return [name, time >= since ? value : null];
      })
      .sort(([a], [b]) => (b === "loss") - (a === "loss"));
  }

  /** Return the times at which `task` began anew. */
  restartsOf(task) {
    return this.timeline
      .filter((one) => one.type === "restarting" && (!one.task || one.task === task))
      .map((one) => one.t);
  }

  /** Return the step that the chief had reached at `time`, or null. */
  stepAt(time) {
    let step = null;
    for (const curve of this.curves.values()) {
      if (curve.task !== this.chief || !PROGRESS.includes(curve.kind)) continue;
      for (const point of curve.points)
        if (point[0] <= time && point[1] !== null) step = Math.max(step ?? 0, point[1]);
      break;
    }
    return step;
  }

  marks(axis) {
    const kinds = {
      restarting: "restart",
      checkpoint_gathered: "checkpoint",
      diagnosis: "failure",
    };
    const restarts = this.timeline.filter((one) => one.type === "restarting");
    const isOvercome = (one) => one.type === "diagnosis" && restarts.some(({ t }) => t >= one.t);
    return this.timeline
      .filter((one) => Object.hasOwn(kinds, one.type) && !isOvercome(one))
      .filter((one) => !(one.type === "restarting" && one.task))
      .map((one) => {
        const step =
          one.type === "checkpoint_gathered" && one.step != null ? one.step : this.stepAt(one.t);
        return { kind: kinds[one.type], x: axis === "time" ? one.t : step };
      })
      .filter((mark) => mark.x !== null);
  }

  /** Return whether a metric was not a number somewhere. */
  hasGaps() {
    const metrics = [...this.curves.values()].filter((curve) => curve.kind === "metric");
    return metrics.some((curve) => curve.points.some((point) => !isFinite(Number(point[2]))));
  }

  /** Return the lines of a curve; over steps each attempt is one, as its steps begin again. */
  lines(curve, axis, style) {
    const restarts = this.restartsOf(curve.task);
    const parts = [[]];
    for (const [time, step, value] of curve.points) {
      while (restarts.length && time >= restarts[0]) {
        restarts.shift();
        if (parts.at(-1).length) parts.push([]);
      }
      const number = Number(value);
      const x = axis === "time" ? time : step;
      if (x !== null) parts.at(-1).push([x, isFinite(number) ? number : null]);
    }
    const known = parts.filter((part) => part.length);
    const latest = curve.points.at(-1)?.[2];
    return known.map((points, index) => ({
      ...style,
      points,
      latest,
      faint: index < known.length - 1,
    }));
  }

  /** Return a curve as one line, with a gap at each restart; of repeated steps, the last ones count. */
  joinedLine(curve, axis, style) {
    const points = [];
    for (const attempt of this.lines(curve, axis, style).reverse())
      points.unshift(...attempt.points.filter(([x]) => x < (points[0]?.[0] ?? Infinity)));
    const gaps = axis === "time" ? this.restartsOf(curve.task) : [];
    return { ...style, points, gaps, latest: curve.points.at(-1)?.[2] };
  }
}

function place(task) {
  const found = LEADERS.indexOf(task);
  return found < 0 ? LEADERS.length : found;
}

function keyOf(task, kind, name) {
  return JSON.stringify([task, kind, name]);
}

const PAIRED = "val_";

/**
 * Return what charts a history needs: `{title, format, curves: [{curve, label, dashed}], more}`.
 *
 * A metric and its `val_` share a chart, with the values of the chief; those of tasks that train
 * apart (`isGang` is false), speed and memory are shown for each task, for the first six of many.
 */
export function chartsOf(history, isGang = true) {
  const charts = [];
  const metrics = history.names("metric");
  for (const base of new Set(
    metrics.map((name) => (name.startsWith(PAIRED) ? name.slice(PAIRED.length) : name)),
  )) {
    const all = [base, PAIRED + base].flatMap((name) => {
      const of = isGang ? [history.ofChief("metric", name)] : history.of("metric", name);
      const label = (curve) => (isGang ? name : `${name} of ${curve.task}`);
      const dashed = name !== base;
      return of.filter(Boolean).map((curve) => ({ curve, label: label(curve), dashed }));
    });
    charts.push({ title: clean(base), format: metric, ...someOf(all, "curve") });
  }
  charts.sort((a, b) => (b.title === "loss") - (a.title === "loss"));
  const speed = history.names("speed");
  const throughput = speed.includes("examples_per_second")
    ? "examples_per_second"
    : "steps_per_second";
  if (speed.length)
    charts.push(
      perTask(
        history,
        "speed",
        throughput,
        { examples_per_second: "Examples/s", steps_per_second: "Steps/s" }[throughput],
        rate,
      ),
    );
  const usage = history.names("usage");
  if (usage.includes("rss_bytes"))
    charts.push(perTask(history, "usage", "rss_bytes", "Memory", bytes));
  if (usage.includes("cores"))
    charts.push(perTask(history, "usage", "cores", "Cores in use", rate));
  if (usage.includes("gpu")) charts.push(perTask(history, "usage", "gpu", "GPU use", percent));
  if (usage.includes("gpu_memory_bytes"))
    charts.push(perTask(history, "usage", "gpu_memory_bytes", "GPU memory", bytes));
  return charts;
}

/** The parts of a step, from the bottom: those of the task itself, then those of collectives. */
const PARTS = ["compute", "input", "callbacks", "other", "transfer", "waiting"];

/**
 * Return a stack of the parts of a step for each of the first six tasks, and how many are left out:
 * `{charts: [{title, format, isStack, curves: [{curve, label, index}]}], more}`.
 *
 * The chief comes first, then the tasks `named` by a verdict.
 */
export function stepChartsOf(history, named) {
  const known = new Set(PARTS.flatMap((name) => history.of("step", name)).map(({ task }) => task));
  const tasks = [...new Set([history.chief, ...named, ...known])].filter((task) => known.has(task));
  const { curves: shown, more } = someOf(tasks, "task");
  const partsOf = (task) =>
    PARTS.map((name, index) => {
      const curve = history.curves.get(keyOf(task, "step", name));
      return { curve, label: name, index };
    }).filter(({ curve }) => curve?.points.some(([, , seconds]) => seconds > 0));
  const chart = (task) => ({
    title: `A step of ${task}`,
    format: stepTime,
    isStack: true,
    curves: partsOf(task),
  });
  return { charts: shown.map(chart), more };
}

function perTask(history, kind, name, title, format) {
  const all = history.of(kind, name).map((curve) => ({ curve, label: curve.task, dashed: false }));
  return { title, format, ...someOf(all, "task") };
}

/** Return as many curves as can be told apart, and how many `noun`s are left out. */
function someOf(all, noun) {
  const more = all.length - MOST_LINES;
  return {
    curves: all.slice(0, MOST_LINES),
    more: more > 0 ? `and ${plural(more, `more ${noun}`)}` : "",
  };
}
