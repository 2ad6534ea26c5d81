// What the user sets for answers: the fields of the settings dialog, kept in the browser, as fields of a request.

import { byId } from "./dom.js";
import { read, write } from "./store.js";

// name of the form control -> field of the request; an empty one is left to the model's default.
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "repetition_penalty"];
const MAX_STOPS = 4;

export class Settings {
  #suited = {}; // what suits the model where the user has set nothing

  constructor(form) {
    this.form = form;
    const kept = read("settings", {});
    for (const control of this.#controls()) {
      if (typeof kept[control.name] === "string") control.value = kept[control.name];
    }
    form.addEventListener("input", () => this.#save());
    byId("settings-reset").addEventListener("click", () => {
      for (const control of this.#controls()) control.value = "";
      this.#save();
    });
    this.#save();
  }

  get system() {
    return this.form.elements.system.value.trim();
  }

  // What suits the model in a chat, as the server says.
  suggest(suited) {
    this.#suited = suited;
    for (const [name, value] of Object.entries(suited)) {
      if (NUMBERS.includes(name)) this.form.elements[name].placeholder = String(value);
    }
  }

  // The fields of a request: what was set, or else suits the model.
  fields() {
    return { ...this.#suited, ...this.#set() };
  }

  // What was set. What is not valid is left out, and marked in the form.
  #set() {
    const fields = {};
    for (const name of NUMBERS) {
      const control = this.form.elements[name];
      if (control.value !== "" && control.validity.valid) fields[name] = Number(control.value);
    }
    const stop = this.#stops();
    if (stop.length) fields.stop = stop;
    return fields;
  }

  #controls() {
    return [...this.form.elements].filter(({ name }) => name);
  }

  // One a line; \n and \t are written as such.
  #stops() {
    const control = this.form.elements.stop;
    const lines = control.value.split("\n").filter((line) => line !== "");
    const isGood = lines.length <= MAX_STOPS;
    control.setCustomValidity(isGood ? "" : `At most ${MAX_STOPS} stop strings.`);
    return isGood ? lines.map((line) => line.replaceAll("\\n", "\n").replaceAll("\\t", "\t")) : [];
  }

  #save() {
    this.#stops();
    const values = this.#controls().map(({ name, value }) => [name, value]);
    write("settings", Object.fromEntries(values));
    const changed = Object.keys(this.#set()).length + (this.system ? 1 : 0);
    byId("settings-count").textContent = changed ? String(changed) : "";
  }
}
