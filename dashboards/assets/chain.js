// The blocking chain: a panel beside the timeline, and lines drawn over it. assets/timeline.js says what was clicked,
// and when the picture moved.
(function () {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const DISC = 8, HEAD = 5, APART = 16;  // pixels
  let shown = null, chosen = -1, act = {}, latest = null;

  const panel = () => document.getElementById("timeline-chain");

  function made(tag, given, children) {
    const element = document.createElement(tag);
    Object.entries(given || {}).forEach(([name, value]) => element.setAttribute(name, value));
    [].concat(children || []).forEach((each) => element.append(each));
    return element;
  }

  function drawn(tag, given) {
    const element = document.createElementNS(SVG, tag);
    Object.entries(given).forEach(([name, value]) => element.setAttribute(name, value));
    return element;
  }

  function head(title) {
    const close = made("button", { type: "button", class: "tl-close", "aria-label": "Close the chain", title: "Close (Esc)" }, "\u00d7");
    close.addEventListener("click", () => act.close());
    return made("div", { class: "tl-chain-head" }, [made("h2", {}, title), close]);
  }

  function waiting(words) {
    shown = null;
    reveal([head("What did it wait for?"), made("p", { class: "note", role: "status" }, words)]);
  }

  function refused(words) {
    shown = null;
    reveal([head("No chain"), made("p", { class: "note warn", role: "status" }, words)]);
  }

  function reveal(children) {
    const place = panel();
    if (!place) return;
    place.replaceChildren(...children);
    place.hidden = false;
    document.getElementById("timeline-body").classList.add("chained");
    if (!shown) draw();
  }

  function hide() {
    shown = null;
    chosen = -1;
    const place = panel();
    if (!place) return;
    place.replaceChildren();
    place.hidden = true;
    document.getElementById("timeline-body").classList.remove("chained");
    draw();
  }

  function step(each, at) {
    const known = made("span", { class: "known known-" + each.known }, each.known);
    const pause = each.pause_words ? [made("span", { class: "slack" }, each.pause_words)] : [];
    const worth = made("span", { class: "slack", title: "How much earlier the recording would have ended without it, at most" }, each.gain);
    const facts = [known].concat(pause, each.slack ? [made("span", { class: "slack" }, each.slack)] : [], worth);
    const button = made("button", { type: "button", class: "tl-step", "data-step": at }, [
      made("span", { class: "disc", "aria-hidden": "true" }, String(at + 1)),
      made("span", { class: "words" }, each.words), made("span", { class: "lasts" }, each.lasts),
      made("span", { class: "where" }, each.where + " \u00b7 " + each.when), made("span", { class: "facts-of-step" }, facts),
    ]);
    button.addEventListener("click", () => choose(at));
    return made("li", {}, button);
  }

  function show(chain) {
    shown = chain;
    chosen = -1;
    const numbered = chain.steps.map((each, at) => [each, at]);
    const listed = (which) => numbered.filter(([each]) => each.earlier === which).map(([each, at]) => step(each, at));
    const now = listed(false), before = listed(true), parts = [head(chain.title)];
    chain.lead.forEach((words) => parts.push(made("p", {}, words)));
    parts.push(made("ol", { class: "tl-steps" }, now));
    if (before.length) {
      const list = made("ol", { class: "tl-steps", start: now.length + 1 }, before);
      const words = before.length === 1 ? "1 earlier step" : before.length + " earlier steps";
      const more = made("details", {}, [made("summary", {}, words), list]);
      more.open = !now.length;
      more.addEventListener("toggle", draw);
      parts.push(more);
    }
    if (chain.python.length) {
      const called = chain.python.map((each) => made("li", {}, made("code", {}, each)));
      const words = "In Python: " + chain.python[chain.python.length - 1] + (called.length > 1 ? " and " + (called.length - 1) + " around it" : "");
      parts.push(made("details", { class: "tl-python" }, [made("summary", {}, words), made("ol", { tabindex: "0", "aria-label": "The Python stack, the outermost function first" }, called)]));
    }
    chain.notes.forEach((words) => parts.push(made("p", { class: "note" }, words)));
    const fit = made("button", { type: "button", class: "tl-fit" }, "Show all of it");
    fit.addEventListener("click", () => act.go(chain.reach[0], chain.reach[1], chain.ranks));
    const code = made("div", { class: "code" }, [
      made("pre", { tabindex: "0", "aria-label": "The command that prints this chain" }, made("code", {}, chain.command)),
      made("button", { type: "button", class: "copy", "aria-label": "Copy: the command that prints this chain" }, "Copy"),
      made("span", { class: "unseen", role: "status" }),
    ]);
    reveal(parts.concat([made("p", {}, fit), code]));
  }

  // Arrow keys walk along the chain; the window follows where a step is out of sight.
  function choose(at) {
    if (!shown || !shown.steps.length) return;
    chosen = Math.min(Math.max(at, 0), shown.steps.length - 1);
    const button = panel().querySelector('[data-step="' + chosen + '"]');
    const folded = button.closest("details");
    if (folded) folded.open = true;
    button.focus();
    const { path, pause } = shown.steps[chosen], times = pause || path.map((each) => each[2]);
    act.see(times[0] * 1e6, times[1] * 1e6, path.map((each) => each[0]));
    draw();
  }

  function walk(by) {
    if (!shown) return false;
    choose(chosen < 0 ? 0 : chosen + by);
    return true;
  }

  // Lines lie over the plot, not in it: they are drawn again with every movement, and plotly needs longer.
  function draw(from) {
    const place = document.getElementById("timeline-drawn");
    if (!place) return;
    if (from && from.plot) latest = from;
    const now = latest, layout = now && now.plot._fullLayout;
    const launch = now ? now.launch : [];
    if ((!shown && !launch.length) || !layout || !layout._size || !now.rows) {
      place.replaceChildren();
      return;
    }
    const size = layout._size, [left, right] = layout.xaxis.range, top = layout.yaxis2.domain[1];
    const x = (ms) => (ms - left) / (right - left) * size.w, tall = size.h * top / Math.max(now.rows.length, 1);
    const row = (at) => size.h * (1 - top) + (at + 0.5) * tall;
    const y = (rank, lane) => {
      const exact = now.rows.findIndex((each) => each[0] === rank && each[1] === lane);
      if (exact >= 0) return row(exact);
      const first = now.rows.findIndex((each) => each[0] === rank);
      return first < 0 ? null : row(first) - tall / 2;
    };
    place.style.cssText = "left:" + size.l + "px;top:" + size.t + "px;width:" + size.w + "px;height:" + size.h + "px";
    const picture = drawn("svg", { width: size.w, height: size.h });
    // A line from a cause to its effect: along its row, then up or down to the other.
    const arrow = (group, x0, from0, x1, to) => {
      const edge = to > from0 ? to - tall * 0.42 : to + tall * 0.42, back = edge + (to > from0 ? -HEAD : HEAD);
      group.append(drawn("path", { class: "line", d: "M" + x0 + "," + from0 + "L" + x1 + "," + from0 + "L" + x1 + "," + back }));
      group.append(drawn("path", { class: "head", d: "M" + x1 + "," + edge + "L" + (x1 - HEAD) + "," + back + "L" + (x1 + HEAD) + "," + back + "Z" }));
    };
    if (launch.length) {
      const [[rank0, lane0, begun], [rank1, lane1, start]] = launch, group = drawn("g", { class: "tl-link tl-launch" });
      const from0 = y(rank0, lane0), to = y(rank1, lane1);
      if (from0 !== null && to !== null) {
        arrow(group, x(begun), from0, x(start), to);
        picture.append(group);
      }
    }
    if (shown) steps(picture, now, layout, x, y, row, tall, arrow);
    place.replaceChildren(picture);
  }

  function steps(picture, now, layout, x, y, row, tall, arrow) {
    const size = layout._size, folded = panel().querySelector("details"), discs = [];
    band(picture, now, layout, x, row, tall);
    shown.steps.forEach((each, at) => {
      if (each.earlier && !(folded && folded.open)) return;
      const [[rank0, lane0, begin], [rank1, lane1, end]] = each.path;
      const y0 = y(rank0, lane0), y1 = y(rank1, lane1), x0 = x(begin), x1 = x(end);
      if (y0 === null && y1 === null) return;
      const from0 = y0 === null ? y1 : y0, to = y1 === null ? y0 : y1, flat = Math.abs(from0 - to) < 1;
      const group = drawn("g", { class: "tl-link known-" + each.known + (at === chosen ? " chosen" : ""), "data-step": at });
      const [start, stop] = (each.pause || [begin, end]).map(x);
      if (flat) {
        const high = tall * 0.84;
        if (each.pause) group.append(drawn("path", { class: "line", d: "M" + x0 + "," + to + "L" + x1 + "," + to }));
        group.append(drawn("rect", { x: start, y: to - high / 2, width: Math.max(stop - start, 1), height: high, rx: 2 }));
      } else arrow(group, x0, from0, x1, to);
      picture.append(group);
      const seen = [Math.max(start, 0), Math.min(flat ? stop : x1, size.w)];
      if (seen[1] < -DISC || seen[0] > size.w + DISC) return;
      discs.push({ at: at, x: Math.min(Math.max(flat ? seen[0] - DISC : x1, DISC), size.w - DISC), y: flat ? to : (from0 + to) / 2 });
    });
    const put = [];
    discs.sort((one, other) => (other.at === chosen) - (one.at === chosen)).forEach((each) => {
      if (put.some((other) => Math.hypot(other.x - each.x, other.y - each.y) < APART)) return;
      put.push(each);
      picture.append(drawn("circle", { class: "disc", cx: each.x, cy: each.y, r: DISC }));
      const number = drawn("text", { x: each.x, y: each.y });
      number.textContent = String(each.at + 1);
      picture.append(number);
    });
  }

  // What is explained: its time on the rows of its rank, and on the map.
  function band(picture, now, layout, x, row, tall) {
    const [rank, begin, end] = shown.marked, own = now.rows.map((each, at) => (each[0] === rank ? at : -1)).filter((at) => at >= 0);
    const wide = Math.max(x(end) - x(begin), 1);
    if (own.length) {
      const first = row(own[0]) - tall / 2;
      picture.append(drawn("rect", { class: "band", x: x(begin), y: first, width: wide, height: row(own[own.length - 1]) + tall / 2 - first }));
    }
    const at = now.ranks.findLastIndex((each) => each <= rank), [low, top] = layout.yaxis.domain, high = layout._size.h;
    const each = high * (top - low) / Math.max(now.ranks.length, 1);
    if (at >= 0) picture.append(drawn("rect", { class: "band", x: x(begin), y: high * (1 - top) + at * each, width: wide, height: each }));
  }

  window.overlapscopeChain = {
    waiting: waiting, refused: refused, show: show, hide: hide, draw: draw, walk: walk,
    is: () => shown !== null, reach: () => (shown ? shown.reach : null), ranks: () => (shown ? shown.ranks : []),
    with: (actions) => { act = actions; },
  };
})();
