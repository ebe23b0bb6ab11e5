// How far a run is: epoch, step, share, time left; for the table of runs and for a run's page.

import { count, duration } from "./formats.js";
import { isFinal } from "./live.js";

const KINDS = {
  succeeded: "good",
  failed: "bad",
  timed_out: "bad",
  damaged: "bad",
  lost: "bad",
  interrupted: "warn",
  restarting: "warn",
  stopping: "warn",
  queued: "warn",
  stopped: "warn",
};

/** Return the kind of a state of a run or a task, which decides its colour. */
export function kindOf(status) {
  return KINDS[status] ?? (status === "waiting" ? "" : "live");
}

export function statusText(status) {
  return String(status).replaceAll("_", " ");
}

export function showStatus(element, status, text = statusText(status)) {
  if (element.textContent !== text) element.textContent = text;
  element.dataset.kind = kindOf(status);
}

/** Return the task whose step stands for the run: the chief's, the first worker's, or the furthest. */
export function leader(tasks) {
  const stepping = tasks.filter((task) => task.step != null);
  const first = ["chief:0", "worker:0"]
    .map((name) => stepping.find((task) => task.task === name))
    .find(Boolean);
  return first ?? stepping.sort((a, b) => b.step - a.step)[0];
}

/** Return the share of the training that is done, 0 to 1; null if its length is not known. */
export function share({ step, total_steps: total, epoch, epochs }) {
  if (step != null && total > 0) return Math.min(1, step / total);
  return epoch != null && epochs > 0 ? Math.min(1, (epoch - 1) / epochs) : null;
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

export function timeLeft(task, status) {
  const speed = task.mean_steps_per_second ?? task.steps_per_second;
  if (isFinal(status) || !task.total_steps || !speed || task.step >= task.total_steps) return "";
  return duration((task.total_steps - task.step) / speed);
}

/** Set a bar of `share` (null: unknown) and the state's colour. */
export function showBar(bar, done, status) {
  bar.hidden = done === null && status !== "succeeded";
  const percent = Math.round(100 * (status === "succeeded" ? 1 : (done ?? 0)));
  bar.firstElementChild.style.width = `${percent}%`;
  bar.dataset.kind = isFinal(status) ? kindOf(status) : "live";
  if (bar.hasAttribute("aria-valuemin")) bar.setAttribute("aria-valuenow", percent);
}
