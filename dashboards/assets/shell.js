// The theme switch, the title of a page, the keyboard focus after a link was followed, and loading plotly.
(function () {
  "use strict";
  const KEY = "overlapscope-theme";
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const system = () => (dark.matches ? "dark" : "light");
  const chosen = () => document.documentElement.style.colorScheme || system();

  function label() {
    const button = document.getElementById("theme");
    if (!button) return;
    const other = chosen() === "dark" ? "light" : "dark";
    button.textContent = other === "dark" ? "Dark" : "Light";
    button.setAttribute("aria-label", "Show in " + other + " colours");
  }

  function choose(theme) {
    // The system's own theme is not stored, so that the page follows the system again.
    const own = theme === system() ? "" : theme;
    document.documentElement.style.colorScheme = own;
    try {
      if (own) localStorage.setItem(KEY, own);
      else localStorage.removeItem(KEY);
    } catch (error) {
      // Storage may be forbidden: then the choice lasts as long as the page.
    }
    label();
  }

  document.addEventListener("click", (event) => {
    if (event.target.closest && event.target.closest("#theme")) choose(chosen() === "dark" ? "light" : "dark");
  });
  dark.addEventListener("change", label);

  // A page that is laid out anew has new elements: the successor of the one that had the keyboard focus gets it.
  let focused = null;
  document.addEventListener("focusin", (event) => {
    const owner = event.target.closest("#main [id]");
    focused = owner && { element: event.target, owner: owner.id, role: event.target.getAttribute("role") };
  });
  document.addEventListener("focusout", (event) => {
    const left = event.target;
    setTimeout(() => { if (left.isConnected && focused && focused.element === left) focused = null; });
  });
  new MutationObserver(() => {
    if (!focused || focused.element.isConnected || document.activeElement !== document.body) return;
    const owner = document.getElementById(focused.owner);
    const next = owner && (focused.role ? owner.querySelector(`[role=${focused.role}]`) : owner);
    if (next) next.focus({ preventScroll: true });
  }).observe(document, { childList: true, subtree: true });

  // Plotly takes long to start: start it while Dash waits for the page, and make Dash use this copy.
  function bring() {
    const address = document.getElementById("plotly").href;
    window._dashPlotlyJSURL = address;
    if (!window.Plotly) document.body.append(Object.assign(document.createElement("script"), { src: address, async: true }));
  }
  if (window.requestIdleCallback) requestIdleCallback(bring, { timeout: 500 });
  else setTimeout(bring, 50);

  let last = null;
  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    shell: {
      // Called with the title of the current page, after each layout.
      arrived: function (title) {
        const here = location.pathname;
        document.title = title ? title + " · OverlapScope" : "OverlapScope";
        label();
        const main = document.getElementById("main");
        if (main && last !== null && last !== here) {
          main.focus({ preventScroll: true });
          scrollTo(0, 0);
        }
        last = here;
        return title ? "false" : "true";
      },
    },
  });
})();
