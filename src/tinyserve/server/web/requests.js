// The table of requests in the engine and before it. Rows stay the same elements from one look to the next.

import { isDark, keyOf } from "./colours.js";
import { byId, setText } from "./dom.js";
import { count, duration, plural } from "./words.js";

const ORDER = ["running", "swapped", "waiting", "queued"];

export class RequestTable {
  // onMark(key | null): the request that is pointed at
  constructor(colours, onMark) {
    this.colours = colours;
    this.body = byId("requests").tBodies[0];
    this.rows = new Map();
    const mark = ({ target }) => onMark(target.closest?.("tr")?.dataset.key ?? null);
    this.body.addEventListener("pointerover", mark);
    this.body.addEventListener("focusin", mark);
    this.body.addEventListener("pointerleave", () => onMark(null));
    this.body.addEventListener("focusout", () => onMark(null));
  }

  update({ requests, num_requests: total }) {
    const sorted = requests.toSorted((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state));
    const keys = sorted.map(keyOf);
    const present = new Set(keys);
    for (const [key, row] of this.rows) {
      if (present.has(key)) continue;
      row.remove();
      this.rows.delete(key);
    }
    const dark = isDark();
    sorted.forEach((request, i) => {
      const row = this.#row(keys[i]);
      fill(row, request, this.colours.of(keys[i], dark));
      if (this.body.children[i] !== row) this.body.insertBefore(row, this.body.children[i] ?? null);
    });
    const more = (total ?? requests.length) - requests.length;
    setText(byId("requests-more"), more > 0 ? `and ${plural(more, "more", "more")}` : "");
    byId("requests-empty").hidden = requests.length > 0;
    byId("requests").hidden = requests.length === 0;
  }

  #row(key) {
    if (!this.rows.has(key)) {
      const row = byId("request-row").content.firstElementChild.cloneNode(true);
      row.dataset.key = key;
      this.rows.set(key, row);
    }
    return this.rows.get(key);
  }
}

function fill(row, request, colour) {
  const cell = (name) => row.querySelector(`.${name}`);
  const { prompt_tokens: prompt, computed_tokens: computed, cached_tokens: cached } = request;
  cell("swatch").style.background = request.num_blocks ? colour : "transparent";
  cell("swatch").style.borderColor = colour;
  setText(cell("id"), shortened(request.id) + (request.choice ? ` #${request.choice}` : ""));
  cell("id").title = `${request.id}, choice ${request.choice}`;
  setText(cell("client"), request.client ?? "");
  setText(cell("state"), request.state);
  cell("state").dataset.state = request.state;
  const read = Math.min(computed, prompt);
  cell("bar").setAttribute("aria-valuenow", String(prompt ? Math.round((100 * read) / prompt) : 0));
  cell("bar").title = `${count(read)} of ${count(prompt)} prompt tokens computed, ${count(cached)} from the cache`;
  cell("computed").style.width = `${prompt ? (100 * read) / prompt : 0}%`;
  cell("cached").style.width = `${prompt ? (100 * Math.min(cached, read)) / prompt : 0}%`;
  setText(cell("prompt"), read < prompt ? `${count(read)} / ${count(prompt)}` : count(prompt));
  setText(cell("output"), count(request.output_tokens));
  setText(cell("blocks"), count(request.num_blocks));
  setText(cell("age"), duration(request.age_s));
}

function shortened(id) {
  return id.length > 12 ? `${id.slice(0, 8)}…${id.slice(-2)}` : id;
}

