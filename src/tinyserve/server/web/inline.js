// Markdown inside a line: emphasis, code, links, breaks. Links go to http and https only; an image becomes a link and
// never a request.

import { element } from "./dom.js";

const MAX_DEPTH = 6;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}_]/u;
const ADDRESS = /https?:\/\/[^\s<>"'`|)\]]+/y;
const BREAK = /<br *\/?>/iy;
const MAX_LINK = 2000; // characters of a link's text or address
const STRENGTHS = { 1: ["em"], 2: ["strong"], 3: ["strong", "em"] };
const TAGS = { "*": STRENGTHS, _: STRENGTHS, "~": { 2: ["del"] } }; // by the number of marks, outermost first

// A fragment of text and inline elements. There are no links in a link.
export function inline(text, depth = 0, inLink = false) {
  const fragment = document.createDocumentFragment();
  // hopeless: marks known to have no end further on, so that each is looked for once.
  const scope = { depth, inLink, hopeless: new Set() };
  let from = 0; // text from here on is not added yet
  let at = 0;
  const add = (node, end) => {
    fragment.append(text.slice(from, at), node);
    from = at = end;
  };
  while (at < text.length) {
    const found = special(text, at, scope);
    if (found === null) at += 1;
    else if (found.node === undefined) at = found.end;
    else add(found.node, found.end);
  }
  add("", at);
  fragment.normalize();
  return fragment;
}

// What begins at `at`, unless it is plain text (null): {node, end}, or {end} for marks that are only text.
function special(text, at, scope) {
  switch (text[at]) {
    case "\n":
      return { node: element("br"), end: at + 1 };
    case "\\":
      return PUNCTUATION.test(text[at + 1] ?? "") ? { node: text[at + 1], end: at + 2 } : null;
    case "`":
      return codeSpan(text, at, scope.hopeless);
    case "*":
    case "_":
    case "~":
      return scope.depth < MAX_DEPTH ? emphasis(text, at, scope) : null;
    case "!":
      return text[at + 1] === "[" ? link(text, at + 1, scope) : null;
    case "[":
      return link(text, at, scope);
    case "<":
      return matches(BREAK, text, at) ? { node: element("br"), end: BREAK.lastIndex } : null;
    case "h":
      return scope.inLink ? null : bareLink(text, at);
    default:
      return null;
  }
}

function codeSpan(text, at, hopeless) {
  const start = at + runLength(text, at);
  const end = codeEnd(text, at, hopeless);
  if (end === -1) return { end: start };
  const code = text.slice(start, end - (start - at)).replaceAll("\n", " ");
  const isPadded = code.startsWith(" ") && code.endsWith(" ") && code.trim() !== "";
  return { node: element("code", { textContent: isPadded ? code.slice(1, -1) : code }), end };
}

// The position after the code span that opens at `at`, or -1.
function codeEnd(text, at, hopeless) {
  const length = runLength(text, at);
  const mark = "`".repeat(length);
  if (hopeless.has(mark)) return -1;
  for (let i = text.indexOf(mark, at + length); i !== -1; i = text.indexOf(mark, i)) {
    const run = runLength(text, i);
    if (run === length) return i + length;
    i += run;
  }
  hopeless.add(mark);
  return -1;
}

function emphasis(text, at, { depth, inLink, hopeless }) {
  const mark = text[at];
  const run = runLength(text, at);
  const tags = TAGS[mark][run];
  const start = at + run;
  const opens = start < text.length && /\S/.test(text[start]) && !(mark === "_" && isWord(text, at - 1));
  if (tags === undefined || !opens || hopeless.has(mark + run)) return { end: start };
  const close = closing(text, start, mark, run, hopeless);
  if (close === -1) {
    hopeless.add(mark + run);
    return { end: start };
  }
  let node = inline(text.slice(start, close), depth + 1, inLink);
  for (const tag of tags.toReversed()) node = element(tag, {}, node);
  return { node, end: close + run };
}

// Where `run` marks close what opened before `start`: after a character, not in code; of a longer run, its last ones.
function closing(text, start, mark, run, hopeless) {
  let i = start;
  while (i < text.length) {
    if (text[i] === "\\") i += 2;
    else if (text[i] === "`") i = Math.max(codeEnd(text, i, hopeless), i + 1);
    else if (text[i] !== mark) i += 1;
    else {
      const length = runLength(text, i);
      const closes = /\S/.test(text[i - 1]) && !(mark === "_" && isWord(text, i + length));
      if (closes && i > start && (length === run || length === 3)) return i + length - run;
      i += length;
    }
  }
  return -1;
}

function runLength(text, at) {
  let end = at;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

function isWord(text, at) {
  return at >= 0 && at < text.length && WORD.test(text[at]);
}

function matches(sticky, text, at) {
  sticky.lastIndex = at;
  return sticky.test(text);
}

// [label](address "title"); of an image, too: what it shows is not fetched.
function link(text, at, { depth, inLink }) {
  if (inLink || depth >= MAX_DEPTH) return null;
  const labelEnd = bracketEnd(text, at, "[", "]");
  if (labelEnd === -1 || text[labelEnd] !== "(") return null;
  const end = bracketEnd(text, labelEnd, "(", ")");
  if (end === -1) return null;
  const address = text.slice(labelEnd + 1, end - 1).trim().split(/\s/, 1)[0].replace(/^<(.*)>$/, "$1");
  const label = text.slice(at + 1, labelEnd - 1) || address;
  const node = anchor(address, inline(label, depth + 1, true));
  return node === null ? null : { node, end };
}

// The position after the bracket that closes the one at `at`, or -1.
function bracketEnd(text, at, open, close) {
  let depth = 0;
  const limit = Math.min(text.length, at + MAX_LINK);
  for (let i = at; i < limit; i += 1) {
    if (text[i] === "\\") i += 1;
    else if (text[i] === open) depth += 1;
    else if (text[i] === close && (depth -= 1) === 0) return i + 1;
  }
  return -1;
}

function bareLink(text, at) {
  if (isWord(text, at - 1) || !matches(ADDRESS, text, at)) return null;
  let end = ADDRESS.lastIndex;
  while (/[.,;:!?*_~]/.test(text[end - 1])) end -= 1; // the sentence's, not the address's
  const address = text.slice(at, end);
  const node = anchor(address, address);
  return node === null ? null : { node, end };
}

// A link, or null where the address is not plain http or https.
function anchor(address, content) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") return null;
  const { href } = url;
  return element("a", { href, rel: "noopener noreferrer nofollow", target: "_blank", title: href }, content);
}
