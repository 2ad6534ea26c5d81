// The server as the page sees it: the API key, requests, errors in plain words, streams of events.

const KEY = "tinyserve.key";

export class ApiError extends Error {
  // status 0: no answer at all.
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

// --- the key ---------------------------------------------------------------------------------------------------------

let memory = null; // where the browser keeps nothing, the key lives as long as the page

export function getKey() {
  try {
    return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? memory;
  } catch {
    return memory;
  }
}

// remember: on this device (localStorage), else for this tab (sessionStorage). An empty key forgets both.
export function setKey(value, { remember = false } = {}) {
  memory = value || null;
  try {
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
    if (value) (remember ? localStorage : sessionStorage).setItem(KEY, value);
  } catch {
    // kept in memory
  }
}

let askForKey = async () => false;

// `ask(wasRefused)` resolves to true once the user has given a key.
export function onKeyNeeded(ask) {
  askForKey = ask;
}

// --- requests --------------------------------------------------------------------------------------------------------

// A response that is fine, or an ApiError. Paths are relative, so that the page also works below a proxy's prefix.
// quiet: do not ask for a key (a background request).
export async function request(path, { body, signal, quiet = false } = {}) {
  const options = { signal, credentials: "omit", cache: "no-store", headers: {} };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  for (;;) {
    const key = getKey();
    if (key) options.headers.Authorization = `Bearer ${key}`;
    const response = await send(path, options);
    if (response.ok) return response;
    const error = await failure(response, key);
    if (error.status !== 401 || quiet || !(await askForKey(Boolean(key)))) throw error;
  }
}

export async function getJSON(path, options) {
  return (await request(path, options)).json();
}

async function send(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (options.headers.Authorization && !isLatin1(options.headers.Authorization)) {
      setKey("");
      throw new ApiError("The API key holds characters that cannot be sent.", 401);
    }
    throw new ApiError("The server cannot be reached.");
  }
}

function isLatin1(text) {
  return [...text].every((character) => character.charCodeAt(0) < 256);
}

async function failure(response, key) {
  const { status } = response;
  const told = await response.json().then(
    (body) => body?.error?.message,
    () => null,
  );
  const retryAfter = Number.parseInt(response.headers.get("Retry-After") ?? "", 10); // seconds
  return new ApiError(inWords(status, told, { key, retryAfter }), status);
}

function inWords(status, told, { key, retryAfter }) {
  const reason = told ? ` (${told})` : "";
  if (status === 401) return key ? "The API key was not accepted." : "This server asks for an API key.";
  if (status === 408) return "The request took too long and was ended by the server.";
  if (status === 413) return "The conversation is too large for this server.";
  if (status === 429) {
    const when = retryAfter ? ` Room is expected in about ${retryAfter} s.` : "";
    return `The server is busy and its queue is full.${when}`;
  }
  if (status === 503) {
    return /loading/.test(told ?? "") ? "The model is still loading." : `The server is not available${reason}.`;
  }
  if (status >= 500) return `The server failed${reason}.`;
  return told ? `The request was refused: ${told}` : `The request was refused (HTTP ${status}).`;
}

// --- streams ---------------------------------------------------------------------------------------------------------

const LOST = "The answer broke off: the connection to the server was lost.";

// The data of each server-sent event (WHATWG HTML, section 9.2.6). Comments and other fields are skipped.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(lost);
      if (done) return; // an event without its empty line was cut off: not one
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/); // a last \r may be half of \r\n
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        } else if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // leaving early closes the connection
  }
}

function lost(error) {
  throw error.name === "AbortError" ? error : new ApiError(LOST);
}

// The chunks of an OpenAI stream. Raises ApiError for an error event, and for an end without [DONE].
export async function* chunks(response) {
  for await (const data of events(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(`The answer broke off: ${chunk.error.message}`, 500);
    yield chunk;
  }
  throw new ApiError(LOST);
}
