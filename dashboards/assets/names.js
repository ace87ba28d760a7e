// Cuts the names inside the bars of a comparison to the width that the page has. The server, which cannot know it, cuts
// them as `timeline/bars.py` does for its own guess.
(function () {
  "use strict";
  const LETTER = 7, FEWEST = 4;  // pixels; letters

  const plainly = (text) => new DOMParser().parseFromString(text, "text/html").documentElement.textContent;
  const safe = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

  function cut(name, room) {
    const whole = plainly(name);
    return room < FEWEST ? "" : whole.length <= room ? name : safe(whole.slice(0, room - 1)) + "\u2026";
  }

  function fit(plot) {
    const axis = plot._fullLayout.xaxis, wide = Math.round(axis._length), [left, right] = axis.range;
    if (plot.namedFor === wide) return;
    plot.namedFor = wide;
    const texts = [], traces = [];
    plot._fullData.forEach((trace, at) => {
      const names = trace.type === "bar" && plot.data[at].text ? plot.data[at].hovertext : null;
      if (!names) return;
      traces.push(at);
      texts.push(names.map((name, each) => {
        const end = Math.min(trace.base[each] + trace.x[each], right);
        return trace.base[each] < left ? "" : cut(name, Math.floor((end - trace.base[each]) / (right - left) * wide / LETTER));
      }));
    });
    if (traces.length) window.Plotly.restyle(plot, { text: texts }, traces);
  }

  new MutationObserver(() => {
    const plot = document.querySelector("#compare-timelines .js-plotly-plot");
    if (!plot || !plot.on || !plot._fullLayout || plot.namesFollow) return;
    plot.namesFollow = true;
    plot.on("plotly_afterplot", () => fit(plot));
    fit(plot);
  }).observe(document.documentElement, { subtree: true, childList: true });
})();
