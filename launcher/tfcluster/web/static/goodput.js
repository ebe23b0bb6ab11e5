// Where the time of a run went, as one bar: steps that count, and each part that is none.

import { el, syncRows, write } from "./dom.js";
import { duration } from "./formats.js";

const PARTS = {
  steps: "steps that count",
  queue: "in the queue",
  start: "start",
  restart: "restart: until the processes ran",
  restore: "restart: to the first step",
  repeated: "steps done again",
  stalled: "stalled",
  suspended: "suspended",
  other: "after the last step",
  gathering: "gathering",
};

/** Return the mean seconds that a restart cost; null without one. */
export function restartCost(goodput) {
  const costs = Object.values(goodput?.restart_cost ?? {});
  return costs.length ? costs.reduce((sum, spent) => sum + spent) : null;
}

/** Draw `goodput` of a run's state; hide the box before the first step and where there is none. */
export function showGoodput(box, goodput) {
  box.hidden = goodput?.share == null;
  if (box.hidden) return;
  const seconds = Object.entries(goodput.seconds).filter(([part]) => part in PARTS);
  const total = seconds.reduce((sum, [, spent]) => sum + spent, 0);
  const shown = seconds.filter(([, spent]) => spent >= total / 1000);
  const [bar, legend] = box.children;
  syncRows(
    bar,
    shown,
    ([part]) => part,
    ([part]) => el("span", { "data-part": part }),
    (span, [, spent]) => (span.style.flexGrow = spent / total),
  );
  syncRows(
    legend,
    shown,
    ([part]) => part,
    ([part]) => el("li", { "data-part": part }),
    (row, [part, spent]) => write(row, `${PARTS[part]} ${duration(spent)}`),
  );
}
