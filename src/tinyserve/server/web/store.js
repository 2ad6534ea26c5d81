// What the browser keeps: settings and conversations, in localStorage, bounded. Every access may fail (private mode, a
// full disk, storage switched off); the page then works on and forgets.

const PREFIX = "tinyserve.";
const CHAT = `${PREFIX}chat.`;
export const MAX_CONVERSATIONS = 50;
export const MAX_CHARACTERS = 3_000_000; // of all conversations; browsers allow about five million

export function read(name, fallback) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + name)) ?? fallback;
  } catch {
    return fallback;
  }
}

export function write(name, value) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

// A conversation: {id, title, updated (ms), messages: [{role, content, ...}]}. One key each, so that two tabs do not
// overwrite each other's.
export function newConversation() {
  return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", updated: Date.now(), messages: [] };
}

// All that can be read, newest first.
export function conversations() {
  return entries().map(({ value }) => value);
}

// Makes room first: the oldest others go. False where the browser keeps nothing.
export function saveConversation(conversation) {
  conversation.updated = Date.now();
  const own = CHAT + conversation.id;
  const text = JSON.stringify(conversation);
  const others = entries().filter(({ key }) => key !== own);
  let size = others.reduce((sum, { length }) => sum + length, text.length);
  while (others.length && (others.length >= MAX_CONVERSATIONS || size > MAX_CHARACTERS)) {
    size -= drop(others.pop());
  }
  for (;;) {
    try {
      localStorage.setItem(own, text);
      return true;
    } catch {
      if (!others.length) return false;
      drop(others.pop()); // less room than we thought
    }
  }
}

export function deleteConversation(id) {
  try {
    localStorage.removeItem(CHAT + id);
  } catch {
    // nothing was kept
  }
}

// The conversation that a storage event of another tab tells of; null where it tells of something else.
export function conversationOf({ key, newValue }) {
  return key?.startsWith(CHAT) && newValue ? parse(newValue) : null;
}

export function isConversationKey(key) {
  return key === null || key.startsWith(CHAT); // null: everything was cleared
}

function drop({ key, length }) {
  localStorage.removeItem(key);
  return length;
}

function entries() {
  const found = [];
  try {
    for (const key of Object.keys(localStorage)) {
      if (!key.startsWith(CHAT)) continue;
      const text = localStorage.getItem(key);
      const value = parse(text);
      if (value !== null) found.push({ key, value, length: text.length });
    }
  } catch {
    return [];
  }
  return found.sort((a, b) => b.value.updated - a.value.updated);
}

// Written by an older page, or by hand: what has not the right shape is left alone.
function parse(text) {
  try {
    const value = JSON.parse(text);
    const isGood =
      typeof value.id === "string" &&
      typeof value.updated === "number" &&
      Array.isArray(value.messages) &&
      value.messages.every((m) => typeof m?.role === "string" && typeof m?.content === "string");
    return isGood ? { ...value, title: String(value.title ?? "") } : null;
  } catch {
    return null;
  }
}
