// Lines over the last minutes, as SVG, so that the style sheet colours them. Knows numbers and times, no meaning.

import { element, setText } from "./dom.js";

const SPACE = "http://www.w3.org/2000/svg";
const MARGIN = { top: 8, right: 8, bottom: 20, left: 52 };
const HEIGHT = 160;
export const WINDOW = 300; // seconds shown at most
const SPANS = [60, 120, WINDOW]; // the shortest that holds all there is
const GAP = 12; // seconds without a sample that break a line

export class LineChart {
  // series: names, in the order of the style sheet's colours. format(value, isTick): in words. top: a fixed maximum.
  constructor(root, { title, series, format, top = null }) {
    Object.assign(this, { root, title, series, format, top, points: [], now: 0, span: SPANS[0], cursor: null });
    this.values = series.map(() => element("b", { textContent: "–" }));
    const key = (name, i) =>
      element("span", { className: `key line-${i}` }, element("i"), `${name} `, this.values[i]);
    this.svg = svg("svg", { tabindex: 0, role: "img", height: HEIGHT });
    this.tip = element("div", { className: "tip", hidden: true });
    const heading = element("span", { className: "title", textContent: title });
    root.append(element("figcaption", {}, heading, ...series.map(key)));
    root.append(element("div", { className: "plot" }, this.svg, this.tip));
    this.#listen();
    new ResizeObserver(() => this.draw()).observe(root);
  }

  // points: [{t (seconds), values: [number | null for each series]}], oldest first.
  update(points, now) {
    this.points = points.filter(({ t }) => t >= now - WINDOW);
    this.now = now;
    const last = this.points.at(-1)?.values ?? [];
    this.values.forEach((node, i) => setText(node, this.format(last[i])));
    const summary = this.series.map((name, i) => `${name} ${this.format(last[i])}`).join(", ");
    this.span = SPANS.find((span) => span >= now - (this.points[0]?.t ?? now)) ?? WINDOW;
    this.svg.setAttribute("aria-label", `${this.title} over the last ${this.span / 60} min. Now: ${summary}`);
    this.draw();
  }

  draw() {
    const width = Math.floor(this.root.querySelector(".plot").clientWidth);
    if (!width) return;
    const highest = Math.max(0, ...this.points.flatMap(({ values }) => values.map((value) => value ?? 0)));
    const ticks = this.top === null ? niceTicks(highest) : [0, this.top / 2, this.top];
    const right = width - MARGIN.right;
    const bottom = HEIGHT - MARGIN.bottom;
    this.x = (t) => MARGIN.left + ((t - this.now) / this.span + 1) * (right - MARGIN.left);
    this.y = (value) => bottom - (value / ticks.at(-1)) * (bottom - MARGIN.top);
    this.svg.setAttribute("width", width);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.replaceChildren(...this.#grid(ticks, right), ...this.#times(), ...this.#lines(), ...this.#cross());
  }

  #grid(ticks, right) {
    return ticks.flatMap((value) => {
      const y = this.y(value);
      const label = svg("text", { x: MARGIN.left - 8, y: y + 3.5, "text-anchor": "end" });
      label.textContent = this.format(value, true);
      return [svg("line", { x1: MARGIN.left, x2: right, y1: y, y2: y, class: value ? "grid" : "axis" }), label];
    });
  }

  #times() {
    const step = this.span > 120 ? 60 : this.span / 4; // seconds
    return Array.from({ length: this.span / step + 1 }, (_, i) => {
      const ago = i * step;
      const anchor = ago === 0 ? "end" : "middle";
      const label = svg("text", { x: this.x(this.now - ago), y: HEIGHT - 4, "text-anchor": anchor });
      label.textContent = ago === 0 ? "now" : ago % 60 ? `−${ago} s` : `−${ago / 60} min`;
      return label;
    });
  }

  #lines() {
    return this.series.map((_, i) => svg("path", { d: this.#path(i), class: `line line-${i}` }));
  }

  #path(series) {
    let path = "";
    let last = null;
    for (const { t, values } of this.points) {
      const value = values[series];
      if (value === null || value === undefined) {
        last = null;
        continue;
      }
      const isNew = last === null || t - last > GAP;
      // A lone point is a line of no length: its round ends make a dot.
      path += `${isNew ? "M" : "L"}${this.x(t).toFixed(1)} ${this.y(value).toFixed(1)}${isNew ? "h0" : ""}`;
      last = t;
    }
    return path;
  }

  // --- reading single points -----------------------------------------------------------------------------------------

  #listen() {
    const { svg: plot } = this;
    plot.addEventListener("pointermove", ({ clientX }) => {
      if (!this.points.length) return;
      const x = clientX - plot.getBoundingClientRect().left;
      const distance = ({ t }) => Math.abs(this.x(t) - x);
      this.#read(this.points.reduce((best, point) => (distance(point) < distance(best) ? point : best)).t);
    });
    plot.addEventListener("pointerleave", () => this.#read(null));
    plot.addEventListener("blur", () => this.#read(null));
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !this.points.length) return;
      event.preventDefault();
      const at = this.points.findIndex(({ t }) => t === this.cursor);
      const next = at === -1 ? this.points.length - 1 : at + step;
      this.#read((this.points[next] ?? this.points[at]).t);
    });
  }

  #read(time) {
    this.cursor = time;
    this.draw();
  }

  #cross() {
    const point = this.points.find(({ t }) => t === this.cursor);
    this.tip.hidden = point === undefined;
    if (point === undefined) return [];
    const x = this.x(point.t);
    const ago = Math.round(this.now - point.t);
    const told = this.series.map((name, i) => `${name} ${this.format(point.values[i])}`);
    setText(this.tip, `${ago < 1 ? "now" : `${ago} s ago`}: ${told.join(", ")}`);
    const room = this.svg.clientWidth - this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(room, x - this.tip.offsetWidth / 2))}px`;
    this.tip.style.top = `${-this.tip.offsetHeight}px`;
    const dot = (value, i) => svg("circle", { cx: x, cy: this.y(value), r: 3, class: `dot line-${i}` });
    const dots = point.values.map((value, i) => (value === null || value === undefined ? "" : dot(value, i)));
    return [svg("line", { x1: x, x2: x, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom, class: "cross" }), ...dots];
  }
}

// 0 and a few round values up to at least `highest`.
function niceTicks(highest) {
  if (!(highest > 0)) return [0, 1];
  const power = 10 ** Math.floor(Math.log10(highest));
  const step = [0.2, 0.5, 1, 2, 5].map((factor) => factor * power).find((size) => highest / size <= 4);
  const number = Math.ceil(highest / step - 1e-9);
  return Array.from({ length: number + 1 }, (_, i) => i * step);
}

function svg(name, attributes) {
  const node = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}
