// Numbers as people read them, in the same words as the terminal (ui/formats.py).

/** Return `0.8 s`, `12 s`, `3 min 05 s`, `2 h 07 min` or `3 d 4 h`. */
export function duration(seconds) {
  if (seconds == null || !isFinite(seconds)) return "";
  if (seconds < 9.95) return `${Math.max(seconds, 0).toFixed(1)} s`;
  const whole = Math.round(seconds);
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** Return the time of a step: `3.42 ms`, `182 ms`, `1.2 s`. */
export function stepTime(seconds) {
  if (seconds == null) return "";
  return seconds < 0.9995 ? `${+(1000 * seconds).toPrecision(3)} ms` : duration(seconds);
}

/** Return `512 B`, `1.5 MB`, `12 GB`: powers of ten. */
export function bytes(count) {
  if (count == null) return "";
  let unit = "B";
  for (const larger of ["kB", "MB", "GB", "TB"]) {
    if (count < 999.5) break;
    [count, unit] = [count / 1000, larger];
  }
  return `${count < 9.95 && unit !== "B" ? count.toFixed(1) : Math.round(count)} ${unit}`;
}

/** Return a rate such as `41.2`, or an empty string if it is not known. */
export function rate(value) {
  if (value == null) return "";
  if (value >= 99.95) return count(value);
  return value < 9.995 ? value.toFixed(2) : value.toFixed(1);
}

export function count(value) {
  return value == null ? "" : Math.round(value).toLocaleString("en-US");
}

/** Return a metric with four digits, or `digits`; NaN and infinities are the words of the JSON. */
export function metric(value, digits = 4) {
  const number = Number(value);
  if (value == null) return "";
  if (!isFinite(number)) return Number.isNaN(number) ? "NaN" : number > 0 ? "∞" : "−∞";
  if (number !== 0 && (Math.abs(number) < 1e-3 || Math.abs(number) >= 1e6))
    return number.toExponential(digits - 2);
  return String(Number(number.toPrecision(digits)));
}

export function percent(share) {
  return share == null ? "" : `${Math.round(share * 100)} %`;
}

/** Return the local time, with the date where it is not today's. */
export function clock(seconds) {
  if (seconds == null) return "";
  const at = new Date(seconds * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  const isToday = at.toDateString() === new Date().toDateString();
  return isToday
    ? time
    : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
}

const SIGNALS = {
  1: "SIGHUP",
  2: "SIGINT",
  3: "SIGQUIT",
  4: "SIGILL",
  6: "SIGABRT",
  7: "SIGBUS",
  8: "SIGFPE",
  9: "SIGKILL",
  11: "SIGSEGV",
  13: "SIGPIPE",
  15: "SIGTERM",
};

export function exit(code, signal) {
  if (signal != null) return SIGNALS[signal] ?? `signal ${signal}`;
  return code == null ? "" : `exit ${code}`;
}

export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}
