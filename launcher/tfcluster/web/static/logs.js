// The log lines of a run: only what is on the screen is in the page, only what was scrolled to is read.

import { byId, el, oncePerFrame, syncRows, write } from "./dom.js";
import { bytes, clock, plural } from "./formats.js";
import { get } from "./live.js";

const ROW = 20; // px, as in the style sheet: equal heights place any line without measuring
const PAGE = 500; // lines a request
const MOST = 20_000; // lines kept; beyond that those at the other end are read again when needed
const NEAR = 40; // lines from an end at which more are read
const FAR = 2_000_000; // bytes behind the end at which a follower goes to the newest lines
const MOST_CHARACTERS = 4000; // of one line
const COLOURS = 6;

export class LogView {
  constructor(run) {
    Object.assign(this, { run, view: byId("log-view"), pages: [], lines: [], isAtEnd: true });
    this.space = this.view.firstElementChild;
    this.rows = this.space.firstElementChild;
    this.generation = 0;
    this.isLoading = false;
    this.hasGrown = false;
    this.isFollowing = true;
    this.tasks = [];
    this.draw = oncePerFrame(() => this.render());
    this.view.addEventListener("scroll", () => this.scrolled(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(this.view);
    for (const id of ["log-task", "log-attempt", "log-native"])
      byId(id).addEventListener("change", () => this.restart());
    byId("log-text").addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.restart(), 200);
    });
    byId("log-text").form.addEventListener("submit", (event) => event.preventDefault());
    byId("log-start").addEventListener("click", () => this.restart("start"));
    byId("log-follow").addEventListener("click", () =>
      this.isFollowing ? this.follow(false) : this.restart("end"),
    );
    this.restart();
  }

  /** Offer the run's tasks and attempts as filters. */
  offer(tasks, attempts) {
    if (tasks.length !== this.tasks.length) this.rows.replaceChildren(); // their colours change
    this.tasks = tasks;
    this.draw();
    offerValues(
      byId("log-task"),
      "All tasks",
      tasks.map((task) => [task, task]),
    );
    offerValues(
      byId("log-attempt"),
      "Newest attempt",
      Array.from({ length: attempts }, (_, index) => [`${index + 1}`, `Attempt ${index + 1}`]),
    );
    byId("log-attempt").parentElement.hidden = attempts < 2;
    byId("log-task").parentElement.hidden = tasks.length < 2;
  }

  follow(isOn) {
    this.isFollowing = isOn;
    byId("log-follow").setAttribute("aria-pressed", isOn);
  }

  /** Read anew from the `start` or the `end`, with the present filters. */
  restart(from = "end") {
    this.generation += 1;
    this.isLoading = false;
    Object.assign(this, { pages: [], lines: [], from, isAtEnd: false });
    this.follow(from === "end");
    this.load(from === "end");
  }

  /** Say that there are new lines. */
  grown() {
    this.isAtEnd = false;
    this.hasGrown = true; // the answer to a request under way may be older
    if (this.isFollowing || this.isNear(false)) this.load(false);
  }

  url(cursor, isBackward) {
    const words = new URLSearchParams({
      offset: cursor,
      direction: isBackward ? "backward" : "forward",
      lines: PAGE,
      native: byId("log-native").checked ? 1 : 0,
    });
    for (const [name, id] of [
      ["task", "log-task"],
      ["attempt", "log-attempt"],
      ["grep", "log-text"],
    ]) {
      if (byId(id).value) words.set(name, byId(id).value);
    }
    return `/api/runs/${encodeURIComponent(this.run)}/logs?${words}`;
  }

  async load(isBackward) {
    const cursor = this.pages.length
      ? isBackward
        ? this.pages[0].before
        : this.pages.at(-1).after
      : this.from;
    if (this.isLoading || cursor === null || (!isBackward && this.isAtEnd)) return;
    const generation = this.generation;
    this.isLoading = true;
    this.hasGrown = false;
    try {
      const page = await get(this.url(cursor, isBackward));
      if (generation !== this.generation) return;
      this.isLoading = false;
      this.take(page, isBackward);
    } catch (error) {
      if (generation === this.generation) {
        this.isLoading = false;
        write(byId("log-note"), `The lines could not be read: ${error.message}`);
      }
    }
  }

  take(page, isBackward) {
    const isFirst = this.pages.length === 0;
    const last = this.pages.at(-1);
    if (isBackward) this.pages.unshift(page);
    else if (last && last.lines.length + page.lines.length < PAGE) {
      last.lines.push(...page.lines);
      last.hidden += page.hidden;
      last.after = page.after;
    } else this.pages.push(page);
    if (isBackward ? isFirst : true) this.isAtEnd = page.at_end && !this.hasGrown;
    const dropped = this.forget(isBackward);
    this.lines = this.pages.flatMap((one) => one.lines);
    this.space.style.height = `${this.lines.length * ROW}px`;
    this.view.style.setProperty("--lines", this.lines.length);
    if (isFirst && !this.isFollowing) this.view.scrollTop = 0;
    else if (!isFirst)
      this.view.scrollTop += ((isBackward ? page.lines.length : 0) - dropped) * ROW;
    this.shownTop = this.view.scrollTop; // so that `scrolled` takes none of this for the reader's
    this.draw();
    this.showNote();
    const isFar = !isBackward && this.isFollowing && page.behind > FAR;
    if (isFar && !byId("log-text").value) this.restart("end"); // a search would begin anew
    else if (this.isSearching && !(isBackward && this.isBehind)) this.load(true);
    else if (this.isBehind) this.load(false);
  }

  /** Whether so few lines were found that earlier ones are read. */
  get isSearching() {
    return this.lines.length < NEAR && this.pages[0]?.before !== null;
  }

  get isBehind() {
    return !this.isAtEnd && (this.isFollowing || this.isNear(false));
  }

  /** Drop pages at the end that the user has left; return how many lines above went. */
  forget(isBackward) {
    let [total, above] = [this.pages.reduce((sum, page) => sum + page.lines.length, 0), 0];
    while (total > MOST && this.pages.length > 1) {
      const page = isBackward ? this.pages.pop() : this.pages.shift();
      total -= page.lines.length;
      if (isBackward) this.isAtEnd = false;
      else above += page.lines.length;
    }
    return above;
  }

  isNear(isBackward) {
    const { scrollTop, clientHeight, scrollHeight } = this.view;
    return isBackward
      ? scrollTop < NEAR * ROW
      : scrollHeight - scrollTop - clientHeight < NEAR * ROW;
  }

  scrolled() {
    const { scrollTop, clientHeight, scrollHeight } = this.view;
    const isAtBottom = scrollHeight - scrollTop - clientHeight < ROW;
    if (this.isFollowing && !isAtBottom && scrollTop < this.shownTop - 2) this.follow(false);
    else if (!this.isFollowing && isAtBottom && this.isAtEnd && scrollTop > this.shownTop)
      this.follow(true);
    this.shownTop = scrollTop;
    this.draw();
  }

  render() {
    if (this.isFollowing) this.view.scrollTop = this.lines.length * ROW;
    this.shownTop = this.view.scrollTop;
    const first = Math.max(0, Math.floor(this.view.scrollTop / ROW) - 10);
    const shown = this.lines.slice(first, first + Math.ceil(this.view.clientHeight / ROW) + 20);
    this.rows.style.transform = `translateY(${first * ROW}px)`;
    syncRows(
      this.rows,
      shown,
      (line) => `${line.attempt}/${line.task}:${line.offset}`,
      (line) => this.row(line),
      () => {},
    );
    if (!this.pages.length) return;
    if (!this.isFollowing && this.isNear(true)) this.load(true);
    if (this.isNear(false)) this.load(false);
  }

  row(line) {
    const number = Math.max(0, this.tasks.indexOf(line.task));
    const text =
      line.text.length > MOST_CHARACTERS ? line.text.slice(0, MOST_CHARACTERS) : line.text;
    const size = line.cut ?? (text.length < line.text.length ? line.text.length : null);
    return el(
      "div",
      { class: "log-line" },
      line.time && el("time", {}, clock(line.time).slice(-8)),
      el("span", { class: "log-task", "data-colour": (number % COLOURS) + 1 }, line.task),
      " ",
      text,
      size && el("span", { class: "cut" }, ` … cut: the line has ${bytes(size)}`),
    );
  }

  showNote() {
    const hidden = this.pages.reduce((sum, page) => sum + page.hidden, 0);
    const none = !byId("log-text").value
      ? "No lines yet."
      : this.isSearching || !this.isAtEnd
        ? "Searching …"
        : "No line has this text.";
    write(
      byId("log-note"),
      [
        this.lines.length ? "" : none,
        hidden ? `${plural(hidden, "line")} of TensorFlow’s own left out.` : "",
      ]
        .filter(Boolean)
        .join(" "),
    );
  }
}

function offerValues(select, all, pairs) {
  if (select.options.length === pairs.length + 1) return;
  const chosen = select.value;
  select.replaceChildren(
    el("option", { value: "" }, all),
    ...pairs.map(([value, label]) => el("option", { value }, label)),
  );
  select.value = chosen;
}
