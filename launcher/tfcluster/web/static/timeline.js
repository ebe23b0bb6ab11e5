// The timeline of a run in sentences: attempts, restarts, checkpoints, warnings, ends.

import { el } from "./dom.js";
import { clock, count, duration, exit, plural } from "./formats.js";
import { statusText } from "./progress.js";

const step = (number) => (number == null ? "" : `step ${count(number)}`);
const joined = (...parts) => parts.filter(Boolean).join(", ");

/** Event type → its kind and sentence; types without a line are not shown. */
const SENTENCES = {
  run_started: (e) => ["live", `Run started${e.version ? ` by tfcluster ${e.version}` : ""}`],
  run_queued: (e) => ["warn", `Queued: ${e.reason}`],
  nodes_allocated: () => ["live", "Nodes allocated"],
  resumed: (e) => ["live", `Resumed from ${joined(e.run, step(e.step) || e.checkpoint)}`],
  prepare_finished: (e) =>
    e.exit_code === 0
      ? ["", `Prepared ${e.node} in ${duration(e.duration_s)}`]
      : ["bad", `Prepare failed on ${e.node}: ${exit(e.exit_code, e.signal)}`],
  task_started: (e) => ["live", `Attempt ${e.attempt}: ${e.subject} started`],
  task_error: (e) => [
    "bad",
    `${e.task}: ${joined(`${e.exception}: ${e.message}`)}${e.file ? ` (${e.file}:${e.line})` : ""}`,
  ],
  task_exited: (e) => {
    const how = `${exit(e.exit_code, e.signal)}${e.ended_by === "tfcluster" ? ", stopped by tfcluster" : ""}`;
    return [
      e.exit_code === 0 ? "good" : e.ended_by === "tfcluster" ? "" : "bad",
      `${e.subject} ended: ${how}`,
    ];
  },
  task_frozen: (e) => ["warn", `${e.task} was stopped by ${exit(null, e.signal)}`],
  task_thawed: (e) => ["", `${e.task} runs again`],
  node_lost: (e) => ["bad", `Node ${e.node} is lost: ${e.reason}`],
  node_unreachable: (e) => ["warn", `Node ${e.node} cannot be reached${e.why ? `: ${e.why}` : ""}`],
  node_reconnected: (e) => ["", `Node ${e.node} is connected again`],
  node_back: (e) => [
    "good",
    `Node ${e.node} is back: ${joined(...(e.tasks ?? []))} ${e.joins_in_s === undefined ? "can be taken in by scale-to" : "can join at a checkpoint"}`,
  ],
  stalled: (e) => [
    "warn",
    `No step for ${duration(e.silent_s)}: ${e.what || "no task reports anything"} (the stacks are in the logs)`,
  ],
  suspended: (e) => ["warn", `The run goes on, after ${duration(e.seconds)} in which it was suspended`],
  stall_ended: (e) => ["", `The run goes on, after ${duration(e.silent_s)} without a step`],
  restarting: (e) => [
    "warn",
    `Restart${e.task ? ` of ${e.task}` : ""}: attempt ${e.attempt} of ${e.of}, from ${step(e.from_step) || e.from_checkpoint || "the beginning"}: ${e.reason}`,
  ],
  chaos_injected: (e) => ["warn", `Fault injected: ${e.fault}`],
  diagnosis: (e) => [
    "bad",
    `Root cause: ${joined(e.root_cause?.task)}: ${e.root_cause?.reason ?? "unknown"}`,
  ],
  alert: (e) => ["bad", e.message],
  warned: (e) => ["warn", e.message],
  log_lost: (e) => [
    "warn",
    `${e.task}: ${plural(e.bytes, "byte")} of its log are lost: ${e.reason}`,
  ],
  checkpoint_gathered: (e) => ["good", `Checkpoint gathered: ${joined(step(e.step), e.path)}`],
  finishing: (e) => [
    "",
    `The chief has finished; waiting for ${e.tasks?.length === 1 ? e.tasks[0] : plural(e.tasks?.length ?? 0, "task")}`,
  ],
  run_stopping: (e) => ["warn", `Stopping: ${e.why}`],
  run_finished: (e) => [
    e.status === "succeeded" ? "good" : e.status === "interrupted" ? "warn" : "bad",
    `Run ended: ${statusText(e.status)}${e.reason ? `: ${e.reason}` : ""}`,
  ],
};
const IN_GROUPS = new Set(["task_started", "task_exited"]);

/** Return `{t, at, kind, text, key}` for each line; the same event of many tasks is one line. */
export function timelineLines(timeline) {
  const lines = [];
  for (const event of timeline) {
    if (!Object.hasOwn(SENTENCES, event.type)) continue;
    const same = IN_GROUPS.has(event.type) && lines.at(-1);
    const group = [event.type, event.attempt, event.exit_code, event.signal, event.ended_by].join();
    if (same && same.group === group) same.events.push(event);
    else lines.push({ group: IN_GROUPS.has(event.type) ? group : null, events: [event] });
  }
  return lines.map(({ events }) => {
    const [first] = events;
    const names = events.map((event) => event.task);
    const subject = names.length > 3 ? plural(names.length, "task") : names.join(", ");
    const [kind, text] = SENTENCES[first.type]({ ...first, subject });
    return { t: first.t, at: first.time, kind, text, key: `${first.seq}-${names.length}` };
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
