// Elements without a name, headings out of order, ids used twice, missing landmarks.
const name = (node) =>
  node.getAttribute("aria-label") || node.labels?.[0]?.textContent || node.innerText || node.title;
const problems = [
  ...document.querySelectorAll("a[href], button, input, select, figure, [role=region], dialog"),
]
  .filter(
    (node) =>
      node.checkVisibility() && !name(node)?.trim() && !node.getAttribute("aria-labelledby"),
  )
  .map((node) => `without a name: ${node.outerHTML.slice(0, 80)}`);
const levels = [...document.querySelectorAll("h1, h2, h3")]
  .filter((one) => one.checkVisibility())
  .map((one) => Number(one.tagName[1]));
if (levels.filter((level) => level === 1).length !== 1) problems.push("not one h1");
levels.forEach(
  (level, place) =>
    place &&
    level > levels[place - 1] + 1 &&
    problems.push(`h${level} after h${levels[place - 1]}`),
);
const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
if (new Set(ids).size < ids.length) problems.push("an id is used twice");
for (const node of document.querySelectorAll("[aria-labelledby], [aria-describedby]")) {
  const id = node.getAttribute("aria-labelledby") ?? node.getAttribute("aria-describedby");
  if (!document.getElementById(id)) problems.push(`no element ${id}`);
}
for (const role of ["main", "header", "footer", "nav"])
  if (!document.querySelector(role)) problems.push(`no ${role}`);
return problems;
