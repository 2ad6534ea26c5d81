// The block pool as a grid: one cell a block, coloured by its oldest owner, with a dot where several own it. Cached
// blocks are nobody's but can be found again. Point at a cell, or walk with the arrow keys, to read it.

import { isDark, keyOf, resolved } from "./colours.js";
import { element, setText } from "./dom.js";
import { count, plural } from "./words.js";

const MAX_CELLS = 12_000; // beyond that a cell stands for several blocks
const HEIGHT = 230; // pixels the grid would like to take
const FREE = -1;
const CACHED = -2;
const UNLISTED = -3; // owned by a request beyond the listed ones

export class BlockGrid {
  constructor(root, colours) {
    this.colours = colours;
    this.canvas = element("canvas", { tabIndex: 0 });
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-roledescription", "block grid");
    this.tip = element("div", { className: "tip", hidden: true });
    this.told = element("p", { className: "visually-hidden" });
    this.told.setAttribute("role", "status");
    this.root = root;
    root.append(this.canvas, this.tip, this.told);
    this.cursor = null; // the cell that is read
    this.marked = null; // the request whose blocks stand out
    this.#listen();
    new ResizeObserver(() => this.draw()).observe(root);
  }

  update(state) {
    this.state = state;
    const { blocks } = state;
    const owned = blocks.total - blocks.free - blocks.cached;
    const shared = blocks.refs.filter((refs) => refs > 1).length;
    this.canvas.setAttribute(
      "aria-label",
      `${plural(blocks.total, "block")} of the KV-cache: ${count(owned)} owned, ${count(shared)} of them shared, ` +
        `${count(blocks.cached)} cached, ${count(blocks.free)} free. Arrow keys read single blocks.`,
    );
    this.draw();
  }

  mark(key) {
    if (this.marked === key) return;
    this.marked = key;
    this.draw();
  }

  draw() {
    const width = Math.floor(this.root.clientWidth);
    if (!this.state || width === 0) return;
    this.#layOut(width);
    const { canvas, columns, cell } = this;
    const scale = devicePixelRatio || 1;
    const height = Math.ceil(this.numCells / columns) * cell;
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const inks = this.#inks();
    for (let i = 0; i < this.numCells; i += 1) this.#drawCell(pen, i, inks);
    this.#showCursor();
  }

  // Cells as large as fit into the height, a whole number of pixels.
  #layOut(width) {
    const { total } = this.state.blocks;
    this.perCell = Math.max(1, Math.ceil(total / MAX_CELLS));
    this.numCells = Math.ceil(total / this.perCell);
    this.cell = Math.max(4, Math.min(20, Math.floor(Math.sqrt((width * HEIGHT) / Math.max(1, this.numCells)))));
    this.columns = Math.max(1, Math.floor(width / this.cell));
  }

  #inks() {
    const dark = isDark();
    return {
      [FREE]: resolved("--cell-free", this.root),
      [CACHED]: resolved("--cell-cached", this.root),
      [UNLISTED]: resolved("--muted", this.root),
      dot: resolved("--cell-dot", this.root),
      owners: this.state.requests.map((request) => this.colours.of(keyOf(request), dark)),
    };
  }

  #drawCell(pen, index, inks) {
    const { cell, columns } = this;
    const { owner, refs } = this.#block(index);
    const gap = cell >= 6 ? 1.5 : 1;
    const x = (index % columns) * cell;
    const y = Math.floor(index / columns) * cell;
    const size = cell - gap;
    const request = owner >= 0 ? this.state.requests[owner] : null;
    const isDim = this.marked !== null && (request === null || keyOf(request) !== this.marked);
    pen.globalAlpha = isDim ? 0.25 : 1;
    pen.fillStyle = inks[owner] ?? inks.owners[owner];
    pen.beginPath();
    pen.roundRect(x, y, size, size, cell >= 8 ? 2 : 0);
    pen.fill();
    if (refs > 1) {
      const dot = Math.max(2, size / 3);
      pen.fillStyle = inks.dot;
      pen.fillRect(x + (size - dot) / 2, y + (size - dot) / 2, dot, dot);
    }
  }

  // What a cell shows: of several blocks, the one that says most (shared, owned, cached, free).
  #block(index) {
    const { owners, refs, total } = this.state.blocks;
    const first = index * this.perCell;
    let best = first;
    const weight = (i) => (owners[i] === FREE ? 0 : owners[i] === CACHED ? 1 : 2 + refs[i]);
    for (let i = first + 1; i < Math.min(total, first + this.perCell); i += 1) if (weight(i) > weight(best)) best = i;
    return { id: best, owner: owners[best] ?? FREE, refs: refs[best] ?? 0 };
  }

  #inWords(index) {
    const { id, owner, refs } = this.#block(index);
    const request = this.state.requests[owner];
    const name = `Block ${count(id)}`;
    if (owner === FREE) return `${name}: free`;
    if (owner === CACHED) return `${name}: cached, nobody's`;
    const whose = request ? `${request.id}${request.choice ? `, choice ${request.choice}` : ""}` : "a request";
    return `${name}: ${whose}${refs > 1 ? `, shared by ${refs}` : ""}`;
  }

  // --- reading single cells ------------------------------------------------------------------------------------------

  #listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
      if (!this.state) return;
      const column = Math.floor(offsetX / this.cell);
      const index = Math.floor(offsetY / this.cell) * this.columns + column;
      this.#read(column < this.columns && index >= 0 && index < this.numCells ? index : null);
    });
    canvas.addEventListener("pointerleave", () => this.#read(null));
    canvas.addEventListener("blur", () => this.#read(null));
    canvas.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns };
      const targets = { Home: 0, End: this.numCells - 1 };
      if (!this.state || !(event.key in steps || event.key in targets)) return;
      event.preventDefault();
      const wanted = targets[event.key] ?? (this.cursor === null ? 0 : this.cursor + steps[event.key]);
      if (wanted < 0 || wanted >= this.numCells) return;
      this.#read(wanted);
      setText(this.told, this.#inWords(wanted));
    });
  }

  #read(index) {
    if (index === this.cursor) return;
    this.cursor = index;
    this.draw();
  }

  #showCursor() {
    const { tip, cursor, cell, columns, canvas } = this;
    tip.hidden = cursor === null || cursor >= this.numCells;
    if (tip.hidden) return;
    const x = (cursor % columns) * cell;
    const y = Math.floor(cursor / columns) * cell;
    const pen = canvas.getContext("2d");
    pen.globalAlpha = 1;
    pen.strokeStyle = resolved("--text", this.root);
    pen.lineWidth = 2;
    pen.strokeRect(x - 1, y - 1, cell + 0.5, cell + 0.5);
    setText(tip, this.#inWords(cursor));
    const room = this.root.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(room, x + cell / 2 - tip.offsetWidth / 2))}px`;
    tip.style.top = `${y - tip.offsetHeight - 6}px`;
  }
}
