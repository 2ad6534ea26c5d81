// Numbers as people read them, and which way they read. Pure functions.

const DASH = "–";

export function count(value) {
  return value === null || value === undefined ? DASH : Math.round(value).toLocaleString("en-US");
}

// 0.0042 -> "4.2 ms", 3.1 -> "3.1 s", 95 -> "1 m 35 s", 7300 -> "2 h 1 m"
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return DASH;
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 89.5) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} m ${Math.round(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} m`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

// Two or three digits that matter: 7.3, 48, 1,204.
export function rate(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return DASH;
  return value < 10 ? value.toFixed(1) : count(value);
}

export function percent(part, whole) {
  if (!whole || part === null || part === undefined) return DASH;
  const value = (100 * part) / whole;
  return `${value < 10 ? +value.toFixed(1) : Math.round(value)}%`;
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

const FROM_RIGHT = /^\P{L}*[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;

// A text runs as its first letter does. (`dir="auto"` says the same, but Chromium forgets it while a text grows.)
export function direction(text) {
  return FROM_RIGHT.test(text) ? "rtl" : "ltr";
}
