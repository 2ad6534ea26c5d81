// Markdown as models write it (headings, lists, tables, quotes, code), built as DOM nodes; `inline.js` does what is
// inside a line. Text only ever becomes text nodes: no markup is parsed, so nothing that a model says can become an
// element, an attribute or a script. Whatever the text, the work is bounded: nesting is, and nothing is scanned again
// and again.

import { element } from "./dom.js";
import { inline } from "./inline.js";

const MAX_DEPTH = 6;
const rendered = new WeakMap(); // element -> keys of the blocks it shows

// Show `text` in `target`. Blocks that have not changed since the last call keep their nodes, so that a stream costs
// its last block and a selection above it survives.
export function renderMarkdown(target, text) {
  const blocks = parseBlocks(text.replace(/\r\n?/g, "\n").split("\n"), 0);
  const before = rendered.get(target) ?? [];
  let kept = 0;
  while (kept < blocks.length && blocks[kept].key === before[kept]) kept += 1;
  while (target.childNodes.length > kept) target.lastChild.remove();
  for (const block of blocks.slice(kept)) target.append(block.build());
  rendered.set(
    target,
    blocks.map(({ key }) => key),
  );
}

// --- blocks ----------------------------------------------------------------------------------------------------------

const FENCE = /^ {0,3}(`{3,}|~{3,}) *([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?: |$)/;
const RULE = /^ {0,3}(?:(?:\* *){3,}|(?:- *){3,}|(?:_ *){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;

// [{key, build}]: one for each node to show. Equal keys build equal nodes.
function parseBlocks(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      at += 1;
      continue;
    }
    const [end, build] = parseBlock(lines, at, depth);
    blocks.push({ key: lines.slice(at, end).join("\n"), build });
    at = end;
  }
  return blocks;
}

// [the line after the block, how to build it]
function parseBlock(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line)) return parseFence(lines, at);
  if (HEADING.test(line)) return [at + 1, () => heading(line)];
  if (RULE.test(line)) return [at + 1, () => element("hr")];
  if (isTable(lines, at)) return parseTable(lines, at);
  if (depth < MAX_DEPTH && QUOTE.test(line)) return parseQuote(lines, at, depth);
  if (depth < MAX_DEPTH && ITEM.test(line)) return parseList(lines, at, depth);
  return parseParagraph(lines, at);
}

function parseFence(lines, at) {
  const [, fence, language] = FENCE.exec(lines[at]);
  const indent = lines[at].indexOf(fence);
  let end = at + 1;
  while (end < lines.length && !isClosing(lines[end], fence)) end += 1;
  const code = lines.slice(at + 1, end).map((line) => line.slice(Math.min(indent, indentOf(line))));
  return [Math.min(end + 1, lines.length), () => codeBlock(code.join("\n"), language)];
}

function isClosing(line, fence) {
  const text = line.trim();
  return text.length >= fence.length && indentOf(line) < 4 && text === fence[0].repeat(text.length);
}

function codeBlock(code, language) {
  const copy = element("button", { type: "button", className: "copy quiet", textContent: "Copy" });
  copy.dataset.copy = "code";
  copy.setAttribute("aria-label", `Copy ${language || "code"}`);
  const pre = element("pre", { tabIndex: 0 }, element("code", { textContent: code }));
  pre.setAttribute("role", "region");
  pre.setAttribute("aria-label", `${language || "Code"} block`);
  const head = element("div", { className: "code-head" }, element("span", { textContent: language || "code" }), copy);
  return element("div", { className: "code" }, head, pre);
}

function heading(line) {
  const [all, marks] = HEADING.exec(line);
  const text = line.slice(all.length).trim();
  let end = text.length; // "## like this ##"
  while (end > 0 && text[end - 1] === "#") end -= 1;
  const isClosed = end < text.length && (end === 0 || text[end - 1] === " ");
  // The page's own headings are h1 and h2.
  return element(`h${Math.min(6, marks.length + 2)}`, {}, inline(isClosed ? text.slice(0, end).trim() : text));
}

function parseQuote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [end, () => element("blockquote", {}, ...parseBlocks(inner, depth + 1).map(({ build }) => build()))];
}

function parseParagraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== "" && !interrupts(lines, end)) end += 1;
  const text = lines
    .slice(at, end)
    .map((line) => line.trim())
    .join("\n");
  return [end, () => element("p", {}, inline(text))];
}

function interrupts(lines, at) {
  const line = lines[at];
  const item = ITEM.exec(line);
  if (item !== null && item[3] !== "" && (!/\d/.test(item[2]) || /^1[.)]$/.test(item[2]))) return true;
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || isTable(lines, at);
}

// --- lists -----------------------------------------------------------------------------------------------------------

function parseList(lines, at, depth) {
  const base = ITEM.exec(lines[at])[1].length;
  const isOrdered = isNumber(lines[at]);
  const first = isOrdered ? Number.parseInt(lines[at].trim(), 10) : 1;
  const items = [];
  let end = at;
  while (end < lines.length) {
    const line = lines[end];
    if (line.trim() === "") {
      if (!goesOn(lines, end, base, isOrdered)) break;
      items.at(-1).lines.push("");
    } else if (indentOf(line) >= base + 2 && items.length) {
      const { content } = items.at(-1);
      items.at(-1).lines.push(line.slice(Math.min(indentOf(line), content)));
    } else if (ITEM.test(line) && !RULE.test(line) && isNumber(line) === isOrdered) {
      const content = ITEM.exec(line)[0].length;
      items.push({ content, lines: [line.slice(content)] });
    } else if (lines[end - 1].trim() !== "" && !interrupts(lines, end) && !ITEM.test(line)) {
      items.at(-1).lines.push(line.trim()); // a lazy line of the item's paragraph
    } else {
      break;
    }
    end += 1;
  }
  return [end, () => list(items, isOrdered, first, depth)];
}

function isNumber(line) {
  return /^ *\d/.test(line);
}

// Whether a list goes on after the empty line at `at`.
function goesOn(lines, at, base, isOrdered) {
  let next = at;
  while (next < lines.length && lines[next].trim() === "") next += 1;
  if (next === lines.length) return false;
  const line = lines[next];
  return indentOf(line) >= base + 2 || (ITEM.test(line) && !RULE.test(line) && isNumber(line) === isOrdered);
}

function list(items, isOrdered, first, depth) {
  const node = element(isOrdered ? "ol" : "ul");
  if (isOrdered && first !== 1) node.start = first;
  for (const { lines } of items) {
    const item = element("li", {}, ...parseBlocks(lines, depth + 1).map(({ build }) => build()));
    // What stands beside the bullet is no paragraph of its own.
    if (item.firstChild?.tagName === "P") item.firstChild.replaceWith(...item.firstChild.childNodes);
    node.append(item);
  }
  return node;
}

function indentOf(line) {
  return line.length - line.trimStart().length;
}

// --- tables ----------------------------------------------------------------------------------------------------------

function isTable(lines, at) {
  if (!lines[at].includes("|") || at + 1 >= lines.length || !lines[at + 1].includes("-")) return false;
  const marks = cellsOf(lines[at + 1]);
  return marks.every((cell) => /^:?-+:?$/.test(cell)) && marks.length === cellsOf(lines[at]).length;
}

function parseTable(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end += 1;
  return [end, () => table(lines.slice(at, end).map(cellsOf))];
}

function table([head, marks, ...rows]) {
  const align = marks.map((mark) => (mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : "left"));
  const row = (cells, name) =>
    element("tr", {}, ...align.map((side, i) => element(name, { className: side }, inline(cells[i] ?? ""))));
  const body = element("tbody", {}, ...rows.map((cells) => row(cells, "td")));
  const whole = element("table", {}, element("thead", {}, row(head, "th")), body);
  const scroll = element("div", { className: "table-scroll", tabIndex: 0 }, whole);
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", "Table");
  return scroll;
}

// The cells of "| a | b \| c |": outer bars are optional, escaped ones and those in code are text.
function cellsOf(line) {
  const cells = [""];
  let inCode = false;
  for (let i = 0; i < line.length; i += 1) {
    if (line[i] === "\\" && line[i + 1] === "|") cells[cells.length - 1] += line[(i += 1)];
    else if (line[i] === "|" && !inCode) cells.push("");
    else cells[cells.length - 1] += line[i];
    if (line[i] === "`") inCode = !inCode;
  }
  const trimmed = cells.map((cell) => cell.trim());
  if (trimmed[0] === "") trimmed.shift();
  if (trimmed.at(-1) === "") trimmed.pop();
  return trimmed;
}
