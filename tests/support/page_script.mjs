// Runs the script of HTML reports against a page of a few stand-ins, and prints what it did, as JSON.
import fs from "fs";
import vm from "vm";

class Element {
  constructor(own = {}) {
    this.attributes = {}; this.dataset = {}; this.style = {}; this.heard = {}; this.classes = new Set();
    this.classList = {
      toggle: (name, on) => (on ? this.classes.add(name) : this.classes.delete(name)),
      contains: (name) => this.classes.has(name),
    };
    Object.assign(this, own);
  }
  addEventListener(name, act) { this.heard[name] = act; }
  getAttribute(name) { return this.attributes[name] ?? null; }
  setAttribute(name, value) { this.attributes[name] = value; }
  removeAttribute(name) { delete this.attributes[name]; }
  closest(selector) { return this.around?.[selector] ?? null; }
  querySelectorAll(selector) { return this.inside?.[selector] ?? []; }
  remove() { this.removed = true; }
}

const tip = new Element({ offsetWidth: 10, offsetHeight: 10 });
const title = new Element();
const bars = ["0", "1"].map((s) => new Element({ dataset: { s } }));
const legend = ["0", "1"].map((s) => new Element({ dataset: { s }, attributes: { "aria-pressed": "false" } }));
const figure = new Element({ inside: { ".legend button": legend, "svg [data-s]": bars } });
for (const each of legend) each.around = { figure };
const rows = ["1.000", "n/a", "-3.5", "1,200.1"].map((value, at) => ({
  cells: [{ textContent: "r" + at }, { textContent: value }],
}));
const body = { rows, append(...sorted) { this.rows = sorted; } };
const heads = [0, 1].map((cellIndex) => new Element({ cellIndex, around: { table: { tBodies: [body] } } }));
heads[0].classes.add("word");
for (const each of heads) each.parentNode = { cells: heads };
const sorters = heads.map((th) => new Element({ around: { th } }));
const page = new Element({
  getElementById: () => tip,
  inside: { "[data-tip] > title": [title], ".legend button": legend, "th button": sorters },
});
vm.runInNewContext(fs.readFileSync(process.argv[2], "utf8"), { document: page, window: { innerWidth: 500 } });

const told = { titleRemoved: title.removed };
const bar = new Element({ dataset: { tip: "<b>rank 0" } });
bar.around = { "[data-tip]": bar };
page.heard.pointermove({ target: bar, clientX: 5, clientY: 50 });
told.tip = [tip.hidden, tip.textContent];
page.heard.pointermove({ target: {}, clientX: 5, clientY: 50 });
told.tipLeft = tip.hidden;
legend[0].heard.click();
told.pressed = [legend.map((each) => each.attributes["aria-pressed"]), bars.map((each) => each.classes.has("faint"))];
legend[0].heard.click();
told.released = bars.map((each) => each.classes.has("faint"));
told.sorted = [1, 1, 0, 0].map((at) => {
  sorters[at].heard.click();
  return [heads.map((each) => each.attributes["aria-sort"] ?? ""), body.rows.map((row) => row.cells[at].textContent)];
});
console.log(JSON.stringify(told));
