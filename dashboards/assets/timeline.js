// The timeline's window: moved by buttons, keys, wheel and drag, stored in the address, drawn by the server.
// It requests its views itself and bypasses Dash: see timeline/endpoints.py.
(function () {
  "use strict";
  const QUIET_MS = 90;  // after the last of many movements
  const AGAIN_MS = 300;  // until an answer that was not ready is requested again
  const LOOK_MS = 1500;  // until the page asks whether background results are ready
  const PERFETTO_MS = 30000;  // for Perfetto to load
  const STATE = ["t0", "t1", "ranks", "mode", "q", "hit", "show", "chain"];
  const STILL = 4;  // pixels that a click may move
  const BESIDE = 270;  // pixels of the page beside the time axis, until it is drawn
  const WIDER = 40;  // pixels by which the plot may differ from the width that its picture was requested for
  const WHEEL_LINE = 16;  // pixels of a wheel that counts lines
  let view = null, whole = [0, 1], found = {}, pinned = false, waiting = null, probing = null, marks = [];
  let perfettoUrl = null, rasters = [], over = null, pressed = null, serial = 0, first = null;
  let asked = 0, busy = false, again = false, latest = null, hovered = null, chaining = 0, launch = [], near = null, seeking = false;
  let requested = 0;  // the width that the last picture was requested for
  const chains = () => window.overlapscopeChain, minimap = () => window.overlapscopeMinimap;

  const page = () => location.pathname.replace(/\/+$/, "");
  const graph = () => document.querySelector("#timeline-figure.js-plotly-plot");
  // When one leaves, the address changes before the page does.
  const here = () => page().endsWith("/timeline") && document.getElementById("timeline-figure") !== null;

  function address(next) {
    const query = new URLSearchParams();
    const all = next.t0 <= whole[0] && next.t1 >= whole[1];
    if (!all) { query.set("t0", next.t0); query.set("t1", next.t1); }
    if (next.ranks) query.set("ranks", next.ranks);
    if (next.mode && next.mode !== "dominating") query.set("mode", next.mode);
    if (next.q) query.set("q", next.q);
    if (next.q && next.hit) query.set("hit", next.hit);
    if (next.show) query.set("show", next.show);
    if (next.chain) query.set("chain", next.chain);
    const text = query.toString();
    history.replaceState(history.state, "", location.pathname + (text ? "?" + text : ""));
  }

  function width() {
    const plot = graph();
    const size = plot && plot._fullLayout && plot._fullLayout._size ? plot._fullLayout._size.w : 0;
    return Math.round((size > 0 ? size : Math.max(Math.min(window.innerWidth, 1680) - BESIDE, 200)) / 10) * 10;
  }

  // Move the window at once, with the current picture; the exact picture follows.
  function ask(change, quiet) {
    if (!view || !here()) return;
    const next = Object.assign({}, view, change);
    const length = Math.min(Math.max(next.t1 - next.t0, 20), whole[1] - whole[0]);
    next.t0 = Math.round(Math.max(Math.min(next.t0, whole[1] - length), whole[0]));
    next.t1 = Math.round(next.t0 + length);
    view = next;
    address(next);
    modes();
    minimap().frame(next.t0, next.t1);
    clearTimeout(waiting);
    if (quiet) waiting = setTimeout(send, QUIET_MS);
    else send();
  }

  function query(state) {
    const values = new URLSearchParams();
    STATE.forEach((name) => {
      if (name !== "chain" && state[name] !== undefined && state[name] !== null && state[name] !== "") values.set(name, state[name]);
    });
    values.set("width", width());
    return values;
  }

  // Returns an answer or a problem; asks again while the answer is not ready and `waits`, called with the progress, holds.
  function fetched(what, values, waits) {
    const path = page() + "/" + what + "?" + values;
    return fetch(path).then((answer) => {
      if (answer.status !== 202) return answer;
      return answer.clone().text().then((words) => {
        if (!here() || (waits && !waits(words))) return answer;
        return new Promise((done) => setTimeout(done, AGAIN_MS)).then(() => fetched(what, values, waits));
      });
    });
  }

  function unpacked(buffer) {
    const length = new DataView(buffer).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
    let begin = 4 + length;
    head.rasters.forEach((each) => {
      each.cells = new Uint8Array(buffer, begin, each.rows * each.bins);
      begin += each.rows * each.bins;
    });
    return head;
  }

  // One request at a time: later ones wait, and only the last of them is sent.
  function send() {
    if (!here()) return;
    if (busy) {
      again = true;
      return;
    }
    again = false;
    requested = width();
    begin(fetched("view", query(view)));
  }

  function begin(answer) {
    const own = (asked += 1);
    busy = true;
    clearTimeout(looking);
    looking = null;
    answer.then((got) => {
      if (got.status !== 200) return got.status === 202 ? {} : got.text().then((words) => ({ problem: words.trim().slice(0, 300) }));
      const kind = got.headers.get("Content-Type") || "";
      return kind.includes("octet-stream") ? got.arrayBuffer().then(unpacked) : kind.includes("json") ? got.json() : {};
    }).catch(() => ({ problem: "The server does not answer." })).then((answered) => {
      if (own !== asked) return null;
      return answered.figure ? show(answered) : note(answered.problem);
    }).catch((error) => console.error(error)).then(() => {
      if (own !== asked) return;
      busy = false;
      if (again) send();
    });
  }

  let looking = null;

  function note(words) {
    const place = document.getElementById("timeline-note");
    if (place && words) place.textContent = words;
  }

  function show(answered) {
    if (!here()) return null;
    whole = answered.whole;
    found = answered.found;
    if (!view) {
      const given = new URLSearchParams(location.search), chain = given.get("chain");
      view = Object.assign({}, answered.state, chain ? { chain: chain } : {}, given.has("hit") ? { hit: given.get("hit") } : {});
      if (chain) follow(chain, undefined, !given.has("t0"));
      if (Number.isInteger(found.at)) {
        pinned = true;
        shownFacts = { key: view.hit };  // its details follow once the picture is drawn
      }
    }
    modes();
    perfettoUrl = answered.perfetto;
    document.getElementById("timeline-open").hidden = !perfettoUrl;
    document.getElementById("timeline-take").setAttribute("href", answered.take);
    hits();
    legend(answered);
    note(answered.note);
    table = answered;
    if (document.querySelector(".tl details").open) tables();
    looking = answered.coming ? setTimeout(send, LOOK_MS) : null;
    return draw(answered);
  }

  function made(tag, given, children) {
    const element = document.createElement(tag);
    Object.entries(given || {}).forEach(([name, value]) => element.setAttribute(name, value));
    [].concat(children || []).forEach((each) => element.append(each));
    return element;
  }

  function legend(answered) {
    const parts = answered.amounts.map((each) => made("div", {}, [
      made("span", { class: "swatch k-" + each.state }), made("span", { class: "what" }, each.name),
      made("span", { class: "amount" }, each.amount), made("span", { class: "share" }, each.share),
    ]));
    const when = made("div", { class: "when" }, [made("strong", {}, answered.when), made("span", {}, answered.mean_of)]);
    document.getElementById("timeline-legend").replaceChildren(when, ...parts);
  }

  function hits() {
    const number = found.number || 0;
    const words = number.toLocaleString("en");
    document.getElementById("timeline-hits").textContent =
      !found.text ? "" : Number.isInteger(found.at) ? found.at + 1 + " of " + words : words + " found";
  }

  let table = null;

  // As parts/tables.py lays out the tables of other pages.
  function tables() {
    const one = (caption, head, rows, left, said) => {
      const kind = (at) => ({ class: at < left ? "word" : "" });
      const heads = head.map((each, at) => made("th", Object.assign({ scope: "col" }, kind(at)), each));
      const body = rows.map((row) => made("tr", {}, row.map((each, at) =>
        made(at ? "td" : "th", Object.assign(at ? {} : { scope: "row" }, kind(at)), each))));
      const inner = made("table", {}, [made("caption", {}, caption), made("thead", {}, made("tr", {}, heads)), made("tbody", {}, body)]);
      const region = made("div", { class: "wide", role: "region", tabindex: "0", "aria-label": caption }, inner);
      return said ? made("div", {}, [region, made("p", { class: "note" }, said)]) : region;
    };
    const all = [one("Time in view by rank, milliseconds", table.twin_head, table.twin, 1, table.twin_note)];
    if (table.listed.length) {
      all.push(one("Spans in view, the longest first", ["span", "rank", "lane", "start, ms", "length"], table.listed, 1, ""));
    }
    document.getElementById("timeline-twin").replaceChildren(...all);
  }

  // Cells of the map lie on a canvas under plotly's axes.
  function paint(place) {
    const canvas = document.getElementById("timeline-map"), layout = place._fullLayout;
    if (!canvas || !layout || !layout._size) return;
    const size = layout._size, ratio = window.devicePixelRatio || 1;
    const wide = Math.max(Math.round(size.w * ratio), 1), high = Math.max(Math.round(size.h * ratio), 1);
    canvas.style.cssText = "left:" + size.l + "px;top:" + size.t + "px;width:" + size.w + "px;height:" + size.h + "px";
    canvas.width = wide;  // which clears it
    canvas.height = high;
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    rasters.forEach((each) => {
      if (!each.image) each.image = imaged(each);
      const [left, right] = layout.xaxis.range, [low, top] = layout[each.axis].domain;
      const from = (left - each.first_ms) / each.width_ms, bins = (right - left) / each.width_ms;
      const begin = Math.round((1 - top) * high), tall = Math.round((1 - low) * high) - begin;
      const rows = each.gap ? each.rows : 1, gap = each.gap * ratio;
      for (let row = 0; row < rows; row += 1) {
        context.drawImage(each.image, from, row * each.rows / rows, bins, each.rows / rows,
          0, begin + tall * row / rows + gap / 2, wide, tall / rows - gap);
      }
    });
  }

  function imaged(raster) {
    const image = document.createElement("canvas");
    image.width = raster.bins;
    image.height = raster.rows;
    const context = image.getContext("2d");
    const pixels = context.createImageData(raster.bins, raster.rows);
    const colours = new Uint32Array(new Uint8Array(raster.colours.flat()).buffer);
    const coloured = new Uint32Array(pixels.data.buffer), cells = raster.cells;
    for (let at = 0; at < cells.length; at += 1) coloured[at] = colours[cells[at]];
    context.putImageData(pixels, 0, 0);
    return image;
  }

  // Dash's own graph draws everything twice when a window moves; so this draws, with the plotly of the document.
  function draw(given) {
    const place = document.getElementById("timeline-figure");
    latest = given;
    if (!place) return null;
    if (!window.Plotly) {
      return new Promise((done) => setTimeout(done, 15)).then(() => (latest === given ? draw(given) : null));
    }
    place.style.height = given.height + "px";
    rasters = given.rasters;
    const layout = Object.assign({}, given.figure.layout, { width: place.clientWidth, height: given.height });
    return window.Plotly.react(place, given.figure.data, layout, given.config).then(() => {
      if (!place.timelineBound) {
        place.timelineBound = true;
        place.on("plotly_relayout", zoomed);
        place.on("plotly_relayouting", () => { paint(place); lines(); });
        place.on("plotly_afterplot", () => { paint(place); lines(); });
        place.on("plotly_hover", (data) => { hovered = spot(data); if (!pinned) probe(hovered); });
        place.on("plotly_unhover", () => { hovered = null; if (!pinned && !over) probe(null); });
        place.on("plotly_click", (data) => {
          const what = spot(data);
          if (what) { pinned = true; probe(what); }
        });
      }
      paint(place);
      lines();
      mark(place);
      const size = place._fullLayout._size, around = { whole: whole, t0: view.t0, t1: view.t1, left: size.l, width: size.w };
      minimap().draw(Object.assign(around, given.minimap));
      restate();
      if (seeking && found.number) go("next");
      seeking = false;
      place.dataset.drawn = serial += 1;
      if (Math.abs(width() - requested) > WIDER) send();
    });
  }

  function zoomed(data) {
    let left = data["xaxis.range[0]"], right = data["xaxis.range[1]"];
    if (data["xaxis.range"]) [left, right] = data["xaxis.range"];
    if (view && left !== undefined && right !== undefined) ask({ t0: left * 1e6, t1: right * 1e6 });
  }

  function mark(plot) {
    const shapes = plot.layout.shapes || [];
    const there = shapes.filter((each) => each.name === "link");
    const places = (all) => JSON.stringify(all.map((each) => [each.path, each.x0, each.x1, each.y0, each.y1]));
    if (places(there) === places(marks)) return;
    const colour = getComputedStyle(document.body).color;
    const drawn = marks.map((each) => Object.assign({}, each, { line: Object.assign({}, each.line, { color: colour }) }));
    window.Plotly.relayout(plot, { shapes: shapes.filter((each) => each.name !== "link").concat(drawn) });
  }

  function lines() {
    const plot = graph();
    if (plot && latest) chains().draw({ plot: plot, rows: latest.rows, ranks: latest.map_ranks, launch: launch });
  }

  // A chain stands in the address; `at` is where a span was clicked. A link that names no window gets that of the chain.
  function follow(chain, at, fits) {
    const own = (chaining += 1), before = chains().is();
    view.chain = chain;
    address(view);
    chains().waiting("Following the dependencies \u2026");
    if (!before) fitted();
    const values = new URLSearchParams({ chain: chain });
    if (at !== undefined) values.set("at", Math.round(at));
    const waits = (words) => {
      if (own === chaining && words) chains().waiting(words);
      return own === chaining;
    };
    fetched("chain", values, waits).then((answer) => (answer.status === 202 ? null : answer.json())).then((given) => {
      if (own !== chaining || !given || !here()) return;
      if (!given.steps) {
        chains().refused(given.problem || "The server does not answer.");
        return;
      }
      chains().show(given);
      view.chain = given.asked;
      address(view);
      together(given.ranks, given.on_threads);
      if (fits) fit(given.reach[0], given.reach[1]);
      lines();
    }).catch(() => { if (own === chaining) chains().refused("The server does not answer."); });
  }

  function unfollow() {
    chaining += 1;
    if (!view || !view.chain) return;
    view.chain = null;
    address(view);
    chains().hide();
    fitted();
  }

  // The ranks of a chain are shown beside those that are: instead of them where nobody chose those.
  // So are the host threads that it leads through.
  function together(ranks, hosts) {
    const there = new Set(latest ? latest.rows.map((each) => each[0]) : []);
    const threads = hosts && !shows().includes("host");
    if (threads) view.show = shows().concat("host").join(",");
    if (!ranks.every((each) => there.has(each))) choose([...new Set((picked ? [...there] : []).concat(ranks))]);
    else if (threads) ask({});
  }

  const shows = () => (view && view.show ? view.show.split(",") : []);

  function toggle(what) {
    const there = shows();
    ask({ show: (there.includes(what) ? there.filter((each) => each !== what) : there.concat(what)).join(",") });
  }

  // Details of a span follow it, pinned ones also where its rank is no longer shown; those of a cell are of another time
  // once the window moved, but not where ranks or rows were added.
  let shownFacts = null, drawnAt = "";

  function restate() {
    const now = JSON.stringify([view.t0, view.t1]), moved = now !== drawnAt;
    drawnAt = now;
    if (!shownFacts || (!shownFacts.key && !moved)) return;
    if (shownFacts.key && (pinned || latest.rows.some((each) => each[0] === Number(shownFacts.key.split(":")[0])))) {
      point(shownFacts);
      return;
    }
    pinned = false;
    over = null;
    point(null);
  }

  let picked = false;  // whether somebody typed the ranks

  function choose(ranks) {
    const words = ranks.filter((each) => each >= 0).sort((one, other) => one - other).join(",");
    document.getElementById("timeline-ranks").value = words;
    ask({ ranks: words });
  }

  // The plot has another width once the panel comes or goes: it is drawn at once, then requested for that width.
  function fitted() {
    if (graph() && latest) draw(latest);
  }

  function modes() {
    document.querySelectorAll("[data-timeline=mode]").forEach((button) => {
      button.setAttribute("aria-pressed", String(button.dataset.mode === view.mode));
    });
    document.querySelectorAll("[data-timeline=show]").forEach((button) => {
      button.setAttribute("aria-pressed", String(shows().includes(button.dataset.show)));
    });
  }

  function zoom(factor, middle) {
    const length = (view.t1 - view.t0) * factor;
    const at = middle === undefined ? 0.5 : middle;
    const point = view.t0 + (view.t1 - view.t0) * at;
    ask({ t0: point - length * at, t1: point + length * (1 - at) }, middle !== undefined);
  }

  function move(share) {
    const by = (view.t1 - view.t0) * share;
    ask({ t0: view.t0 + by, t1: view.t1 + by });
  }

  function go(which) {
    const place = found[which];
    if (!place) return;
    ask({ t0: place.t0, t1: place.t1, hit: place.key });
    pinned = true;
    point({ key: place.key });
  }

  // A Perfetto UI on this machine: it answers PING once it is loaded, and then accepts a trace.
  function perfetto() {
    const origin = new URL(perfettoUrl).origin;
    const opened = window.open(perfettoUrl, "_blank");
    if (!opened) return say("The browser blocked the Perfetto window: allow pop-ups for this page.");
    say("Sending this window to Perfetto …");
    const link = document.getElementById("timeline-take").href;
    let timer = null;
    const answered = (event) => {
      if (event.source !== opened || event.origin !== origin || event.data !== "PONG") return;
      clearInterval(timer);
      removeEventListener("message", answered);
      fetch(link).then((answer) => (answer.ok ? answer.arrayBuffer() : answer.text().then(refused))).then((buffer) => {
        opened.postMessage({ perfetto: { buffer: buffer, title: document.title, fileName: "window.json.gz" } }, origin);
        say("");
      }).catch((error) => say("Perfetto could not load this window: " + (error.reason || "the server does not answer.")));
    };
    const refused = (text) => Promise.reject({ reason: text.trim().slice(0, 300) });
    const since = performance.now();
    addEventListener("message", answered);
    timer = setInterval(() => {
      const late = performance.now() - since > PERFETTO_MS;
      if (!opened.closed && !late) return opened.postMessage("PING", origin);
      clearInterval(timer);
      removeEventListener("message", answered);
      say(late ? "Perfetto does not answer at " + origin + "." : "");
    }, 200);
  }

  function say(words) {
    const place = document.getElementById("timeline-said");
    if (place) place.textContent = words;
  }

  function see(begin, end, ranks) {
    const there = new Set(latest ? latest.rows.map((each) => each[0]) : []);
    const missing = ranks.filter((each) => !there.has(each));
    if (missing.length) choose([...there].concat(missing));
    const wide = view.t1 - view.t0;
    if (end >= view.t0 && begin <= view.t1 && (end - begin) > wide / 400) return;
    const room = Math.max((end - begin) * 3, 20000), middle = (begin + end) / 2;
    ask({ t0: middle - room / 2, t1: middle + room / 2 });
  }

  function fit(begin, end, ranks) {
    const room = (end - begin) * 0.05;
    if (ranks) together(ranks);
    ask({ t0: begin - room, t1: end + room });
  }

  // As in Perfetto: what is selected fills the window.
  function focus() {
    const reach = near || chains().reach();
    if (reach) fit(reach[0], reach[1]);
  }

  function explain() {
    if (shownFacts && shownFacts.key) follow(shownFacts.key);
  }

  const DOES = {
    focus: focus, chain: explain,
    perfetto: perfetto,
    left: () => move(-0.25), right: () => move(0.25), in: () => zoom(0.5), out: () => zoom(2),
    all: () => ask({ t0: whole[0], t1: whole[1] }), next: () => go("next"), previous: () => go("previous"),
  };
  const KEYS = { ArrowLeft: "left", a: "left", ArrowRight: "right", d: "right", "+": "in", "=": "in", w: "in", "-": "out",
    s: "out", 0: "all", Home: "all", n: "next", N: "previous", ".": "next", ",": "previous", f: "focus", e: "chain" };

  document.addEventListener("click", (event) => {
    const button = event.target.closest && event.target.closest("[data-timeline]");
    if (!button || !here() || !view) return;
    if (button.dataset.timeline === "mode") ask({ mode: button.dataset.mode });
    else if (button.dataset.timeline === "show") toggle(button.dataset.show);
    else DOES[button.dataset.timeline]();
  });

  document.addEventListener("keydown", (event) => {
    if (!here() || !view || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.id === "timeline-text" && event.key === "Enter" && event.target.value === (view.q || "")) {
      go(event.shiftKey ? "previous" : "next");  // the same name again: the next hit
      return;
    }
    if (event.target.closest && event.target.closest("input, textarea, select, .wide")) return;
    if (event.key === "/") {
      document.getElementById("timeline-text").focus();
      event.preventDefault();
      return;
    }
    if (event.key === "Escape") { pinned = false; probe(null); unfollow(); return; }
    if ((event.key === "ArrowUp" || event.key === "ArrowDown") && chains().walk(event.key === "ArrowUp" ? -1 : 1)) {
      event.preventDefault();
      return;
    }
    const does = KEYS[event.key];
    if (!does) return;
    event.preventDefault();
    DOES[does]();
  });

  document.addEventListener("change", (event) => {
    if (!here() || !view) return;
    if (event.target.id === "timeline-ranks") { picked = true; ask({ ranks: event.target.value }); }
    if (event.target.id === "timeline-text") {
      seeking = event.target.value.trim() !== "";
      ask({ q: event.target.value, hit: null });
    }
  });

  document.addEventListener("wheel", (event) => {
    if (!here() || !view) return;
    const plot = event.target.closest && event.target.closest("#timeline-chart") ? graph() : null;
    if (!plot) return;
    event.preventDefault();
    const size = plot._fullLayout._size, box = plot.getBoundingClientRect();
    const lines = event.deltaMode === 1 ? WHEEL_LINE : 1, across = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const by = (view.t1 - view.t0) * across * lines / size.w;
      ask({ t0: view.t0 + by, t1: view.t1 + by }, true);
      return;
    }
    zoom(Math.exp(event.deltaY * lines * 0.002), Math.min(Math.max((event.clientX - box.left - size.l) / size.w, 0), 1));
  }, { passive: false });

  function probe(data) {
    clearTimeout(probing);
    probing = setTimeout(() => point(data), data ? 40 : 200);
  }

  let pointing = 0;

  function point(data) {
    const own = (pointing += 1);
    shownFacts = data;
    if (!data) near = null;
    const values = query(view);
    Object.entries(data || {}).forEach(([name, value]) => values.set(name, value));
    const answer = data ? fetched("point", values).then((got) => (got.status === 200 ? got.json() : null)) : Promise.resolve(NOTHING);
    answer.catch(() => null).then((given) => {
      const place = document.getElementById("timeline-pointed");
      if (own !== pointing || !given || !given.title || !place) return;
      describe(place, given);
      marks = given.links;
      launch = given.launch || [];
      near = given.window || null;
      lines();
      if (graph()) mark(graph());
      if (given.coming && !looking) looking = setTimeout(send, LOOK_MS);
    });
  }

  const NOTHING = { title: "Hover for details, click to pin and to see what it waited for.", parts: [], links: [] };

  function describe(place, given) {
    place.replaceChildren(made("strong", {}, given.title), made("span", {}, given.parts.join(" \u00b7 ")));
  }

  // The raster cell under the pointer; plotly reports bars only.
  function cell(event) {
    const plot = graph();
    if (!plot || !plot.contains(event.target) || !plot._fullLayout) return null;
    const layout = plot._fullLayout, size = layout._size, box = plot.getBoundingClientRect();
    const x = (event.clientX - box.left - size.l) / size.w, y = 1 - (event.clientY - box.top - size.t) / size.h;
    if (x < 0 || x >= 1) return null;
    const each = rasters.find((one) => y > layout[one.axis].domain[0] && y <= layout[one.axis].domain[1]);
    if (!each) return null;
    const [low, top] = layout[each.axis].domain, [left, right] = layout.xaxis.range;
    const row = Math.min(Math.floor((top - y) / (top - low) * each.rows), each.rows - 1);
    const bin = Math.floor((left + x * (right - left) - each.first_ms) / each.width_ms);
    return bin < 0 || bin >= each.bins ? null : { row: row, bin: bin, part: each.part };
  }

  document.addEventListener("mousemove", (event) => {
    if (!view || event.buttons || pinned || !here()) return;
    const what = cell(event);
    if (JSON.stringify(what) === JSON.stringify(over)) return;
    if (what || over) probe(what);
    over = what;
  });

  // Rank and time under the pointer, on the map and on the rows below it; also where nothing ran.
  function moment(event) {
    const plot = graph();
    if (!plot || !latest || !plot.contains(event.target) || !plot._fullLayout) return null;
    const layout = plot._fullLayout, size = layout._size, box = plot.getBoundingClientRect();
    const x = (event.clientX - box.left - size.l) / size.w, y = 1 - (event.clientY - box.top - size.t) / size.h;
    const on = [[layout.yaxis.domain, latest.map_ranks], [layout.yaxis2.domain, latest.rows.map((each) => each[0])]];
    const part = x < 0 || x >= 1 ? null : on.find(([[low, top], ranks]) => ranks.length && y > low && y <= top);
    if (!part) return null;
    const [[low, top], ranks] = part, [left, right] = layout.xaxis.range;
    const rank = ranks[Math.min(Math.floor((top - y) / (top - low) * ranks.length), ranks.length - 1)];
    return rank < 0 ? null : { rank: rank, ns: Math.round((left + x * (right - left)) * 1e6), lower: part === on[1] };
  }

  document.addEventListener("mousedown", (event) => {
    const where = here() && view && event.button === 0 ? moment(event) : null;
    pressed = where && { where: where, what: cell(event), key: where.lower && hovered ? hovered.key : null, x: event.clientX, y: event.clientY };
  });

  document.addEventListener("mouseup", (event) => {
    const was = pressed;
    pressed = null;
    if (!was || Math.hypot(event.clientX - was.x, event.clientY - was.y) >= STILL) return;
    if (was.what) {
      pinned = true;
      probe(was.what);
    }
    if (was.where.ns < whole[0]) return;
    follow(was.key || was.where.rank + "@" + was.where.ns, was.key ? was.where.ns : undefined);
  });

  document.addEventListener("click", (event) => {
    const summary = event.target.closest && event.target.closest(".tl summary");
    if (summary && table && !summary.parentElement.open) tables();
  });

  function spot(data) {
    const hit = data && data.points && data.points[0];
    const at = hit && hit.pointNumber;
    if (Array.isArray(at)) return { row: at[0], bin: at[1], part: "lanes" };
    const key = hit && hit.customdata ? String(hit.customdata[0]) : "";
    return /^\d+:\d+$/.test(key) ? { key: key } : null;
  }

  // The first view is requested before the page is laid out.
  function early() {
    if (!/^\/runs\/[^/]+\/timeline$/.test(page())) return;
    const asked = new URLSearchParams(location.search);
    requested = width();
    asked.set("width", requested);
    first = { address: location.pathname + location.search, answer: fetch(page() + "/view?" + asked) };
    first.answer.catch(() => null);
  }

  // Called when the page was laid out, also again while a run grows, then with the address that Dash knows; the view
  // continues at the current window.
  function laid() {
    const given = new URLSearchParams(location.search);
    const there = Object.fromEntries(STATE.filter((name) => given.has(name)).map((name) => [name, given.get(name)]));
    ["t0", "t1"].forEach((name) => { if (name in there) there[name] = Number(there[name]); });
    pinned = false;
    picked = given.has("ranks");
    marks = [];
    launch = [];
    shownFacts = null;
    near = null;
    drawnAt = "";
    view = null;
    chaining += 1;
    chains().hide();
    chains().with({ close: unfollow, go: fit, see: see });
    minimap().with((t0) => { if (view && here()) ask({ t0: t0, t1: t0 + view.t1 - view.t0 }, true); });
    describe(document.getElementById("timeline-pointed"), NOTHING);
    const own = first && first.address === location.pathname + location.search ? first.answer : null;
    first = null;
    if (!own) requested = width();
    const ready = own || Promise.resolve({ status: 202 });
    begin(ready.then((answer) => (answer.status === 202 ? fetched("view", query(there)) : answer)));
  }

  early();
  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    timeline: {
      laid: function () {
        if (here()) laid();
        return window.dash_clientside.no_update;
      },
    },
  });
})();
