// The list of conversations that the browser keeps: beside the chat where there is room, else over it.

import { byId, element, icon } from "./dom.js";
import { conversations, deleteConversation, isConversationKey } from "./store.js";

export class History {
  // open(conversation), deleted(id), isRunning(id)
  constructor(actions) {
    this.actions = actions;
    this.list = byId("conversations");
    this.panel = byId("history");
    this.list.addEventListener("click", ({ target }) => this.#onClick(target.closest("button")));
    byId("history-open").addEventListener("click", () => this.toggle(true));
    byId("history-close").addEventListener("click", () => this.toggle(false));
    byId("history-shade").addEventListener("click", () => this.toggle(false));
    this.panel.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.isOver) return;
      event.stopPropagation();
      this.toggle(false);
    });
    addEventListener("storage", ({ key }) => isConversationKey(key) && this.refresh()); // another tab
    this.refresh();
  }

  get isOver() {
    return document.body.classList.contains("history-over");
  }

  toggle(isOver) {
    document.body.classList.toggle("history-over", isOver);
    byId("history-open").setAttribute("aria-expanded", String(isOver));
    byId(isOver ? "history-close" : "history-open").focus();
  }

  show(id) {
    this.current = id;
    if (this.isOver) this.toggle(false);
    this.refresh();
  }

  refresh() {
    this.kept = conversations();
    this.list.replaceChildren(...this.kept.map((conversation) => this.#row(conversation)));
    byId("history-empty").hidden = this.kept.length > 0;
    this.markRunning();
  }

  markRunning() {
    for (const row of this.list.children) row.classList.toggle("running", this.actions.isRunning(row.dataset.id));
  }

  #row({ id, title }) {
    const open = element("button", { type: "button", className: "open", textContent: title || "Untitled", title });
    if (id === this.current) open.setAttribute("aria-current", "true");
    const remove = element("button", { type: "button", className: "remove quiet" }, icon("trash"));
    remove.setAttribute("aria-label", `Delete ${title || "Untitled"}`);
    const row = element("li", {}, open, remove);
    row.dataset.id = id;
    return row;
  }

  #onClick(button) {
    if (!button) return;
    const { id } = button.closest("li").dataset;
    if (button.classList.contains("open")) {
      const conversation = this.kept.find((each) => each.id === id);
      if (conversation) this.actions.open(conversation);
    } else if (button.classList.contains("sure")) {
      deleteConversation(id);
      this.refresh();
      this.actions.deleted(id);
    } else {
      button.classList.add("sure");
      button.textContent = "Delete?";
      button.addEventListener("blur", () => this.refresh(), { once: true });
    }
  }
}
