// One answer: what is asked, and what comes back piece by piece. Fills a message; knows nothing of the screen.

import { ApiError, chunks, request } from "./api.js";

export class Answer {
  constructor(conversation, message) {
    this.conversation = conversation;
    this.message = message;
    this.controller = new AbortController();
    Object.assign(message, { error: null, finish: null });
  }

  // The connection closes, and the server frees the request.
  stop() {
    this.controller.abort();
  }

  // Until the answer has ended, well or not: what went wrong is in the message. `onPiece()` after each piece.
  async stream(messages, fields, onPiece) {
    this.start = performance.now();
    const { message, controller } = this;
    const usage = { include_usage: true, continuous_usage_stats: true };
    try {
      const body = { ...messages, stream: true, stream_options: usage, ...fields };
      const response = await request("v1/chat/completions", { body, signal: controller.signal });
      for await (const chunk of chunks(response)) {
        this.#take(chunk);
        onPiece();
      }
    } catch (error) {
      if (controller.signal.aborted) message.finish = "stopped";
      else message.error = { text: inWords(error) };
    }
  }

  #take({ choices, usage }) {
    const { message } = this;
    const choice = choices?.[0];
    const delta = choice?.delta ?? {};
    const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
    if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
    if (delta.content) message.content += delta.content;
    for (const call of delta.tool_calls ?? []) takeToolCall(message, call);
    if (usage) message.usage = usage;
    if (choice?.finish_reason) message.finish = choice.finish_reason;
    const isToken = usage?.completion_tokens || delta.content || reasoning || delta.tool_calls;
    if (choice && isToken) this.#tick();
  }

  // Seconds since the question: the first token, and the last one so far.
  #tick() {
    const total = (performance.now() - this.start) / 1000;
    this.first ??= total;
    this.message.seconds = { first: this.first, total };
  }
}

// The fields of a request that say what has been said. The conversation's last message is the answer to come, or the
// one that is to go on.
export function question({ messages: all }, system, continues) {
  const messages = said(all.slice(0, -1));
  if (system) messages.unshift({ role: "system", content: system });
  if (!continues) return { messages };
  messages.push({ role: "assistant", content: all.at(-1).content });
  return { messages, continue_final_message: true, add_generation_prompt: false };
}

// A question whose answer never came is left out, with its answer.
function said(messages) {
  const told = [];
  for (const { role, content } of messages) {
    if (role === "user" && told.at(-1)?.role === "user") told.pop();
    if (role === "user" || content) told.push({ role, content });
  }
  return told;
}

function takeToolCall(message, { index = 0, function: part }) {
  message.toolCalls ??= [];
  const call = (message.toolCalls[index] ??= { name: "", arguments: "" });
  call.name += part?.name ?? "";
  call.arguments += part?.arguments ?? "";
}

function inWords(error) {
  return error instanceof ApiError ? error.message : `The page failed: ${error.message}`;
}
