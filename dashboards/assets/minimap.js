// The whole recording as one row above the timeline, with a frame around the window in view: drag it to move the window.
(function () {
  "use strict";
  const LEAST = 3;  // pixels of the frame
  let shown = null, held = null, painted = "", moved = () => undefined;
  const place = () => document.getElementById("timeline-minimap");

  // `given`: cells (a digit each, the state of most time), cell_ns, colours, whole, t0, t1, left and width in pixels.
  function draw(given) {
    const own = place();
    if (!own) return;
    shown = given;
    own.style.marginLeft = given.left + "px";
    own.style.width = given.width + "px";
    const key = JSON.stringify([given.cells, given.width]), canvas = own.querySelector("canvas");
    if (key !== painted || canvas.width < 2) paint(canvas);
    painted = key;
    frame(given.t0, given.t1);
  }

  function paint(canvas) {
    const ratio = window.devicePixelRatio || 1, length = shown.whole[1] - shown.whole[0];
    canvas.width = Math.max(Math.round(shown.width * ratio), 2);  // which clears it
    canvas.height = Math.max(Math.round(canvas.clientHeight * ratio), 1);
    const context = canvas.getContext("2d");
    [...shown.cells].forEach((state, at) => {
      const begin = Math.round(at * shown.cell_ns / length * canvas.width);
      const end = Math.round((at + 1) * shown.cell_ns / length * canvas.width);
      const [red, green, blue, seen] = shown.colours[Number(state)];
      context.fillStyle = "rgba(" + red + "," + green + "," + blue + "," + seen / 255 + ")";
      context.fillRect(begin, 0, end - begin, canvas.height);
    });
  }

  function frame(t0, t1) {
    const own = place();
    if (!own || !shown) return;
    shown.t0 = t0;
    shown.t1 = t1;
    const [begin, end] = shown.whole, length = Math.max(end - begin, 1);
    const wide = Math.max((t1 - t0) / length * shown.width, LEAST);
    const left = Math.min((t0 - begin) / length * shown.width, shown.width - wide);
    const around = own.querySelector(".tl-frame");
    around.style.left = left + "px";
    around.style.width = wide + "px";
    const free = length - (t1 - t0);
    own.setAttribute("aria-valuenow", String(free > 0 ? Math.round((t0 - begin) / free * 100) : 0));
    const ms = (ns) => (ns / 1e6).toFixed(3);
    own.setAttribute("aria-valuetext", ms(t0) + " to " + ms(t1) + " ms of " + ms(begin) + " to " + ms(end) + " ms");
  }

  function at(event) {
    const share = (event.clientX - place().getBoundingClientRect().left) / shown.width;
    return shown.whole[0] + share * (shown.whole[1] - shown.whole[0]);
  }

  // Inside the frame its place is held; elsewhere the window's middle comes to the pointer.
  document.addEventListener("pointerdown", (event) => {
    const own = event.target.closest && event.target.closest("#timeline-minimap");
    if (!own || !shown || event.button !== 0) return;
    const ns = at(event), inside = ns >= shown.t0 && ns < shown.t1;
    held = inside ? ns - shown.t0 : (shown.t1 - shown.t0) / 2;
    own.setPointerCapture(event.pointerId);
    if (!inside) moved(ns - held);
  });

  document.addEventListener("pointermove", (event) => {
    if (held !== null && place() && shown) moved(at(event) - held);
  });

  ["pointerup", "pointercancel"].forEach((name) => document.addEventListener(name, () => { held = null; }));

  window.overlapscopeMinimap = { draw: draw, frame: frame, with: (does) => { moved = does; shown = null; painted = ""; } };
})();
