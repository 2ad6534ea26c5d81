// Small helpers around the DOM. Nothing here, or anywhere in the page, parses a string as markup.

export function byId(id) {
  return document.getElementById(id);
}

export function element(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

// A copy of the one element in <template id="...">.
export function fromTemplate(id) {
  return byId(id).content.firstElementChild.cloneNode(true);
}

// An icon of the sprite in index.html.
export function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const use = document.createElementNS(space, "use");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

// Set the text only where it differs, so that nothing is laid out or announced for nothing.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function announce(text) {
  byId("announcer").textContent = text;
}

// Enter alone. The one that takes up what an input method proposes (Japanese, Chinese, ...) is not meant for us; in Safari
// it comes once the composition has ended, known by its key code alone (WebKit bug 165004).
export function isSend({ key, shiftKey, isComposing, keyCode }) {
  return key === "Enter" && !shiftKey && !isComposing && keyCode !== 229;
}

// Plain http on another machine has no clipboard API; the old way still works there.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", { value: text, className: "off-screen" });
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    const isDone = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return isDone;
  }
}

// A word of confirmation on the button itself, however often it is pressed meanwhile.
export async function copyFrom(button, text) {
  const label = (button.dataset.label ??= button.textContent);
  const isDone = await copyText(text);
  button.textContent = isDone ? "Copied" : "Failed";
  announce(isDone ? "Copied" : "Could not copy");
  setTimeout(() => (button.textContent = label), 1500);
}
