// The timeline's window of time: moved by buttons, keys, wheel and drag, kept in the address, drawn by the server.
(function () {
  "use strict";
  const QUIET_MS = 90;  // after the last of many movements
  const PATIENCE_MS = 10000;  // for an answer, before asking anew
  const PERFETTO_MS = 30000;  // for Perfetto to load
  let view = null, whole = [0, 1], found = {}, pinned = false, waiting = null, probing = null, marks = [], perfettoUrl = null;
  let askedAt = -1e9, again = false, latest = null;

  const none = () => window.dash_clientside.no_update;
  const graph = () => document.querySelector("#timeline-figure.js-plotly-plot");
  const here = () => document.getElementById("timeline-figure") !== null;

  function address(next) {
    const query = new URLSearchParams();
    const all = next.t0 <= whole[0] && next.t1 >= whole[1];
    if (!all) { query.set("t0", next.t0); query.set("t1", next.t1); }
    if (next.ranks) query.set("ranks", next.ranks);
    if (next.mode && next.mode !== "dominating") query.set("mode", next.mode);
    if (next.q) query.set("q", next.q);
    const text = query.toString();
    history.replaceState(history.state, "", location.pathname + (text ? "?" + text : ""));
  }

  function width() {
    const plot = graph();
    const size = plot && plot._fullLayout && plot._fullLayout._size ? plot._fullLayout._size.w : 0;
    return size > 0 ? Math.round(size / 10) * 10 : 1100;
  }

  // Show where the window is going at once, with what is there; the exact picture follows.
  function ask(change, quiet) {
    if (!view) return;
    const next = Object.assign({}, view, change, { width: width() });
    const length = Math.min(Math.max(next.t1 - next.t0, 20), whole[1] - whole[0]);
    next.t0 = Math.round(Math.max(Math.min(next.t0, whole[1] - length), whole[0]));
    next.t1 = Math.round(next.t0 + length);
    if (!("at" in change) && !("t0" in change)) next.at = null;
    view = next;
    address(next);
    modes();
    clearTimeout(waiting);
    if (quiet) waiting = setTimeout(send, QUIET_MS);
    else send();
  }

  // A run that grows is laid out anew as Dash knows the address; where the window has moved on since, it goes back there.
  function resume() {
    const query = new URLSearchParams(location.search);
    const there = (name, plain) => (query.get(name) === null ? plain : query.get(name));
    const kept = { t0: Number(there("t0", view.t0)), t1: Number(there("t1", view.t1)), mode: there("mode", view.mode),
      ranks: there("ranks", view.ranks), q: there("q", view.q) };
    const moved = ["t0", "t1", "mode", "ranks", "q"].filter((name) => String(kept[name]) !== String(view[name]));
    if (moved.length && Number.isFinite(kept.t0) && Number.isFinite(kept.t1)) ask(kept);
  }

  // One question at a time: what is asked meanwhile waits, and only the last of it is asked.
  function send() {
    if (performance.now() - askedAt < PATIENCE_MS) {
      again = true;
      return;
    }
    askedAt = performance.now();
    again = false;
    window.dash_clientside.set_props("timeline-view", { data: view });
  }

  // Dash's own graph draws everything twice when a window moves; so it only brings plotly, and this draws.
  function draw(given) {
    const place = document.getElementById("timeline-figure");
    latest = given;
    if (!place || !window.Plotly) {
      setTimeout(() => { if (latest === given) draw(given); }, 15);
      return;
    }
    place.style.height = given.height + "px";
    window.Plotly.react(place, given.figure.data, given.figure.layout, given.config).then(() => {
      if (!place.timelineBound) {
        place.timelineBound = true;
        place.on("plotly_relayout", zoomed);
        place.on("plotly_hover", (data) => { if (!pinned) probe(spot(data)); });
        place.on("plotly_unhover", () => { if (!pinned) probe(null); });
        place.on("plotly_click", (data) => {
          const what = spot(data);
          if (what) { pinned = true; probe(what); }
        });
      }
      mark(place);
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

  function modes() {
    document.querySelectorAll("[data-timeline=mode]").forEach((button) => {
      button.setAttribute("aria-pressed", String(button.dataset.mode === view.mode));
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
    ask({ t0: place.t0, t1: place.t1, at: place.at });
    pinned = true;
    window.dash_clientside.set_props("timeline-probe", { data: { key: place.key } });
  }

  // A build of Perfetto that is served beside this: it answers PING once it stands, and then takes a trace.
  function perfetto() {
    const origin = new URL(perfettoUrl).origin;
    const opened = window.open(perfettoUrl, "_blank");
    if (!opened) return say("The browser let no window be opened for Perfetto: allow pop-ups for this page.");
    say("Handing this window over to Perfetto …");
    const link = document.getElementById("timeline-take").href;
    let timer = null;
    const answered = (event) => {
      if (event.source !== opened || event.origin !== origin || event.data !== "PONG") return;
      clearInterval(timer);
      removeEventListener("message", answered);
      fetch(link).then((answer) => (answer.ok ? answer.arrayBuffer() : answer.text().then(refused))).then((buffer) => {
        opened.postMessage({ perfetto: { buffer: buffer, title: document.title, fileName: "window.json.gz" } }, origin);
        say("");
      }).catch((error) => say("Perfetto did not get this window: " + (error.told || "the server does not answer.")));
    };
    const refused = (text) => Promise.reject({ told: text.trim().slice(0, 300) });
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

  const DOES = {
    perfetto: perfetto,
    left: () => move(-0.25), right: () => move(0.25), in: () => zoom(0.5), out: () => zoom(2),
    all: () => ask({ t0: whole[0], t1: whole[1] }), next: () => go("next"), previous: () => go("previous"),
  };
  const KEYS = { ArrowLeft: "left", a: "left", ArrowRight: "right", d: "right", "+": "in", "=": "in", w: "in", "-": "out",
    s: "out", 0: "all", Home: "all", n: "next", N: "previous" };

  document.addEventListener("click", (event) => {
    const button = event.target.closest && event.target.closest("[data-timeline]");
    if (!button || !here() || !view) return;
    if (button.dataset.timeline === "mode") ask({ mode: button.dataset.mode });
    else DOES[button.dataset.timeline]();
  });

  document.addEventListener("keydown", (event) => {
    if (!here() || !view || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest && event.target.closest("input, textarea, select, .wide")) return;
    if (event.key === "/") {
      document.getElementById("timeline-text").focus();
      event.preventDefault();
      return;
    }
    if (event.key === "Escape") { pinned = false; probe(null); return; }
    const does = KEYS[event.key];
    if (!does) return;
    event.preventDefault();
    DOES[does]();
  });

  document.addEventListener("change", (event) => {
    if (!here() || !view) return;
    if (event.target.id === "timeline-ranks") ask({ ranks: event.target.value });
    if (event.target.id === "timeline-text") ask({ q: event.target.value, at: null });
  });

  document.addEventListener("wheel", (event) => {
    if (!here() || !view || !(event.ctrlKey || event.metaKey)) return;
    const plot = event.target.closest && event.target.closest("#timeline-chart") ? graph() : null;
    if (!plot) return;
    event.preventDefault();
    const size = plot._fullLayout._size, box = plot.getBoundingClientRect();
    zoom(Math.exp(event.deltaY * 0.002), Math.min(Math.max((event.clientX - box.left - size.l) / size.w, 0), 1));
  }, { passive: false });

  function probe(data) {
    clearTimeout(probing);
    probing = setTimeout(() => window.dash_clientside.set_props("timeline-probe", { data: data }), data ? 40 : 200);
  }

  function spot(data) {
    const point = data && data.points && data.points[0];
    if (!point) return null;
    if (point.customdata) {
      const key = String(point.customdata[0]);
      return /^\d+:\d+$/.test(key) ? { key: key } : null;
    }
    const at = Array.isArray(point.pointNumber) ? point.pointNumber : point.pointIndex;
    if (!Array.isArray(at)) return null;
    const plot = graph();
    const trace = plot && plot.data[point.curveNumber];
    return { row: at[0], bin: at[1], part: trace ? trace.name : "map" };
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    timeline: {
      // Called when the page was laid out, and whenever an answer came.
      shown: function (data, told, all) {
        if (!data || data.width === undefined) {  // laid out anew
          pinned = false;
          marks = [];
        }
        whole = all || whole;
        found = told || {};
        if (data && (view === null || data.width === undefined)) {
          view = Object.assign({}, data);
          resume();
        }
        const hits = document.getElementById("timeline-hits");
        if (hits) {
          const number = found.number || 0;
          const words = number.toLocaleString("en");
          hits.textContent = !found.text ? "" : Number.isInteger(found.at) ? found.at + 1 + " of " + words : words + " found";
        }
        return none();
      },
      perfetto: function (url) {
        perfettoUrl = url;
        return !url;
      },
      drawn: function (given) {
        askedAt = -PATIENCE_MS;
        if (given) draw(given);
        if (again) send();
        return none();
      },
      // The same call on the other ranks is outlined, also in the pictures that come while it is pointed at.
      linked: function (given) {
        marks = given || [];
        if (graph()) mark(graph());
        return none();
      },
    },
  });
})();
