// WCAG 2: contrast of each visible text with the nearest background that is not transparent.
const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgb = (colour) => {
  probe.clearRect(0, 0, 1, 1);
  probe.fillStyle = colour;
  probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data];
};
const part = (value) =>
  (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
const behind = (node) => {
  for (; node; node = node.parentElement) {
    const colour = rgb(getComputedStyle(node).backgroundColor);
    if (colour[3] === 255) return colour;
  }
  return [255, 255, 255, 255];
};
const poor = new Set();
for (const node of document.querySelectorAll("body *")) {
  const own = [...node.childNodes].some((one) => one.nodeType === 3 && one.textContent.trim());
  if (!own || !node.checkVisibility() || node.closest("[disabled], [aria-disabled=true], option"))
    continue;
  const [text, back] = [light(rgb(getComputedStyle(node).color)), light(behind(node))];
  const ratio = (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05);
  if (ratio < 4.5) poor.add(`${node.tagName}.${node.className}: ${ratio.toFixed(2)}`);
}
return [...poor];
