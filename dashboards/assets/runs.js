// The list of runs: asks for rows while runs are found and analysed, draws, filters and sorts them. The address holds
// the filter (q), the order (sort), the pinned baseline (pin), the chosen pair (pick) and whether the history is drawn
// (history): see server/listing.py.
(function () {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const BUSY_MS = 700, QUIET_MS = 2000, PER_ROW_MS = 4;  // until rows are asked for again; many rows take longer
  const WIDE = 92, HIGH = 22, PAD = 3;  // pixels of a trend
  const TALL = 150, LEFT = 64, ABOVE = 10, BELOW = 22;  // pixels of the history and of its axes
  const LEAST_RUNS = 3;  // of a history
  const SERIES = [["step", "step time"], ["exposed", "exposed"]];
  const ASCENDING = ["name"];  // columns whose first click sorts upward
  const COLUMNS = [
    ["name", "run"], [null, "trend"], ["step", "step, ms"], [null, "where it goes"], ["exposed", "exposed, ms"],
    ["share", "exposed, %"], ["verdict", "verdict"], ["date", "recorded, UTC"],
  ];
  const LIMIT = /^(step|exposed|share|ranks):?(<=|>=|<|>)([0-9.]+)(%|ms)?$/;
  const HINT = "words, step>100 (ms), exposed>20%";
  let rows = [], drawn = new Map(), timer = null, latest = 0, last = null, wasBusy = true, focused = null, shown = [], mounted = null;

  const frame = () => document.getElementById("runs");
  const part = (name) => document.getElementById("runs-" + name);

  function made(tag, given, children) {
    const element = document.createElement(tag);
    Object.entries(given || {}).forEach(([name, value]) => {
      if (value !== null && value !== undefined) element.setAttribute(name, value);
    });
    [].concat(children === undefined ? [] : children).forEach((each) => each !== null && element.append(each));
    return element;
  }

  // --- the address ---------------------------------------------------------------------------------------------------

  const query = () => new URLSearchParams(location.search);
  const pinned = () => query().get("pin") || "";
  const picked = () => (query().get("pick") || "").split(",").filter((id) => id).slice(0, 2);
  const order = () => query().get("sort") || "-date";

  function keep(changes) {
    const values = query();
    Object.entries(changes).forEach(([name, value]) => (value ? values.set(name, value) : values.delete(name)));
    const text = values.toString().replaceAll("%2C", ",");
    history.replaceState(history.state, "", location.pathname + (text ? "?" + text : ""));
  }

  function go(href) {
    history.pushState({}, "", href);
    window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
    scrollTo(0, 0);
  }

  // --- which rows, in which order -------------------------------------------------------------------------------------

  function limit(word) {
    const found = LIMIT.exec(word);
    if (!found) return null;
    const share = found[1] === "share" || (found[1] === "exposed" && found[4] === "%");
    const name = share ? "share" : found[1];
    const value = Number(found[3]) * (share ? 0.01 : name === "ranks" ? 1 : 1e6);
    const holds = { "<": (a) => a < value, ">": (a) => a > value, "<=": (a) => a <= value, ">=": (a) => a >= value }[found[2]];
    return (row) => typeof row.numbers[name] === "number" && holds(row.numbers[name]);
  }

  function wanted() {
    const text = (query().get("q") || "").toLowerCase().replace(/\s*(<=|>=|<|>)\s*/g, "$1").replace(/([0-9.])\s+(%|ms)/g, "$1$2");
    const tests = text.split(/\s+/).filter((word) => word).map((word) => limit(word) || ((row) => row.search.includes(word)));
    const down = order().startsWith("-"), name = order().replace(/^-/, "");
    const base = name === "verdict" && rows.find((row) => row.id === pinned() && row.step);
    const value = (row) => (name === "name" ? row.name : base ? (row.step ? row.numbers.step - base.numbers.step : null) : row.numbers[name]);
    const known = (row) => value(row) !== null && value(row) !== undefined;
    const by = (a, b) => {
      if (known(a) !== known(b)) return known(a) ? -1 : 1;  // what is not known comes last, either way
      const one = value(a), other = value(b);
      const first = !known(a) ? 0 : name === "name" ? one.localeCompare(other, undefined, { numeric: true }) : one - other;
      return (down ? -first : first) || a.name.localeCompare(b.name, undefined, { numeric: true });
    };
    return rows.filter((row) => tests.every((test) => test(row))).sort(by);
  }

  // --- drawing -------------------------------------------------------------------------------------------------------

  // A picture and the function that adds an element, with text, to it.
  function picture(given) {
    const shape = (tag, own, text) => {
      const element = document.createElementNS(SVG, tag);
      Object.entries(own).forEach(([name, value]) => element.setAttribute(name, value));
      if (text) element.textContent = text;
      return element;
    };
    const svg = shape("svg", Object.assign({ role: "img" }, given));
    return [svg, (tag, own, text, to) => {
      const element = shape(tag, own, text);
      (to || svg).append(element);
      return element;
    }];
  }

  const path = (points) => points.map((each) => each.map((at) => at.toFixed(1)).join(",")).join(" ");

  function trend(row) {
    if (!row.trend || !row.trend.length) return "";
    const points = row.trend.map(([x, y]) => [PAD + x * (WIDE - 2 * PAD), HIGH - PAD - y * (HIGH - 2 * PAD)]);
    const [svg, add] = picture({ width: WIDE, height: HIGH, "aria-label": row.trend_words, class: "runs-trend" });
    add("title", {}, row.trend_words);
    add("polyline", { points: path(points) });
    const [x, y] = points[points.length - 1];
    add("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: 2.5 });
    return svg;
  }

  // Step time and exposed communication of the filtered runs, from the oldest to the newest; the table below is its twin.
  function drawHistory(found) {
    const place = part("history"), known = found.filter((row) => typeof row.numbers.step === "number");
    place.hidden = query().get("history") !== "1" || known.length < LEAST_RUNS;
    const width = Math.max(place.clientWidth - 40, 200);
    const state = place.hidden ? "" : JSON.stringify([width, pinned(), known.map((row) => [row.id, row.numbers])]);
    if (place.dataset.drawn === state) return;
    place.dataset.drawn = state;
    if (place.hidden) { place.replaceChildren(); return; }
    known.sort((a, b) => a.numbers.date - b.numbers.date);
    const top = Math.max(...known.map((row) => row.numbers.step)) / 1e6;
    const x = (at) => LEFT + (width - LEFT - 8) * (known.length > 1 ? at / (known.length - 1) : 0.5);
    const y = (ns) => ABOVE + TALL * (1 - ns / 1e6 / top);
    const words = `Step time and exposed communication of ${known.length} runs, the oldest first; up to ${top.toFixed(3)} ms.`;
    const [svg, add] = picture({ width: width, height: ABOVE + TALL + BELOW, "aria-label": words, class: "runs-chart" });
    [0, 0.5, 1].forEach((share) => {
      const at = y(share * top * 1e6);
      add("line", { x1: LEFT, x2: width - 8, y1: at, y2: at, class: "grid-line" });
      add("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, (share * top).toPrecision(3) + (share === 1 ? " ms" : ""));
    });
    const base = known.find((row) => row.id === pinned());
    if (base) add("line", { x1: LEFT, x2: width - 8, y1: y(base.numbers.step), y2: y(base.numbers.step), class: "base-line" });
    SERIES.forEach(([name]) => {
      const points = known.map((row, at) => [x(at), row.numbers[name], row]).filter((each) => typeof each[1] === "number");
      add("polyline", { points: path(points.map((each) => [each[0], y(each[1])])), class: "line-" + name });
      points.forEach(([left, ns, row]) => {
        const dot = add("circle", { cx: left.toFixed(1), cy: y(ns).toFixed(1), r: known.length > 100 ? 2 : 3.5, class: "dot-" + name, "data-ns": ns });
        add("title", {}, `${row.name}\n${row.date}\n${name} ${(ns / 1e6).toFixed(3)} ms`, dot);
        dot.addEventListener("click", () => go(row.href));
      });
    });
    [[0, "start"], [known.length - 1, "end"]].forEach(([at, anchor]) =>
      add("text", { x: x(at), y: ABOVE + TALL + 16, "text-anchor": anchor }, known[at].date));
    const key = SERIES.map(([name, text]) => made("span", {}, [made("i", { class: "key-" + name, "aria-hidden": "true" }), text]))
      .concat(base ? [made("span", {}, [made("i", { class: "key-base", "aria-hidden": "true" }), "step time of the baseline"])] : []);
    place.replaceChildren(made("h2", {}, "History"), made("p", { class: "words" }, words), made("div", { class: "runs-legend" }, key), svg);
  }

  function bar(row) {
    if (!row.parts || !row.parts.length) return "";
    const words = row.parts.map((each) => each.words).join(", ");
    return made("div", { class: "runs-bar", role: "img", "aria-label": words, title: row.parts.map((each) => each.words).join("\n") },
      row.parts.map((each) => made("span", { class: "k-" + each.kind, style: `width:${100 * each.share}%` })));
  }

  function link(href, words, name) {
    const element = made("a", { href: href, class: name }, words);
    element.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
      event.preventDefault();
      go(href);
    });
    return element;
  }

  const compared = (base, candidate) => `/compare?base=${base}&candidate=${candidate}`;

  function verdict(row) {
    if (row.problem) return row.broken ? made("span", { class: "pill bad" }, "not readable") : "";
    const found = [];
    if (row.id === pinned()) found.push(made("span", { class: "pill" }, "pinned baseline"));
    else if (row.verdict)
      found.push(made("span", { title: row.verdict.headline }, [
        link(compared(pinned(), row.id), row.verdict.words, "pill " + row.verdict.tone), " " + row.verdict.moved]));
    else if (pinned() && row.step) found.push(made("span", { class: "note" }, "comparing …"));
    if (row.loss) {
      const swatch = made("span", { class: "swatch k-" + row.loss.kind, "aria-hidden": "true" });
      found.push(made("span", { class: "runs-loss" }, [swatch, link(row.loss.href, row.loss.words, "")]));
    } else if (row.calm) found.push(made("span", { class: "note" }, row.calm));
    return made("div", { class: "runs-verdict" }, found);
  }

  function about(row) {
    const marks = [];
    if (row.live) marks.push(made("span", { class: "pill good" }, "recording"));
    if (row.missing) marks.push(made("span", { class: "pill warn", title: "ranks" }, row.missing));
    if (row.warned) {
      const more = link(row.href, row.warned, "pill warn");
      more.title = row.warnings.join("\n");
      marks.push(more);
    }
    const doing = { waiting: "waiting to be analysed", reading: "being analysed …" }[row.state];
    const what = [row.what, row.unit, row.step && doing ? "new files are being analysed" : ""].filter((each) => each).join(" · ");
    const pin = made("button", { type: "button", class: "runs-pin", "data-pin": row.id, "aria-pressed": String(row.id === pinned()),
      title: "Pin as the baseline (b)", "aria-label": "Baseline: " + row.name }, "\u2691");
    return made("th", { scope: "row", class: "word" }, [
      made("div", { class: "runs-name" }, [link(row.href, row.name, "runs-open"), pin].concat(marks)),
      made("div", { class: "note" }, [what || (row.problem ? null : doing) || null].concat(
        (row.tags || []).map((each) => made("span", { class: "runs-tag" }, each)))),
      row.problem ? made("div", { class: `note ${row.broken ? "bad" : ""}` }, row.problem) : null,
    ]);
  }

  function cell(children, name) {
    return made("td", { class: name || "" }, children);
  }

  function line(row) {
    const box = made("input", { type: "checkbox", "data-pick": row.id, "aria-label": "Choose " + row.name + " to compare" });
    box.checked = picked().includes(row.id);
    box.disabled = !row.step || Boolean(row.problem);
    const pending = !row.step && !row.problem;
    const figure = (value) => row.problem ? "" : value || "";
    const wait = pending ? made("span", { class: "runs-wait " + row.state }, row.state === "reading" ? "reading \u2026" : "waiting") : "";
    const cells = [
      cell(box, "runs-pick"), about(row), cell(row.problem ? "" : trend(row), "runs-trends"),
      cell(made("strong", {}, figure(row.step))), cell(row.problem ? "" : bar(row), "runs-bars"),
      cell(figure(row.exposed)), cell(figure(row.share)), cell(pending ? wait : verdict(row), "word"), cell(row.date, "runs-date"),
    ];
    return made("tr", { "data-run": row.id, class: (box.checked ? "chosen " : "") + (row.id === focused ? "here" : "") }, cells);
  }

  function head() {
    const name = order().replace(/^-/, ""), down = order().startsWith("-");
    const heads = COLUMNS.map(([key, words], at) => {
      const place = ["name", "verdict"].includes(key) || words === "trend" ? "word" : "";
      const own = { scope: "col", class: `${place} runs-col-${at}` };
      if (!key) return made("th", own, words);
      if (key === name) own["aria-sort"] = down ? "descending" : "ascending";
      const button = made("button", { type: "button", class: "runs-sort", "data-sort": key },
        words + (key === name ? (down ? " \u25be" : " \u25b4") : ""));
      return made("th", own, button);
    });
    return made("tr", {}, [made("td", { class: "runs-pick" })].concat(heads));
  }

  // Rows whose data did not change stay as they are; the order stays while the pointer or the focus is on a row.
  function draw(sorts) {
    const place = part("table");
    if (!place) return;
    let body = place.querySelector("tbody");
    if (!body) {
      place.replaceChildren(made("table", { class: "runs" }, [made("caption", { class: "unseen" }, "Runs"), made("thead"), made("tbody")]));
      body = place.querySelector("tbody");
      drawn = new Map();
    }
    if (sorts || !place.querySelector("thead tr")) {
      const active = document.activeElement && document.activeElement.getAttribute("data-sort");
      place.querySelector("thead").replaceChildren(head());
      if (active) place.querySelector(`[data-sort="${active}"]`).focus();
    }
    let next = wanted();
    const held = !sorts && (body.matches(":hover") || body.contains(document.activeElement));
    if (held) {
      const there = new Map(next.map((row) => [row.id, row]));
      const old = shown.filter((id) => there.has(id));
      next = old.map((id) => there.get(id)).concat(next.filter((row) => !old.includes(row.id)));
    }
    shown = next.map((row) => row.id);
    const had = document.activeElement;
    const again = had && body.contains(had) ? selector(had) : "";
    next.forEach((row, at) => {
      const text = JSON.stringify(row) + (row.id === pinned() || picked().includes(row.id)) + Boolean(pinned()) + (row.id === focused);
      const known = drawn.get(row.id);
      let element = known && known.text === text ? known.element : null;
      if (!element) {
        element = line(row);
        if (known && known.element.parentNode === body) known.element.replaceWith(element);
        drawn.set(row.id, { text: text, element: element });
      }
      if (body.children[at] !== element) body.insertBefore(element, body.children[at] || null);
    });
    while (body.children.length > next.length) body.lastElementChild.remove();
    if (again && !document.contains(had)) {
      const successor = body.querySelector(again);
      if (successor) successor.focus({ preventScroll: true });
    }
    const none = part("empty");
    if (none) none.remove();
    if (rows.length && !next.length) place.append(made("p", { class: "empty", id: "runs-empty" }, "No run matches this filter."));
    part("past").hidden = rows.length < LEAST_RUNS;
    part("past").setAttribute("aria-pressed", String(query().get("history") === "1"));
    drawHistory(next);
    dock();
  }

  function selector(element) {
    const run = element.closest("[data-run]");
    if (!run) return "";
    const what = element.matches("[data-pick]") ? "[data-pick]" : element.matches("[data-pin]") ? "[data-pin]" : element.matches(".runs-open") ? ".runs-open" : "a";
    return `[data-run="${run.dataset.run}"] ${what}`;
  }

  function tools() {
    const input = made("input", { type: "search", id: "runs-filter", class: "field", placeholder: HINT, autocomplete: "off",
      spellcheck: "false", maxlength: 200, "aria-keyshortcuts": "/" });
    input.value = query().get("q") || "";
    input.addEventListener("input", () => { keep({ q: input.value }); draw(true); });
    const past = made("button", { type: "button", id: "runs-past", title: "Draw these runs over time" }, "History");
    past.addEventListener("click", () => { keep({ history: query().get("history") === "1" ? "" : "1" }); draw(true); });
    part("tools").replaceChildren(made("label", { for: "runs-filter" }, "Filter"), input, past);
  }

  // The pair to compare: the older pick is the base, or the pinned baseline where only one is picked.
  function pair() {
    const chosen = picked().filter((id) => rows.some((row) => row.id === id));
    const base = pinned();
    if (chosen.length === 1 && base && base !== chosen[0] && rows.some((row) => row.id === base)) return [base, chosen[0]];
    if (chosen.length === 2 && chosen[1] === base) return [chosen[1], chosen[0]];
    return chosen;
  }

  function dock() {
    const place = part("dock");
    const [base, candidate] = pair().map((id) => rows.find((row) => row.id === id));
    place.hidden = !base;
    if (!base) { place.replaceChildren(); return; }
    if (!candidate) {
      place.replaceChildren(made("span", {}, ["Compare ", made("strong", {}, base.name), " with … choose a second run"]), clear());
      return;
    }
    const known = typeof candidate.numbers.step === "number" && typeof base.numbers.step === "number";
    const moved = candidate.numbers.step - base.numbers.step;
    const words = known ? `${moved > 0 ? "+" : moved < 0 ? "-" : ""}${(Math.abs(moved) / 1e6).toFixed(3)} ms a step` : "";
    const swap = made("button", { type: "button", "aria-label": "Swap base and candidate", title: "Swap" }, "\u21c4");
    swap.addEventListener("click", () => { keep({ pick: `${candidate.id},${base.id}`, pin: pinned() === base.id ? candidate.id : pinned() }); draw(true); ask(0); });
    const open = link(compared(base.id, candidate.id), ["Compare ", made("kbd", {}, "c")], "button primary");
    open.id = "runs-compare";
    place.replaceChildren(made("span", {}, [made("strong", {}, base.name), " \u2192 ", made("strong", {}, candidate.name)]),
      made("span", { class: "note" }, words), swap, open, clear());
  }

  function clear() {
    const button = made("button", { type: "button", "aria-label": "Choose none" }, "\u00d7");
    button.addEventListener("click", () => { keep({ pick: "" }); draw(); });
    return button;
  }

  // --- what the reader does ------------------------------------------------------------------------------------------

  function pick(id) {
    const row = rows.find((each) => each.id === id);
    if (!row || !row.step || row.problem) return;
    const now = picked().filter((each) => rows.some((other) => other.id === each));
    keep({ pick: (now.includes(id) ? now.filter((each) => each !== id) : now.concat(id).slice(-2)).join(",") });
    draw();
  }

  function pin(id) {
    keep({ pin: pinned() === id ? "" : id });
    draw();
    ask(0);
  }

  function move(by) {
    if (!shown.length) return;
    const at = shown.indexOf(focused);
    focused = shown[Math.min(Math.max(at < 0 ? (by > 0 ? 0 : shown.length - 1) : at + by, 0), shown.length - 1)];
    draw();
    const open = part("table").querySelector(`[data-run="${focused}"] .runs-open`);
    if (open) open.focus();
  }

  function pressed(event) {
    if (!frame() || event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.closest && event.target.closest("input:not([type=checkbox]), textarea, select");
    if (typing) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const own = event.target.closest && event.target.closest("[data-run]");
    const run = own ? own.dataset.run : focused;
    const acts = {
      j: () => move(1), k: () => move(-1), x: () => run && pick(run), b: () => run && pin(run),
      c: () => part("compare") && part("compare").click(), "/": () => part("filter").focus(),
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }

  function clicked(event) {
    if (!frame() || !event.target.closest) return;
    const sort = event.target.closest("[data-sort]"), flag = event.target.closest("[data-pin]");
    if (sort) {
      const key = sort.dataset.sort, now = order();
      const first = ASCENDING.includes(key) ? key : "-" + key;
      keep({ sort: now === first ? (first.startsWith("-") ? key : "-" + key) : first });
      draw(true);
    } else if (flag) pin(flag.dataset.pin);
  }

  // --- asking --------------------------------------------------------------------------------------------------------

  function ask(after) {
    clearTimeout(timer);
    timer = setTimeout(fetchRows, after);
  }

  async function fetchRows() {
    const place = frame();
    if (!place || document.hidden) { if (place) ask(QUIET_MS); return; }
    const serial = ++latest;
    let busy = true, failed = false;
    try {
      const base = pinned();
      const known = { cache: "no-store", headers: last ? { "If-None-Match": last.seen } : {} };
      const response = await fetch("/runs.json" + (base ? "?pin=" + encodeURIComponent(base) : ""), known);
      if (serial !== latest || frame() !== place) return;
      if (response.status === 200) {
        const found = await response.json();
        if (serial !== latest || frame() !== place) return;
        last = { found: found, base: base, seen: response.headers.get("ETag") };
        busy = take(found);
      } else if (response.status === 304) {
        busy = wasBusy;
      } else if (response.status !== 202) throw new Error(String(response.status));
    } catch (error) {
      failed = true;
      if (part("status")) part("status").textContent = "The server does not answer; trying again.";
    }
    wasBusy = busy;
    ask(failed || !busy ? QUIET_MS : BUSY_MS + PER_ROW_MS * rows.length);
  }

  function take(found) {
    rows = found.rows;
    const judging = pinned() ? rows.filter((row) => row.step && row.id !== pinned() && !row.verdict).length : 0;
    const left = rows.length - found.done;
    const all = found.common ? ` · all: ${found.common}` : "";
    const status = found.status + (judging && !left ? `, ${judging} still to be compared` : "") + all;
    if (part("status").textContent !== status) part("status").textContent = status;
    part("progress").hidden = !left;
    part("progress").max = rows.length || 1;
    part("progress").value = found.done;
    part("none").hidden = rows.length > 0;
    document.querySelectorAll(".runs-card, .runs-foot, #runs-tools").forEach((each) => { each.hidden = !rows.length; });
    part("notes").replaceChildren(...found.notes.map((each) => made("li", {}, each)));
    part("notes").hidden = !found.notes.length;
    draw();
    return left > 0 || judging > 0;
  }

  function mount() {
    const place = frame();
    if (place === mounted) return;
    mounted = place;
    latest += 1;
    clearTimeout(timer);
    if (!place) return;
    rows = [];
    shown = [];
    focused = null;
    tools();
    if (last && last.base === pinned()) take(last.found);  // at once after a way back
    else last = null;
    fetchRows();
  }

  document.addEventListener("keydown", pressed);
  document.addEventListener("click", clicked);
  document.addEventListener("change", (event) => event.target.matches && event.target.matches("[data-pick]") && pick(event.target.dataset.pick));
  addEventListener("resize", () => frame() && rows.length && draw());
  document.addEventListener("visibilitychange", () => !document.hidden && frame() && ask(0));
  new MutationObserver(mount).observe(document, { childList: true, subtree: true });
})();
