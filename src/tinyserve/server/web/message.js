// One message of a conversation on the screen. Knows how it looks; `chat.js` knows what happens.
//
// A message: {role, content} and, of an answer: reasoning, toolCalls [{name, arguments}], finish, error {text},
// usage (OpenAI's), seconds {first, total}.

import { element, fromTemplate, isSend, setText } from "./dom.js";
import { renderMarkdown } from "./markdown.js";
import { count, direction, duration, plural, rate } from "./words.js";

export class MessageView {
  constructor(message) {
    this.message = message;
    this.root = fromTemplate(message.role === "user" ? "user-message" : "assistant-message");
    this.body = this.root.querySelector(".body");
    this.update();
  }

  // Show the message as it is now.
  update({ isRunning = false } = {}) {
    this.body.dir = direction(this.message.content);
    if (this.message.role === "user") setText(this.body, this.message.content);
    else this.#updateAnswer(isRunning);
  }

  #updateAnswer(isRunning) {
    const { message, root } = this;
    renderMarkdown(this.body, message.content);
    this.#updateReasoning(isRunning);
    this.#updateToolCalls();
    const isEmpty = !message.content && !message.reasoning && !message.toolCalls?.length;
    root.classList.toggle("running", isRunning);
    root.classList.toggle("thinking", isRunning && isEmpty);
    root.setAttribute("aria-busy", String(isRunning)); // a screen reader waits for the whole answer
    setText(root.querySelector(".stats"), stats(message, isRunning));
    const error = root.querySelector(".error");
    error.hidden = !message.error || isRunning;
    setText(error.querySelector("span"), message.error?.text ?? "");
    for (const action of root.querySelectorAll(".actions button")) action.disabled = isRunning;
    root.querySelector(".actions [data-action=regenerate]").hidden = Boolean(message.error); // beside the error, too
    const isCut = !isRunning && message.content !== "" && ["length", "stopped"].includes(message.finish);
    root.querySelector("[data-action=continue]").hidden = !isCut;
    root.querySelector("[data-action=copy]").hidden = !message.content;
  }

  #updateReasoning(isRunning) {
    const details = this.root.querySelector(".reasoning");
    const { reasoning, content } = this.message;
    details.hidden = !reasoning;
    if (!reasoning) return;
    setText(details.querySelector("summary"), isRunning && !content ? "Thinking…" : "Reasoning");
    details.dir = direction(reasoning);
    renderMarkdown(details.querySelector("div"), reasoning);
  }

  #updateToolCalls() {
    const calls = this.message.toolCalls ?? [];
    const home = this.root.querySelector(".tool-calls");
    while (home.children.length > calls.length) home.lastChild.remove();
    calls.forEach((call, i) => {
      if (!home.children[i]) home.append(toolCall());
      const [summary, pre] = home.children[i].children;
      setText(summary, `Tool call: ${call.name || "…"}`);
      setText(pre, call.arguments);
    });
  }

  // Put a form in the place of the text; `onSave(text)`.
  edit(onSave) {
    if (this.root.querySelector("form")) return;
    const form = fromTemplate("edit-form");
    const area = form.elements.text;
    const close = () => {
      form.remove();
      this.root.classList.remove("editing");
      this.root.querySelector("[data-action=edit]").focus();
    };
    area.value = this.message.content;
    area.rows = Math.min(12, area.value.split("\n").length + 1);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (area.value.trim()) onSave(area.value.trim());
    });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (isSend(event)) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    form.querySelector("[data-action=cancel]").addEventListener("click", close);
    this.root.classList.add("editing");
    this.body.after(form);
    area.focus();
  }
}

function toolCall() {
  return element("details", { className: "tool-call" }, element("summary"), element("pre", { tabIndex: 0 }));
}

// "38 tok/s · first token 0.2 s · 45 in (32 cached) · 128 out · cut at the token limit"
function stats({ usage, seconds, finish }, isRunning) {
  const parts = [];
  const tokens = usage?.completion_tokens ?? 0;
  const streaming = seconds?.first === undefined ? 0 : seconds.total - seconds.first;
  if (tokens > 1 && streaming > 0) parts.push(`${rate((tokens - 1) / streaming)} tok/s`);
  if (seconds?.first !== undefined) parts.push(`first token ${duration(seconds.first)}`);
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`${count(usage.prompt_tokens)} in${cached ? ` (${count(cached)} cached)` : ""}`);
    parts.push(`${count(tokens)} out`);
  }
  const ends = { length: "cut at the token limit", stopped: "stopped", tool_calls: "asks for a tool" };
  if (!isRunning && ends[finish]) parts.push(ends[finish]);
  return parts.join(" · ");
}

// For a screen reader, when an answer has ended.
export function endInWords({ error, finish, usage }) {
  if (error) return error.text;
  const tokens = usage ? `, ${plural(usage.completion_tokens, "token")}` : "";
  return `${finish === "stopped" ? "Stopped" : "Answer complete"}${tokens}.`;
}
