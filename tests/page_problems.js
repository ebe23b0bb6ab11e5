// Returns what is wrong with the page for somebody who sees badly, or not at all: a list of sentences.
const found = [];
const luminance = ([r, g, b]) => [r, g, b].map((c) => {
  c /= 255;
  return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
}).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const numbers = (colour) => (colour.match(/[\d.]+/g) || []).map(Number);
const background = (element) => {
  for (; element; element = element.parentElement) {
    const [r, g, b, a = 1] = numbers(getComputedStyle(element).backgroundColor);
    if (a > 0) return [r, g, b];
  }
  return [255, 255, 255];
};
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || ["TITLE", "DESC"].includes(element.tagName.toUpperCase())) continue;
  const style = getComputedStyle(element);
  const isSvg = element instanceof SVGElement;
  const pair = [numbers(isSvg ? style.fill : style.color), background(element)].map(luminance);
  const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  if (ratio < 4.5) found.push(`contrast ${ratio.toFixed(1)} of ${element.tagName}.${element.className}`);
}
const levels = [...document.querySelectorAll("h1,h2,h3,h4")].map((h) => Number(h.tagName[1]));
if (levels.filter((level) => level === 1).length !== 1) found.push("not one h1");
levels.forEach((level, i) => { if (i && level > levels[i - 1] + 1) found.push(`h${level} skips`); });
for (const svg of document.querySelectorAll("svg[role=img]")) {
  const names = svg.getAttribute("aria-labelledby").split(" ");
  if (!names.every((n) => document.getElementById(n)?.textContent)) found.push("a chart has no name");
}
for (const svg of document.querySelectorAll("svg:not([role=img]):not([aria-hidden])")) found.push("svg");
for (const input of document.querySelectorAll("input")) if (!input.labels.length) found.push("no label");
for (const table of document.querySelectorAll("table")) {
  if (!table.querySelector("th[scope]")) found.push("a table has no header");
}
const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
if (new Set(ids).size !== ids.length) found.push("an id is there twice");
if (!document.documentElement.lang) found.push("no language");
if (document.documentElement.scrollWidth > innerWidth) found.push("the page scrolls sideways");
return [...new Set(found)];
