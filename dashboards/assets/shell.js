// The theme switch, the title of a page, and where the keyboard is after a link was followed.
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
    // What the system says anyway is not kept, so that the page follows it again.
    const own = theme === system() ? "" : theme;
    document.documentElement.style.colorScheme = own;
    try {
      if (own) localStorage.setItem(KEY, own);
      else localStorage.removeItem(KEY);
    } catch (error) {
      // Storage may be forbidden: the choice then lasts as long as the page.
    }
    label();
  }

  document.addEventListener("click", (event) => {
    if (event.target.closest && event.target.closest("#theme")) choose(chosen() === "dark" ? "light" : "dark");
  });
  dark.addEventListener("change", label);

  let last = null;
  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    shell: {
      // Called with the title of what is shown now, whenever it was laid out.
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
