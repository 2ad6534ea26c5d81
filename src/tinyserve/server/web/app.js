// Puts the page together: which views are shown, theme, the key dialog, the state in the header.

import { getJSON, getKey, onKeyNeeded, setKey } from "./api.js";
import { Chat } from "./chat.js";
import { announce, byId, element, setText } from "./dom.js";
import { EngineView } from "./engine.js";
import { Settings } from "./settings.js";
import { read, write } from "./store.js";
import { count } from "./words.js";

const VIEWS = ["chat", "split", "engine"];
const WIDE = matchMedia("(min-width: 1080px)"); // room for both views; the style sheet agrees
const LOADING = 1500; // ms between questions while the model loads

// --- views -----------------------------------------------------------------------------------------------------------

function currentView() {
  const wanted = location.hash.slice(1);
  const view = VIEWS.includes(wanted) ? wanted : read("view", "split");
  return view === "split" && !WIDE.matches ? "chat" : view;
}

function showView() {
  const view = currentView();
  if (VIEWS.includes(location.hash.slice(1))) write("view", location.hash.slice(1));
  document.body.dataset.view = view;
  for (const link of document.querySelectorAll("#views a")) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  byId("chat").hidden = view === "engine";
  byId("engine").hidden = view === "chat";
  engine.wake();
}

// --- theme -----------------------------------------------------------------------------------------------------------

const THEMES = ["system", "light", "dark"];

function showTheme() {
  const theme = read("theme", "system");
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  byId("theme").dataset.now = theme;
  byId("theme").setAttribute("aria-label", `Theme: ${theme}. Change`);
  byId("theme").title = `Theme: ${theme}`;
  engine.repaint();
}

function nextTheme() {
  const next = THEMES[(THEMES.indexOf(read("theme", "system")) + 1) % THEMES.length];
  write("theme", next);
  showTheme();
  announce(`Theme: ${next}`);
}

// --- the key ---------------------------------------------------------------------------------------------------------

let asking = null; // one dialog, however many requests want it

function askForKey(wasRefused) {
  asking ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    const form = dialog.querySelector("form");
    byId("key-forget").hidden = !getKey();
    setText(byId("key-reason"), wasRefused ? "The key was not accepted." : "This server asks for an API key.");
    form.elements.key.value = "";
    dialog.returnValue = "";
    dialog.addEventListener(
      "close",
      () => {
        const isGiven = dialog.returnValue === "use" && form.elements.key.value.trim() !== "";
        if (isGiven) setKey(form.elements.key.value.trim(), { remember: form.elements.remember.checked });
        form.elements.key.value = "";
        asking = null;
        if (isGiven) queueMicrotask(begin);
        resolve(isGiven);
      },
      { once: true },
    );
    dialog.showModal();
  });
  return asking;
}

// --- the model and its state -----------------------------------------------------------------------------------------

let models = [];
let beginning = 0; // the latest attempt; older ones give way

async function begin() {
  beginning += 1;
  const attempt = beginning;
  byId("key-open").hidden = !getKey();
  engine.wake();
  for (;;) {
    try {
      const { data } = await getJSON("v1/models");
      if (attempt === beginning) showModels(data);
      return;
    } catch (error) {
      if (attempt !== beginning) return;
      byId("key-open").hidden = false;
      setText(byId("model-name"), { 401: "key needed", 503: "loading…" }[error.status] ?? "offline");
      if (error.status === 401) return;
    }
    await new Promise((resolve) => setTimeout(resolve, LOADING));
    if (attempt !== beginning) return;
  }
}

function showModels(found) {
  models = found;
  const context = found[0]?.max_model_len;
  byId("key-open").hidden = !getKey();
  setText(byId("model-name"), found[0]?.id ?? "no model");
  byId("model-name").title = context ? `${found[0].id}, context of ${count(context)} tokens` : "";
  const choice = byId("model");
  choice.replaceChildren(...found.map(({ id }) => element("option", { value: id, textContent: id })));
  choice.hidden = found.length < 2; // several names: adapters, say
  byId("model-name").hidden = found.length > 1;
}

function showState(state, error) {
  if (state) settings.suggest(state.settings.chat_sampling ?? {});
  const pill = byId("pill");
  const busy = state ? state.queue.running + state.queue.waiting + state.queue.swapped + state.queue.depth : 0;
  pill.dataset.state = error ? "bad" : busy ? "busy" : "idle";
  const waiting = state ? state.queue.waiting + state.queue.swapped + state.queue.depth : 0;
  const words = state
    ? `${count(state.queue.running)} running${waiting ? `, ${count(waiting)} waiting` : ""}`
    : { 0: "no connection", 401: "key needed", 404: "", 503: "not ready" }[error.status] ?? "trouble";
  setText(pill.querySelector("span"), busy || error ? words : "idle");
}

// --- all together ----------------------------------------------------------------------------------------------------

const settings = new Settings(byId("settings-form"));
const engine = new EngineView({ isShown: () => !byId("engine").hidden, onState: showState });
new Chat(settings, () => (models.length > 1 ? { model: byId("model").value } : {}));

addEventListener("hashchange", showView);
WIDE.addEventListener("change", showView);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => engine.repaint());
byId("theme").addEventListener("click", nextTheme);
byId("key-open").addEventListener("click", () => askForKey(false));
byId("key-forget").addEventListener("click", () => {
  setKey("");
  byId("key-dialog").close();
  begin();
});
byId("settings-open").addEventListener("click", () => byId("settings").showModal());
for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close()); // beside it
  for (const closer of dialog.querySelectorAll("[data-close]")) closer.addEventListener("click", () => dialog.close());
}
onKeyNeeded(askForKey);
showTheme();
showView();
begin();
