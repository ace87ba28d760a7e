// Adds ARIA labels for a slider's setting and its selected mark, which the component itself lacks.
(function () {
  "use strict";
  function name() {
    for (const thumb of document.querySelectorAll("[role=group][aria-labelledby] [role=slider]")) {
      const group = thumb.closest("[role=group]");
      const label = group.getAttribute("aria-labelledby");
      const marks = [...group.querySelectorAll(".dash-slider-mark")].map((each) => each.textContent);
      const words = marks[Math.round(Number(thumb.getAttribute("aria-valuenow")))] || "";
      if (thumb.getAttribute("aria-labelledby") !== label) thumb.setAttribute("aria-labelledby", label);
      if (words && thumb.getAttribute("aria-valuetext") !== words) thumb.setAttribute("aria-valuetext", words);
    }
  }
  const watch = { subtree: true, childList: true, attributes: true, attributeFilter: ["aria-valuenow"] };
  new MutationObserver(name).observe(document.documentElement, watch);
})();
