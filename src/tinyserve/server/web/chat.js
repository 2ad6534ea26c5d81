// The chat: what happens when a message is sent, stopped, edited or tried again. Answers stream from
// /v1/chat/completions; several conversations may be answered at once.

import { Answer, question } from "./answer.js";
import { announce, byId, copyFrom, isSend } from "./dom.js";
import { History } from "./history.js";
import { endInWords, MessageView } from "./message.js";
import { conversationOf, newConversation, saveConversation } from "./store.js";

const TITLE_LENGTH = 60;
const NEAR_END = 80; // pixels: who is that close to the end follows the stream

export class Chat {
  constructor(settings, modelName) {
    this.settings = settings;
    this.modelName = modelName; // () => {model}, or {} for the server's only one
    this.log = byId("messages");
    this.input = byId("prompt");
    this.runs = new Map(); // conversation id -> Answer
    this.views = [];
    this.history = new History({
      open: (conversation) => this.open(conversation),
      deleted: (id) => this.#onDeleted(id),
      isRunning: (id) => this.runs.has(id),
    });
    this.#listen();
    this.open(newConversation());
  }

  // --- what the user does --------------------------------------------------------------------------------------------

  open(conversation) {
    this.conversation = this.runs.get(conversation.id)?.conversation ?? conversation;
    this.history.show(this.conversation.id);
    this.#rebuild();
    this.#scrollToEnd();
    if (matchMedia("(pointer: fine)").matches) this.input.focus();
  }

  send(text) {
    const { conversation } = this;
    if (!text || this.runs.has(conversation.id)) return;
    if (!conversation.title) conversation.title = text.replace(/\s+/g, " ").slice(0, TITLE_LENGTH);
    this.#push({ role: "user", content: text });
    this.#answer(this.#push({ role: "assistant", content: "" }));
  }

  stop() {
    this.runs.get(this.conversation.id)?.stop();
  }

  // Say `text` instead of the message at `index`; what followed is forgotten.
  #resend(index, text) {
    this.#truncate(index);
    this.send(text);
  }

  #regenerate(index) {
    this.#truncate(index);
    this.#answer(this.#push({ role: "assistant", content: "" }));
  }

  #onDeleted(id) {
    const run = this.runs.get(id);
    if (run) run.isForgotten = true; // or its end would keep it again
    run?.stop();
    if (id === this.conversation.id) this.open(newConversation());
  }

  // --- one answer ----------------------------------------------------------------------------------------------------

  // Stream into `message`, the conversation's last; `continues` what it holds already.
  async #answer(message, { continues = false } = {}) {
    const { conversation } = this;
    const run = new Answer(conversation, message);
    this.runs.set(conversation.id, run);
    this.#keep(conversation);
    this.#onRunsChanged();
    this.#paintSoon(run);
    const asked = { ...this.settings.fields(), ...this.modelName() };
    await run.stream(question(conversation, this.settings.system, continues), asked, () => this.#paintSoon(run));
    this.runs.delete(conversation.id);
    if (!run.isForgotten) this.#finish(run);
  }

  #finish(run) {
    this.#keep(run.conversation);
    this.#onRunsChanged();
    this.#paint(run);
    if (run.conversation === this.conversation) announce(endInWords(run.message));
  }

  #keep(conversation) {
    byId("not-kept").hidden = saveConversation(conversation);
    this.history.refresh();
  }

  // --- what is shown -------------------------------------------------------------------------------------------------

  // At most once a frame, however many tokens came.
  #paintSoon(run) {
    run.frame ??= requestAnimationFrame(() => {
      run.frame = null;
      this.#paint(run);
    });
  }

  #paint({ conversation, message }) {
    if (conversation !== this.conversation) return;
    const follows = this.#isNearEnd();
    this.views.find((view) => view.message === message)?.update({ isRunning: this.runs.has(conversation.id) });
    if (follows) this.#scrollToEnd();
    this.#updateJump();
  }

  #push(message) {
    this.conversation.messages.push(message);
    this.#show(message);
    this.#scrollToEnd();
    return message;
  }

  #truncate(index) {
    this.conversation.messages.length = index;
    for (const view of this.views.splice(index)) view.root.remove();
  }

  #rebuild() {
    for (const view of this.views.splice(0)) view.root.remove();
    for (const message of this.conversation.messages) this.#show(message);
    const run = this.runs.get(this.conversation.id);
    if (run) this.#paint(run);
    this.#onRunsChanged();
  }

  #show(message) {
    const view = new MessageView(message);
    this.views.push(view);
    this.log.append(view.root);
  }

  #onRunsChanged() {
    const isRunning = this.runs.has(this.conversation.id);
    byId("stop").hidden = !isRunning;
    byId("send").hidden = isRunning;
    byId("welcome").hidden = this.conversation.messages.length > 0;
    byId("chat-title").textContent = this.conversation.title || "New chat";
    this.history.markRunning();
    this.#onInput();
  }

  #isNearEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.log;
    return scrollHeight - scrollTop - clientHeight < NEAR_END;
  }

  #scrollToEnd() {
    this.log.scrollTop = this.log.scrollHeight;
  }

  #updateJump() {
    byId("jump").hidden = this.#isNearEnd();
  }

  // The box grows with its text, as far as the style sheet lets it.
  #onInput() {
    this.input.style.height = "auto";
    this.input.style.height = `${this.input.scrollHeight + 2}px`;
    byId("send").disabled = this.input.value.trim() === "";
  }

  // --- events --------------------------------------------------------------------------------------------------------

  #listen() {
    this.input.addEventListener("input", () => this.#onInput());
    this.input.addEventListener("keydown", (event) => {
      if (!isSend(event)) return;
      event.preventDefault();
      byId("composer").requestSubmit();
    });
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      const text = this.input.value.trim();
      if (!text || this.runs.has(this.conversation.id)) return; // what was typed meanwhile stays
      this.input.value = "";
      this.send(text);
    });
    byId("stop").addEventListener("click", () => {
      this.stop();
      this.input.focus();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) this.stop();
    });
    addEventListener("storage", (event) => {
      const told = conversationOf(event); // or what is said here next would undo what was said in the other tab
      if (told?.id === this.conversation.id && !this.runs.has(told.id)) this.open(told);
    });
    addEventListener("pagehide", () => {
      for (const { conversation, message } of this.runs.values()) {
        message.finish = "stopped"; // by leaving
        saveConversation(conversation);
      }
    });
    byId("new-chat").addEventListener("click", () => this.open(newConversation()));
    byId("welcome").addEventListener("click", ({ target }) => {
      const example = target.closest("button");
      if (example) this.send(example.textContent.trim());
    });
    byId("jump").addEventListener("click", () => this.#scrollToEnd());
    this.log.addEventListener("scroll", () => this.#updateJump(), { passive: true });
    this.log.addEventListener("click", (event) => this.#onAction(event.target.closest("button")));
  }

  #onAction(button) {
    if (button?.dataset.copy === "code") {
      copyFrom(button, button.closest(".code").querySelector("code").textContent);
      return;
    }
    const index = this.views.findIndex((view) => view.root.contains(button));
    const action = button?.dataset.action;
    if (index === -1 || !action) return;
    const { message } = this.views[index];
    if (action === "copy") copyFrom(button, message.content);
    if (this.runs.has(this.conversation.id)) return; // one answer at a time
    if (action === "edit") this.views[index].edit((text) => this.#resend(index, text));
    if (action === "regenerate") this.#regenerate(index);
    if (action === "continue") {
      this.#truncate(index + 1);
      this.#answer(message, { continues: true });
    }
  }
}
