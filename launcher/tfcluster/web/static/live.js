// The connection to the server: JSON requests, and server-sent events that survive interruptions.
// A page that is one file has no server, but its data inside.

import { byId, write } from "./dom.js";

const FINAL = new Set(["succeeded", "failed", "timed_out", "interrupted", "lost", "damaged"]);
const LONGEST_PAUSE_MS = 10_000;

export function isFinal(status) {
  return FINAL.has(status);
}

/** The data of a page that is one file; null for a page of a server. */
export const inside = JSON.parse(byId("data")?.textContent ?? "null");

/** Return the time for which the page shows its run, seconds since 1970. */
export function now() {
  return inside?.made_at ?? Date.now() / 1000;
}

/** Return the JSON of a GET; throws Refused with the server's message if it refuses. */
export async function get(url) {
  const answer = await fetch(url, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Refused(await problem(answer));
  return answer.json();
}

export async function post(url, body) {
  const answer = await fetch(url, {
    method: "POST",
    headers: {
      "Content-Type": "application/json",
      "X-CSRF-Token": document.querySelector("meta[name=csrf]").content,
    },
    body: JSON.stringify(body),
  });
  if (!answer.ok) throw new Refused(await problem(answer));
  return answer.json();
}

/** The error for a request that the server answered with its reason; a retry would not help. */
class Refused extends Error {}

async function problem(answer) {
  const text = await answer.text();
  try {
    const { error, fix } = JSON.parse(text);
    return fix ? `${error}; ${fix}` : error;
  } catch {
    return text || `the server answered ${answer.status}`;
  }
}

/**
 * Listens to a stream of events until `close`.
 *
 * `refresh` (async) reads the whole state: at the start, after an interruption, and when the server
 * says that events were left out. What arrives meanwhile is handled after it, as its answer may be
 * older. A hidden page closes its connection: browsers allow few of them to one server, and nobody
 * looks.
 */
export class Live {
  constructor(url, { refresh, handlers }) {
    Object.assign(this, { url, refresh, handlers, source: null, isClosed: false, pauseMs: 500 });
    this.timer = null;
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.disconnect();
      else if (!this.source) this.connect();
    });
    this.connect();
  }

  connect() {
    if (this.isClosed || document.hidden) return;
    this.disconnect();
    const source = (this.source = new EventSource(this.url));
    let work = Promise.resolve();
    const inTurn = (handle) => {
      work = work.then(async () => {
        try {
          if (this.source === source) await handle();
        } catch (error) {
          this.failed(source, error);
        }
      });
    };
    inTurn(() => this.refresh()); // after the stream was asked for, so that no event falls between
    for (const [type, handle] of Object.entries({
      ...this.handlers,
      reload: () => this.refresh(),
    })) {
      source.addEventListener(type, (event) => {
        this.pauseMs = 500; // not when it opens: a stream may fail after its headers
        show("");
        inTurn(() => handle(event.data ? JSON.parse(event.data) : null));
      });
    }
    source.addEventListener("error", () => this.interrupted(source));
  }

  failed(source, error) {
    if (!(error instanceof Refused)) this.interrupted(source);
    else if (!this.isClosed) {
      this.close();
      show(error.message); // the run was deleted, or the server started anew with another key
    }
  }

  interrupted(source) {
    if (this.source !== source || this.isClosed) return;
    this.disconnect();
    show("Connection lost. Reconnecting …");
    this.timer = setTimeout(() => this.connect(), this.pauseMs);
    this.pauseMs = Math.min(this.pauseMs * 2, LONGEST_PAUSE_MS);
  }

  disconnect() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  /** End for good: the run is over and its page shows the final state. */
  close() {
    this.isClosed = true;
    this.disconnect();
    show("");
  }
}

function show(message) {
  const banner = byId("connection");
  write(banner, message);
  banner.hidden = !message;
}

/** Show that something failed, with what the server said. */
export function showProblem(message) {
  write(byId("problem"), message);
  byId("problem").hidden = !message;
}
