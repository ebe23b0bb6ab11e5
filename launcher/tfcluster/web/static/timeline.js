// The timeline of a run: the server's sentences; what many tasks do alike is one line.

import { el } from "./dom.js";
import { clock, duration, plural } from "./formats.js";

const IN_GROUPS = new Set(["task_started", "task_exited"]);

/** Return `{t, at, kind, text, key}` for each line; the same event of many tasks is one line. */
export function timelineLines(timeline) {
  const lines = [];
  for (const event of timeline.filter(({ text }) => text)) {
    const isShared = IN_GROUPS.has(event.type);
    const group = isShared && `${event.type} ${event.text.replace(event.task, "")}`;
    const last = lines.at(-1);
    if (isShared && last?.group === group) last.events.push(event);
    else lines.push({ group, events: [event] });
  }
  return lines.map(({ events }) => {
    const [{ t, time, kind, task, text, seq }] = events;
    const names = events.map((event) => event.task);
    const subject = names.length > 3 ? plural(names.length, "task") : names.join(", ");
    const sentence = names.length > 1 ? text.replace(task, () => subject) : text;
    return { t, at: time, kind, text: sentence, key: `${seq}-${names.length}` };
  });
}

export function timelineRow({ t, at, kind, text }) {
  return el(
    "li",
    { "data-kind": kind },
    el(
      "time",
      { datetime: new Date(at * 1000).toISOString(), title: clock(at) },
      `+${duration(t)}`,
    ),
    el("span", {}, text),
  );
}
