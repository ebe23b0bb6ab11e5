// Builds elements. Text from tasks, specs and hosts is hostile: it becomes text nodes, never HTML,
// and loses what would disturb a page: escape sequences, control characters, text direction.

const ESCAPES =
  /\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|\[[0-?]*[ -/]*[@-~]?|[ -/]*[0-~]?)|\x9b[0-?]*[ -/]*[@-~]?/g;
const DIRECTIONS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const CONTROLS = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;

/** Return `value` as text that is safe to show; control characters become visible pictures. */
export function clean(value) {
  return String(value)
    .replace(ESCAPES, "")
    .replace(DIRECTIONS, "")
    .replace(/[\u2028\u2029]/g, "␤")
    .replace(CONTROLS, (one) => {
      const code = one.charCodeAt(0);
      return code < 0x20 ? String.fromCharCode(0x2400 + code) : code === 0x7f ? "␡" : "�";
    });
}

/** Make an element; `attributes` may hold `class`, any attribute, and `on…` listeners. */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, clean(value));
  }
  made.append(
    ...children
      .flat()
      .filter((child) => child != null && child !== false)
      .map(asNode),
  );
  return made;
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(clean(child));
}

/** Set the text of `element` if it differs: selections stay, screen readers repeat nothing. */
export function write(element, text) {
  const cleaned = text == null ? "" : clean(text);
  if (element.textContent !== cleaned) element.textContent = cleaned;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Make the children of `parent` those of `items`, in order; rows that stay keep their focus. */
export function syncRows(parent, items, keyOf, make, update) {
  const before = new Map([...parent.children].map((row) => [row.dataset.key, row]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = clean(keyOf(item));
    let row = before.get(key);
    before.delete(key);
    if (!row) {
      row = make(item);
      row.dataset.key = key;
    }
    if (row === place) place = place.nextElementSibling;
    else parent.insertBefore(row, place);
    update(row, item);
  }
  for (const row of before.values()) row.remove();
}

/** Return a function that calls `draw` once before the next frame, however often it is called. */
export function oncePerFrame(draw) {
  let isDue = false;
  return () => {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      draw();
    });
  };
}
