// Line charts on uPlot, with a text alternative, the keyboard, both themes, and gaps for NaN.

import { byId, el, oncePerFrame, write } from "./dom.js";
import { metric, percent, plural, rate } from "./formats.js";

const HEIGHT = 180;
const SERIES = 6;
const LOGARITHMIC = 1000; // the ratio of a metric's greatest to its least value
const CONSTANT = 1e-6; // the relative difference of values that only rounding makes differ
const charts = new Set();
const colours = new Map();

/** Return the colour that a variable of the style sheet has in the present theme. */
function colour(name) {
  if (!colours.has(name)) {
    const probe = el("span");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    colours.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return colours.get(name);
}

function redrawAll() {
  colours.clear();
  for (const chart of charts) chart.rebuild();
}
document.addEventListener("themechange", redrawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);

/** Return what the user chose earlier, in any page of this server; null without a choice. */
function remembered(name) {
  try {
    return localStorage.getItem(`tfcluster-${name}`);
  } catch {
    return null; // storage may be forbidden
  }
}

function remember(name, value) {
  try {
    localStorage.setItem(`tfcluster-${name}`, value);
  } catch {
    // The choice then holds for this page only.
  }
}

const slider = byId("smoothing"); // null in a page without metrics
if (slider) {
  const showWeight = () => write(slider.nextElementSibling, slider.value);
  slider.value = remembered("smoothing") ?? 0;
  showWeight();
  slider.addEventListener("input", () => {
    remember("smoothing", slider.value);
    showWeight();
    for (const chart of charts) chart.choose();
  });
}

/** Return the name of the colour of the series `index`. */
export function seriesColour(index) {
  return `series-${(index % SERIES) + 1}`;
}

/**
 * One chart: a figure with a caption of latest values, the plot, and a table for screen readers.
 *
 * A line is `{label, colour, dashed, faint, points}`; a point is `[x, y]` with y null where the
 * value is not finite, which leaves a gap and a cross. A mark is `{x, kind}`, with kind `restart`,
 * `checkpoint` or `failure`. Lines with one label are one curve in parts; the last one is named.
 * `bars` of a line, `[x, low, high]`, are the ranges that its values may have; `gaps` are the x at which
 * it is interrupted. Of a stack, each line is drawn as an area on top of the lines before it.
 *
 * A chart of metrics has a button for a logarithmic axis; smoothed, its lines stay faintly visible.
 */
class Chart {
  constructor(title, format, isStack = false) {
    Object.assign(this, {
      title,
      format,
      isStack,
      lines: [],
      marks: [],
      axis: "step",
      columns: [[]],
      plot: null,
    });
    this.where = el("span", { class: "where" });
    this.keys = el("span", { class: "keys" });
    this.logButton =
      format === metric &&
      el(
        "button",
        {
          class: "quiet log",
          type: "button",
          "aria-label": `Logarithmic axis of ${title}`,
          onclick: () => {
            remember(`axis of ${title}`, (this.scale = this.isLogarithmic ? "linear" : "log"));
            this.choose();
          },
        },
        "log",
      );
    this.scale = format === metric ? remembered(`axis of ${title}`) : null;
    this.place = el("div", { class: "plot", "aria-hidden": "true" });
    this.table = el("table");
    this.reading = el("p", { class: "hidden", role: "status" });
    this.root = el(
      "figure",
      {
        class: "chart",
        tabindex: "0",
        "aria-label": `Chart of ${title}. Left and right arrow keys read its values.`,
        onkeydown: (event) => this.key(event),
        onblur: () => this.select(null),
      },
      el("figcaption", {}, el("strong", {}, title), this.where, this.logButton, this.keys),
      this.place,
      el("div", { class: "hidden" }, this.table, this.reading),
    );
    this.isZoomed = false;
    this.draw = oncePerFrame(() => this.render());
    this.resize = new ResizeObserver(() => this.fit());
    this.resize.observe(this.place);
    charts.add(this);
  }

  /** Draw these lines; `extent` are the first and last x of all charts of the page. */
  show(lines, marks, axis, extent) {
    const shape = (all) => all.map((line) => [line.label, line.colour, line.dashed, line.faint]);
    const isSame =
      this.axis === axis && JSON.stringify(shape(lines)) === JSON.stringify(shape(this.lines));
    if (!isSame) this.discard();
    Object.assign(this, { lines, marks, axis, extent });
    this.choose();
  }

  /** Draw the lines with the axis and the smoothing that the user has chosen. */
  choose() {
    const isMetric = this.format === metric;
    const [least, most] = rangeOfAll(this.lines);
    const isLogarithmic =
      isMetric &&
      most > 0 &&
      (this.scale ? this.scale === "log" : least > 0 && most > LOGARITHMIC * least);
    const weight = isMetric && slider ? slider.valueAsNumber : 0;
    if (isLogarithmic !== this.isLogarithmic || weight > 0 !== this.weight > 0) this.discard();
    Object.assign(this, { isLogarithmic, weight });
    if (isMetric) {
      this.logButton.hidden = !(most > 0);
      this.logButton.setAttribute("aria-pressed", isLogarithmic);
    }
    this.draw();
  }

  remove() {
    charts.delete(this);
    this.resize.disconnect();
    this.discard();
    this.root.remove();
  }

  rebuild() {
    this.discard();
    this.draw();
  }

  discard() {
    this.plot?.destroy();
    this.plot = null;
    this.isZoomed = false;
    this.cursor = null;
  }

  fit() {
    const width = this.place.clientWidth;
    if (this.plot && width && width !== this.plot.width)
      this.plot.setSize({ width, height: HEIGHT });
    else if (!this.plot) this.draw();
  }

  render() {
    this.drawn = this.weight
      ? [
          ...this.lines.map((line) => ({ ...line, isRaw: true })),
          ...this.lines.map((line) => ({ ...line, points: smooth(line.points, this.weight) })),
        ]
      : this.lines;
    this.columns = align(this.drawn, this.extent);
    this.describe(null);
    this.fillTable();
    const data = this.isStack ? stack(this.columns) : this.columns;
    if (this.plot) this.plot.setData(data, !this.isZoomed);
    else if (this.place.clientWidth) this.plot = new uPlot(this.options(), data, this.place);
  }

  options() {
    const highest = Math.max(0, ...this.lines.flatMap(barsOf).map(([, , high]) => high));
    const axis = {
      stroke: colour("muted"),
      font: "11px system-ui, sans-serif",
      grid: { stroke: colour("line"), width: 1 },
      ticks: { show: false },
    };
    return {
      width: this.place.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      cursor: { sync: { key: "tfcluster" }, points: { size: 6 }, drag: { x: true, y: false } },
      scales: {
        x: { time: false },
        y:
          this.format === metric
            ? this.isLogarithmic
              ? { distr: 3 }
              : { range: (_, least, most) => rangeOfAxis(least, most) }
            : { range: (_, least, most) => [0, 1.1 * Math.max(most, highest) || 1] },
      },
      axes: [
        {
          ...axis,
          size: 24,
          space: 60,
          values: (_, all) => all.map(this.axis === "time" ? timeTick : tick),
          ...(this.axis !== "step" && { incrs: this.axis === "time" ? TIME_STEPS : WHOLE_STEPS }),
        },
        {
          ...axis,
          size: (_, all) => 14 + 6.5 * Math.max(3, ...(all ?? []).map((one) => one.length)),
          values: (_, all) =>
            [metric, rate].includes(this.format) ? labelTicks(all) : all.map(this.format),
          ...(this.format === percent && { incrs: WHOLE_PERCENTS }),
        },
      ],
      series: [{}, ...this.drawn.map((line) => this.series(line))],
      bands: this.isStack ? this.lines.slice(1).map((_, i) => ({ series: [i + 2, i + 1] })) : [],
      hooks: {
        draw: [(plot) => this.drawMarks(plot)],
        setCursor: [(plot) => this.describe(plot.cursor.idx)],
        setSelect: [(plot) => (this.isZoomed = plot.select.width > 0)],
        ready: [(plot) => plot.over.addEventListener("dblclick", () => (this.isZoomed = false))],
      },
    };
  }

  series(line) {
    const stroke = colour(line.colour);
    return {
      stroke,
      width: this.isStack ? 1 : 1.75,
      alpha: (line.faint ? 0.4 : 1) * (line.isRaw ? 0.35 : 1),
      dash: line.dashed ? [3, 3] : undefined,
      ...(this.isStack
        ? { fill: stroke.replace(")", ", 0.25)"), points: { show: line.points.length < 2 } }
        : { points: { size: 5, fill: stroke } }),
    };
  }

  drawMarks(plot) {
    const { ctx, bbox } = plot;
    const scale = devicePixelRatio;
    const at = (x) => Math.round(plot.valToPos(x, "x", true));
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left - 6 * scale, bbox.top, bbox.width + 12 * scale, bbox.height);
    ctx.clip();
    ctx.lineWidth = 1.25 * scale;
    for (const mark of this.marks) {
      const x = at(mark.x);
      if (mark.kind === "checkpoint") drawTriangle(ctx, x, bbox.top + bbox.height, 5 * scale);
      else drawUpright(ctx, x, bbox, mark.kind === "failure" ? "bad" : "warn", scale);
    }
    if (this.isStack) this.drawNames(plot);
    for (const line of this.isStack ? [] : this.lines) {
      ctx.strokeStyle = colour(line.colour);
      for (const [x, low, high] of barsOf(line))
        drawBar(ctx, at(x), plot.valToPos(low, "y", true), plot.valToPos(high, "y", true), 4 * scale);
      let last = -Infinity;
      for (const [x, y] of line.points) {
        if (y !== null || at(x) - last < 8 * scale) continue;
        last = at(x);
        drawCross(ctx, last, bbox.top + 7 * scale, 3.5 * scale);
      }
    }
    ctx.restore();
  }

  /** Write the names of the areas into their ends, where they are high enough. */
  drawNames(plot) {
    const { ctx, bbox } = plot;
    const size = 11 * devicePixelRatio;
    Object.assign(ctx, {
      font: `${size}px system-ui, sans-serif`,
      fillStyle: colour("text"),
      textAlign: "right",
      textBaseline: "middle",
    });
    const [end, bottom] = [bbox.left + bbox.width - size / 2, bbox.top + bbox.height];
    const last = plot.posToIdx(plot.over.clientWidth);
    const heights = plot.data.slice(1).map((sums) => plot.valToPos(sums[last] ?? 0, "y", true));
    this.lines.forEach(({ label }, index) => {
      const [low, high] = [heights[index - 1] ?? bottom, heights[index]];
      if (low - high >= 1.3 * size) ctx.fillText(label, end, (low + high) / 2);
    });
  }

  /** Show the values at `index` of the data, or the latest ones. */
  describe(index) {
    const shown = new Map();
    this.lines.forEach((line, place) => {
      const value = index == null ? line.latest : this.valueNear(place + 1, index);
      if (value === undefined) return;
      const last = this.columns[0].length - 1;
      const average = this.weight
        ? this.valueNear(this.lines.length + place + 1, index ?? last)
        : null;
      shown.set(line.label, { line, value, average });
    });
    const sum = [...shown.values()].reduce((total, { value }) => total + Number(value), 0);
    const keys = [...shown.values()].map(({ line, value, average }) => {
      const sample = el("i", { class: line.dashed ? "dashed" : "" });
      sample.style.borderColor = `var(--${line.colour})`;
      const [text, rest] = this.isStack
        ? [percent(value / (sum || 1)), ` ${this.text(value)}`]
        : [this.text(value), average == null ? "" : `, smoothed ${metric(average)}`];
      return el("span", { class: "key" }, sample, `${line.label} `, el("b", {}, text), rest);
    });
    this.keys.replaceChildren(...keys, this.more ?? "");
    const where = [index == null ? "" : this.whereText(index), this.isStack && this.text(sum)];
    write(this.where, where.filter(Boolean).join(": "));
  }

  text(value) {
    return typeof value === "string" ? value : value === null ? "not a number" : this.format(value);
  }

  whereText(index) {
    const x = this.columns[0][index];
    if (this.axis === "workers") return plural(x, "worker");
    return this.axis === "time" ? `at ${timeTick(x)}` : `at step ${tick(x)}`;
  }

  /** Return the value of a line at `index`, or the last one before it: lines have points of their own. */
  valueNear(place, index) {
    const values = this.columns[place];
    const isGap = (value) => value === undefined || (this.isStack && value === null);
    for (let at = index; at >= 0; at -= 1) if (!isGap(values[at])) return values[at];
    return undefined;
  }

  fillTable() {
    const rows = this.lines
      .filter((line) => !line.faint)
      .map((line) => {
        const known = line.points.map((point) => point[1]).filter((value) => value !== null);
        const [least, most] = known.length
          ? [Math.min(...known), Math.max(...known)]
          : [null, null];
        const cells = [line.latest, least, most].map((value) =>
          el("td", {}, this.text(value ?? null)),
        );
        return el(
          "tr",
          {},
          el("th", { scope: "row" }, line.label),
          cells,
          el("td", {}, line.points.length - known.length),
        );
      });
    const heads = ["Curve", "Latest", "Least", "Greatest", "Points that are not numbers"];
    this.table.replaceChildren(
      el("caption", {}, this.title),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          heads.map((head) => el("th", { scope: "col" }, head)),
        ),
      ),
      el("tbody", {}, rows),
    );
  }

  key(event) {
    const last = this.columns[0].length - 1;
    if (!this.plot || last < 0) return;
    const moves = {
      ArrowLeft: -1,
      ArrowRight: 1,
      PageUp: -10,
      PageDown: 10,
      Home: -Infinity,
      End: Infinity,
    };
    if (event.key === "Escape") this.select(null);
    else if (event.key in moves) {
      const from = this.cursor ?? last + (moves[event.key] < 0 ? 1 : 0);
      this.select(Math.max(0, Math.min(last, from + moves[event.key])));
    } else return;
    event.preventDefault();
  }

  select(index) {
    if (!this.plot || (index === null && this.cursor == null)) return;
    this.cursor = index;
    const left = index === null ? -10 : this.plot.valToPos(this.columns[0][index], "x");
    this.plot.setCursor({ left, top: index === null ? -10 : 10 });
    this.describe(index);
    const spoken = [this.where, ...this.keys.children].map((part) => part.textContent);
    write(this.reading, index === null ? "" : spoken.join(", "));
  }
}

const shown = new Map();

/** Show `{title, format, isStack, lines, more}` as the charts in `place`, in this order, no others. */
export function showCharts(place, wanted, marks, axis) {
  const extent = extentOf(wanted.flatMap(({ lines }) => lines));
  const inPlace = shown.get(place) ?? new Map();
  shown.set(place, inPlace);
  wanted.forEach(({ title, format, isStack, lines, more }, index) => {
    if (!inPlace.has(title)) inPlace.set(title, new Chart(title, format, isStack));
    const chart = inPlace.get(title);
    chart.more = more;
    if (place.children[index] !== chart.root)
      place.insertBefore(chart.root, place.children[index]);
    chart.show(lines, marks, axis, extent);
  });
  const titles = wanted.map(({ title }) => title);
  for (const [title, chart] of inPlace) {
    if (titles.includes(title)) continue;
    chart.remove();
    inPlace.delete(title);
  }
}

/** Return the axis that the user has chosen, `step` or `time`. */
export function chosenAxis() {
  return document.querySelector("input[name=axis]:checked").value;
}

export function onAxisChange(redraw) {
  for (const input of document.querySelectorAll("input[name=axis]"))
    input.addEventListener("change", redraw);
}

/** Return the first and last x of all lines of a page. */
function extentOf(lines) {
  const xs = lines.flatMap((line) => line.points.map((point) => point[0]));
  return xs.length
    ? [xs.reduce((a, b) => Math.min(a, b)), xs.reduce((a, b) => Math.max(a, b))]
    : [];
}

/** Return uPlot's columns: all x, then for each line its y, undefined where it has no point. */
function align(lines, extent) {
  const all = lines.flatMap((line) => [...line.points.map((point) => point[0]), ...gapsOf(line)]);
  const xs = [...new Set([...extent, ...all])].sort((a, b) => a - b);
  const place = new Map(xs.map((x, index) => [x, index]));
  const columns = lines.map((line) => {
    const ys = new Array(xs.length).fill(undefined);
    for (const [x, y] of [...line.points, ...gapsOf(line).map((x) => [x, null])])
      ys[place.get(x)] = y;
    return ys;
  });
  return [xs, ...columns];
}

/** Return the columns with each y as the sum of those up to its own. */
function stack([xs, ...columns]) {
  const sums = new Array(xs.length).fill(0);
  const isKnown = (y) => y !== undefined && y !== null;
  return [xs, ...columns.map((ys) => ys.map((y, i) => (isKnown(y) ? (sums[i] += y) : y)))];
}

function barsOf(line) {
  return line.bars ?? [];
}

function gapsOf(line) {
  return line.gaps ?? [];
}

/** Return the least and the greatest value of all lines; infinities where no value is finite. */
function rangeOfAll(lines) {
  let [least, most] = [Infinity, -Infinity];
  for (const { points } of lines) {
    for (const [, y] of points) {
      if (y === null) continue;
      if (y < least) least = y;
      if (y > most) most = y;
    }
  }
  return [least, most];
}

/** Return the ends of a linear axis for values in a range; around a constant, a tenth of it. */
function rangeOfAxis(least, most) {
  if (least === null) return [null, null];
  const size = Math.max(Math.abs(least), Math.abs(most));
  if (most - least > CONSTANT * size) return uPlot.rangeNum(least, most, 0.1, true);
  const room = 0.1 * (size || 1);
  return [least - room, most + room];
}

/** Return the labels of ticks: with four digits, or with as many more as tell them apart. */
export function labelTicks(values) {
  for (let digits = 4; ; digits += 1) {
    const labels = values.map((value) => metric(value, digits));
    const known = labels.filter(Boolean);
    if (new Set(known).size === known.length || digits === 15) return labels;
  }
}

/**
 * Return points with the exponential moving average of their values; `weight` is that of the past.
 *
 * As in TensorBoard, it is divided by the sum of its weights, so that it does not begin near 0. In this
 * form of the sum, the average of a constant is exactly that constant.
 */
export function smooth(points, weight) {
  let [average, past] = [0, 1];
  return points.map(([x, y]) => {
    if (y === null) return [x, y];
    past *= weight;
    average += ((y - average) * (1 - weight)) / (1 - past);
    return [x, average];
  });
}

const WHOLE_STEPS = [1, 2, 5, 10, 20, 50];
const WHOLE_PERCENTS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5];
const TIME_STEPS = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400,
];

function tick(value) {
  if (Math.abs(value) >= 1e6) return `${+(value / 1e6).toFixed(2)}M`;
  return Math.abs(value) >= 1e4 ? `${+(value / 1e3).toFixed(1)}k` : `${+value.toFixed(2)}`;
}

function timeTick(seconds) {
  const whole = Math.round(seconds);
  const [hours, minutes, rest] = [
    Math.floor(whole / 3600),
    Math.floor((whole % 3600) / 60),
    whole % 60,
  ];
  if (hours >= 48) return `${+(hours / 24).toFixed(1)} d`;
  if (hours) return `${hours}:${String(minutes).padStart(2, "0")} h`;
  return whole >= 60 ? `${minutes}:${String(rest).padStart(2, "0")} min` : `${whole} s`;
}

function drawUpright(ctx, x, bbox, name, scale) {
  ctx.strokeStyle = colour(name);
  ctx.setLineDash([4 * scale, 3 * scale]);
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.setLineDash([]);
}

function drawTriangle(ctx, x, bottom, size) {
  ctx.fillStyle = colour("good");
  ctx.beginPath();
  ctx.moveTo(x - size, bottom);
  ctx.lineTo(x, bottom - 1.6 * size);
  ctx.lineTo(x + size, bottom);
  ctx.fill();
}

function drawBar(ctx, x, low, high, size) {
  ctx.beginPath();
  ctx.moveTo(x, low);
  ctx.lineTo(x, high);
  for (const y of [low, high]) {
    ctx.moveTo(x - size, y);
    ctx.lineTo(x + size, y);
  }
  ctx.stroke();
}

function drawCross(ctx, x, y, size) {
  ctx.beginPath();
  ctx.moveTo(x - size, y - size);
  ctx.lineTo(x + size, y + size);
  ctx.moveTo(x + size, y - size);
  ctx.lineTo(x - size, y + size);
  ctx.stroke();
}
