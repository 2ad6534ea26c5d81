// The live view of the engine: asks /engine/state about once a second and shows what it says.

import { getJSON } from "./api.js";
import { BlockGrid } from "./blocks.js";
import { LineChart, WINDOW } from "./chart.js";
import { Colours, keyOf } from "./colours.js";
import { byId, element, setText } from "./dom.js";
import { Poller } from "./poller.js";
import { RequestTable } from "./requests.js";
import { count, duration, percent, rate } from "./words.js";

const SEEN = 1000; // ms between two looks while the view is shown,
const UNSEEN = 5000; // and while it is not: its charts should not be empty when it is
const RATE_SPAN = 2; // seconds over which rates are averaged

// [label, value(state, rates), note(state)]
const TILES = [
  ["Running", ({ queue }) => count(queue.running), ({ settings }) => `of ${count(settings.max_num_seqs)} seats`],
  ["Waiting", ({ queue }) => count(queue.waiting + queue.depth), ({ queue }) => `${count(queue.depth)} in the queue`],
  [
    "Swapped",
    ({ queue }) => count(queue.swapped),
    ({ blocks }) => `${count(blocks.swap_used)} of ${count(blocks.swap_total)} blocks`,
  ],
  ["Generation", (_, rates) => rate(rates.generation), () => "tokens per second"],
  ["Prompt", (_, rates) => rate(rates.prompt), () => "tokens per second"],
  [
    "Prefix hits",
    ({ counters: c }) => percent(c.prefix_hit_tokens, c.prefix_query_tokens),
    ({ counters: c }) => `${count(c.prefix_hit_tokens)} tokens`,
  ],
  [
    "Preemptions",
    ({ counters: c }) => count(c.preemptions_swap + c.preemptions_recompute),
    ({ counters: c }) => `${count(c.preemptions_swap)} swapped, ${count(c.preemptions_recompute)} dropped`,
  ],
  ["Copies on write", ({ counters: c }) => count(c.cow_copies), () => "blocks"],
];

export class EngineView {
  // isShown(): whether anybody sees it. onState(state | null, error): for the header.
  constructor({ isShown, onState }) {
    this.onState = onState;
    this.samples = [];
    this.colours = new Colours();
    this.grid = new BlockGrid(byId("blocks"), this.colours);
    this.requests = new RequestTable(this.colours, (key) => this.grid.mark(key));
    this.tiles = TILES.map(([label]) => tile(label));
    byId("tiles").append(...this.tiles.map(({ root }) => root));
    this.charts = charts();
    this.poller = new Poller({
      task: () => this.#look(),
      interval: () => (isShown() ? SEEN : UNSEEN),
      onError: (error, delay) => this.#onError(error, delay),
    });
    byId("pause").addEventListener("click", () => this.#togglePause());
  }

  // The view came into sight, the key has changed, ...
  wake() {
    this.poller.wake();
  }

  // The theme has changed: canvases do not follow by themselves.
  repaint() {
    if (this.state) this.#show();
  }

  async #look() {
    this.state = await getJSON("engine/state", { quiet: true });
    byId("engine-error").hidden = true;
    byId("engine").classList.remove("stale");
    this.#sample();
    this.#show();
    this.onState(this.state, null);
  }

  #onError(error, delay) {
    const again = delay === null ? "" : ` Trying again in ${duration(delay / 1000)}.`;
    const text = error.status === 404 ? "This server does not tell the state of its engine." : error.message;
    setText(byId("engine-error"), text + again);
    byId("engine-error").hidden = false;
    byId("engine").classList.add("stale");
    this.onState(null, error);
  }

  #togglePause() {
    const isPaused = !this.poller.isPaused;
    byId("pause").setAttribute("aria-pressed", String(isPaused));
    setText(byId("pause"), isPaused ? "Resume" : "Pause");
    this.poller.pause(isPaused);
  }

  // --- figures -------------------------------------------------------------------------------------------------------

  #sample() {
    const { time, counters, latency, blocks } = this.state;
    const last = this.samples.at(-1);
    if (last && (time <= last.t || counters.steps < last.counters.steps)) this.samples = []; // another server
    const base = this.samples.findLast(({ t }) => time - t >= RATE_SPAN - 0.2) ?? this.samples[0];
    const span = base ? time - base.t : 0;
    const perSecond = (name) => (span > 0 ? (counters[name] - base.counters[name]) / span : null);
    this.samples.push({
      t: time,
      counters,
      generation: perSecond("generation_tokens"),
      prompt: perSecond("prompt_tokens"),
      ttft: latency.ttft_s,
      interToken: latency.inter_token_s,
      owned: blocks.total ? (100 * (blocks.total - blocks.free - blocks.cached)) / blocks.total : null,
      cached: blocks.total ? (100 * (blocks.total - blocks.free)) / blocks.total : null,
    });
    while (this.samples[0].t < time - WINDOW) this.samples.shift();
  }

  #show() {
    const { state, samples } = this;
    this.colours.update(state.requests.filter(({ num_blocks: blocks }) => blocks > 0).map(keyOf));
    this.tiles.forEach(({ value, note }, i) => {
      setText(value, TILES[i][1](state, samples.at(-1)));
      setText(note, TILES[i][2](state));
    });
    this.requests.update(state);
    this.grid.update(state);
    for (const { chart, pick } of this.charts) {
      chart.update(
        samples.map((sample) => ({ t: sample.t, values: pick(sample) })),
        state.time,
      );
    }
    this.#showPool(state.blocks);
    setText(byId("engine-facts"), facts(state));
  }

  #showPool({ total, free, cached, refs, block_size: size }) {
    const shared = refs.filter((number) => number > 1).length;
    const amounts = { owned: total - free - cached, shared, cached, free };
    for (const [name, amount] of Object.entries(amounts)) setText(byId(`num-${name}`), count(amount));
    setText(byId("pool-size"), `${count(total)} blocks of ${count(size)} tokens`);
  }
}

function tile(label) {
  const value = element("dd", { textContent: "–" });
  const note = element("dd", { className: "note" });
  return { value, note, root: element("div", {}, element("dt", { textContent: label }), value, note) };
}

function charts() {
  const perSecond = (value, isTick) => (isTick ? compact(value) : `${rate(value)} tok/s`);
  const latency = (value, isTick) => (isTick && value === 0 ? "0" : duration(value));
  const share = (value) => percent(value, 100);
  const make = (id, pick, options) => ({ pick, chart: new LineChart(byId(id), options) });
  return [
    make("chart-throughput", (s) => [s.generation, s.prompt], {
      title: "Throughput",
      series: ["generation", "prompt"],
      format: perSecond,
    }),
    make("chart-usage", (s) => [s.owned, s.cached], {
      title: "KV-cache",
      series: ["owned", "with cached"],
      format: share,
      top: 100,
    }),
    make("chart-ttft", (s) => [s.ttft.p50, s.ttft.p99], {
      title: "Time to first token",
      series: ["p50", "p99"],
      format: latency,
    }),
    make("chart-inter-token", (s) => [s.interToken.p50, s.interToken.p99], {
      title: "Time between tokens",
      series: ["p50", "p99"],
      format: latency,
    }),
  ];
}

function compact(value) {
  return value >= 10_000 ? `${+(value / 1000).toFixed(1)}k` : String(+value.toFixed(1));
}

function facts({ settings, kernels, threads, version, fingerprint, uptime_s: uptime, counters }) {
  const ends = Object.entries(counters.requests ?? {}).filter(([, number]) => number > 0);
  return [
    `tinyserve ${version}`,
    `up ${duration(uptime)}`,
    `${kernels}, ${threads} threads`,
    `${settings.policy} scheduling`,
    `KV in ${settings.kv_cache_dtype}`,
    `${count(settings.max_num_batched_tokens)} tokens a step`,
    `context ${count(settings.max_model_len)}`,
    counters.draft_tokens > 0 && `${percent(counters.accepted_tokens, counters.draft_tokens)} of drafts accepted`,
    ends.length > 0 && `ended: ${ends.map(([reason, number]) => `${count(number)} ${reason}`).join(", ")}`,
    fingerprint,
  ]
    .filter(Boolean)
    .join(" · ");
}
