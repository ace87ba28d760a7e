// Theme, menu, copy buttons, search. Nothing is loaded but search.js beside this file.
"use strict";
const root = document.body.dataset.root;
const byId = (id) => document.getElementById(id);

// Theme: the same key as the dashboard, which serves these pages under /docs.
const themeButton = byId("site-theme");
const isDark = () => {
  const chosen = document.documentElement.style.colorScheme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};
const labelTheme = () => { themeButton.textContent = isDark() ? "Light" : "Dark"; };
themeButton.addEventListener("click", () => {
  const next = isDark() ? "light" : "dark";
  document.documentElement.style.colorScheme = next;
  try { localStorage.setItem("overlapscope-theme", next); } catch (error) { /* private window */ }
  labelTheme();
});
labelTheme();
if (location.pathname.startsWith("/docs/")) byId("site-dashboard").hidden = false;

const menu = byId("site-menu");
menu.addEventListener("click", () => {
  menu.setAttribute("aria-expanded", String(byId("site-nav").classList.toggle("open")));
});
byId("site-nav").querySelector("[aria-current]")?.scrollIntoView({ block: "center" });
scrollTo(0, location.hash ? scrollY : 0);

// Copy: of what is typed, without prompts.
for (const block of document.querySelectorAll(".code.typed")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    const text = block.querySelector("code").innerText;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch (error) {
      getSelection().selectAllChildren(block.querySelector("code"));
      button.textContent = "Press Ctrl-C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  block.append(button);
}

// Search: every word of the query begins a word of the section; titles weigh more than text.
const dialog = byId("site-found"), query = byId("site-query"), hits = byId("site-hits");
let sections = null, chosen = -1;
function load() {
  if (sections) return Promise.resolve();
  return new Promise((done) => {
    const script = document.createElement("script");
    script.src = `${root}search.js`;
    script.onload = () => {
      sections = window.overlapscopeSearch.map(([page, title, address, text]) => ({
        page, title, address, text, low: [`${page} `.toLowerCase(), `${title} `.toLowerCase(), text.toLowerCase()],
      }));
      done();
    };
    document.head.append(script);
  });
}
function open() {
  if (!dialog.open) dialog.showModal();
  query.select();
  load().then(search);
}
const escaped = (words) => words.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
function ranked(words) {
  const patterns = words.map((word) => new RegExp(`(^|[^a-z0-9])${escaped(word)}`));
  const whole = words.map((word) => new RegExp(`(^|[^a-z0-9])${escaped(word)}([^a-z0-9]|$)`));
  const rows = [];
  for (const each of sections) {
    let score = 0;
    for (let at = 0; at < words.length && score >= 0; at += 1) {
      const [page, title, text] = each.low.map((part) => patterns[at].test(part));
      const exact = each.low.map((part) => whole[at].test(part));
      if (!page && !title && !text) score = -1;
      else score += (title ? 12 : 0) + (page ? (each.title ? 4 : 16) : 0) + (text ? 1 : 0) + (exact[1] ? 8 : 0)
        + (exact[0] && !each.title ? 12 : 0) + (exact[2] ? 2 : 0);
    }
    if (score > 0) rows.push([score, each]);
  }
  return rows.sort((one, other) => other[0] - one[0]).slice(0, 30).map((row) => row[1]);
}
function marked(target, text, words) {
  const pattern = new RegExp(`(${words.map(escaped).join("|")})`, "ig");
  text.split(pattern).forEach((piece, at) => {
    if (at % 2) target.append(Object.assign(document.createElement("mark"), { textContent: piece }));
    else target.append(piece);
  });
}
function search() {
  const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
  hits.replaceChildren();
  choose(-1);
  const rows = sections && words.length ? ranked(words) : [];
  rows.forEach((each, at) => {
    const item = document.createElement("li"), link = document.createElement("a");
    item.setAttribute("role", "option");
    item.id = `hit${at}`;
    link.href = root + each.address;
    link.tabIndex = -1;
    const head = document.createElement("b"), below = document.createElement("span");
    marked(head, each.title ? `${each.page.replaceAll("`", "")} › ${each.title}` : each.page.replaceAll("`", ""), words);
    const place = Math.max(0, Math.min(...words.map((word) => each.low[2].indexOf(word)).filter((one) => one >= 0), 1e9));
    const start = place === 1e9 ? 0 : Math.max(0, place - 60);
    marked(below, (start ? "… " : "") + each.text.slice(start, start + 180), words);
    link.append(head, below);
    link.addEventListener("click", () => dialog.close());
    item.append(link);
    hits.append(item);
  });
  query.setAttribute("aria-expanded", String(rows.length > 0));
  byId("site-count").textContent = !words.length ? "" : rows.length ? `${rows.length === 30 ? "The best 30" : rows.length} found` : "Nothing found";
  if (rows.length) choose(0);
}
function choose(at) {
  const items = hits.children;
  if (items[chosen]) items[chosen].removeAttribute("aria-selected");
  chosen = items.length ? Math.min(Math.max(at, -1), items.length - 1) : -1;
  if (items[chosen]) {
    items[chosen].setAttribute("aria-selected", "true");
    items[chosen].scrollIntoView({ block: "nearest" });
    query.setAttribute("aria-activedescendant", items[chosen].id);
  } else query.removeAttribute("aria-activedescendant");
}
byId("site-search").addEventListener("click", open);
query.addEventListener("input", search);
query.addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    choose(chosen + (event.key === "ArrowDown" ? 1 : -1));
    event.preventDefault();
  } else if (event.key === "Enter") {
    event.preventDefault();
    hits.children[chosen]?.querySelector("a").click();
  }
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    open();
  }
});

// The section in view is marked in the list on the right.
const links = new Map([...document.querySelectorAll(".onpage a")].map((link) => [link.hash.slice(1), link]));
if (links.size) {
  const heads = [...document.querySelectorAll("main h2[id], main h3[id]")].filter((head) => links.has(head.id));
  const follow = () => {
    const here = heads.filter((head) => head.getBoundingClientRect().top < 120).pop() ?? heads[0];
    for (const link of links.values()) link.classList.toggle("current", link === links.get(here.id));
  };
  addEventListener("scroll", follow, { passive: true });
  follow();
}
