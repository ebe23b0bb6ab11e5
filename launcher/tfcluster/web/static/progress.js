// How far a run is: epoch, step, share, time left; for the table of runs and for a run's page.

import { count, duration } from "./formats.js";
import { isFinal, now } from "./live.js";

const KINDS = {
  succeeded: "good",
  failed: "bad",
  timed_out: "bad",
  damaged: "bad",
  lost: "bad",
  interrupted: "warn",
  stalled: "warn",
  suspended: "warn",
  restarting: "warn",
  stopping: "warn",
  queued: "warn",
  stopped: "warn",
};

/** Return the kind of a state of a run or a task, which decides its colour. */
function kindOf(status) {
  return KINDS[status] ?? (status === "waiting" ? "" : "live");
}

export function statusText(status) {
  return String(status).replaceAll("_", " ");
}

export function showStatus(element, status, text = statusText(status)) {
  if (element.textContent !== text) element.textContent = text;
  element.dataset.kind = kindOf(status);
}

/** Return `no step for 50 s: worker:1 is in …` of a stalled run; empty for all others. */
export function stallText(stall) {
  if (!stall) return "";
  return [`no step for ${duration(now() - stall.since)}`, stall.what]
    .filter(Boolean)
    .join(": ");
}

/** Return `epoch 2/3 · step 120/360`; `total unknown` where it is. */
export function position({ step, total_steps: total, epoch, epochs }, { isLong = false } = {}) {
  const parts = [];
  if (epoch != null)
    parts.push(`epoch ${epochs ? `${count(epoch)}/${count(epochs)}` : count(epoch)}`);
  if (step != null)
    parts.push(
      `step ${count(step)}${total ? `/${count(total)}` : isLong && !epochs ? ", total unknown" : ""}`,
    );
  return parts.join(" · ");
}

/** Set a bar of `share` (null: unknown) and the state's colour. */
export function showBar(bar, done, status) {
  bar.hidden = done === null && status !== "succeeded";
  const percent = Math.round(100 * (status === "succeeded" ? 1 : (done ?? 0)));
  bar.firstElementChild.style.width = `${percent}%`;
  bar.dataset.kind = isFinal(status) ? kindOf(status) : "live";
  if (bar.hasAttribute("aria-valuemin")) bar.setAttribute("aria-valuenow", percent);
}
