"use strict";
// Show a tooltip at the pointer for every bar and point.
const tip = document.getElementById("tip");
document.addEventListener("pointermove", (event) => {
  const hovered = event.target.closest ? event.target.closest("[data-tip]") : null;
  tip.hidden = hovered === null;
  if (hovered === null) return;
  tip.textContent = hovered.dataset.tip;
  tip.style.left = Math.max(0, Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.max(0, event.clientY - tip.offsetHeight - 8) + "px";
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
// Remove the browser's own tooltips, which would cover this one.
for (const each of document.querySelectorAll("[data-tip] > title")) each.remove();
// A button of the legend highlights its series.
for (const button of document.querySelectorAll(".legend button")) {
  button.addEventListener("click", () => {
    const figure = button.closest("figure");
    const chosen = button.getAttribute("aria-pressed") !== "true";
    for (const each of figure.querySelectorAll(".legend button")) each.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-pressed", String(chosen));
    for (const each of figure.querySelectorAll("svg [data-s]")) {
      each.classList.toggle("faint", chosen && each.dataset.s !== button.dataset.s);
    }
  });
}
// A click on the head of a column sorts the table by it.
const figureOf = (cell) => {
  const found = parseFloat(cell.textContent.replace(/,/g, ""));
  return Number.isNaN(found) ? -Infinity : found;
};
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th");
    const body = head.closest("table").tBodies[0];
    const at = head.cellIndex;
    const words = head.classList.contains("word");
    const before = head.getAttribute("aria-sort");
    const down = before === null ? !words : before === "ascending"; // figures: the largest first
    for (const each of head.parentNode.cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].sort((a, b) => words
      ? a.cells[at].textContent.localeCompare(b.cells[at].textContent)
      : figureOf(a.cells[at]) - figureOf(b.cells[at]));
    if (down) rows.reverse();
    body.append(...rows);
  });
}
