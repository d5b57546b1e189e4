// Elements are made here and nowhere else. Every text becomes a text node; nothing is ever parsed as HTML. Invisible
// characters, and those that turn the direction of text, are shown as a mark.

const HIDDEN = new RegExp([ // as in toolscout.trust.invisible; what letters and emoji need to join stays
  "[\\0-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f]", // control codes
  "[\\u202a-\\u202e\\u2066-\\u2069\\u200e\\u200f\\u061c]", // turn the direction
  "[\\u00ad\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u200b\\u2060-\\u2065\\u206a-\\u206f\\u3164\\ufeff\\uffa0\\ufff0-\\ufffb]", // no width
  "(?<![\\u1800-\\u18af])[\\u180b-\\u180f]",
  "(?<![^\\0-\\x7f])[\\u200c\\u200d]|[\\u200c\\u200d](?![^\\0-\\x7f])", // join nothing beside an ASCII letter
  "[\\ufe00-\\ufe0f\\u{e0100}-\\u{e01ef}]{2,}|(?<![\\u3400-\\u9fff\\u{20000}-\\u{3ffff}])[\\u{e0100}-\\u{e01ef}]", // choose no variant
  "[\\ufe00-\\ufe0d]|(?<![^0-9A-Za-z\\s])[\\ufe0e\\ufe0f](?!\\u20e3)", // nor here, unless after a sign
  "[\\u{e0000}-\\u{e00ff}\\u{e01f0}-\\u{e0fff}]", // tags
].join("|"), "gu");
const SVG = "http://www.w3.org/2000/svg";

const kept = (children) => children.flat(Infinity)
  .filter((child) => child !== null && child !== undefined && child !== false)
  .map((child) => (child instanceof Node ? child : String(child).replace(HIDDEN, "\ufffd")));

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...kept(children));
  return element;
}

export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const svg = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

export function show(target, ...children) {
  target.replaceChildren(...kept(children));
}

let statusTimer;

// Shows a sentence at the bottom for a while. With `undo` it has a button that takes the change back.
export function say(text, undo = null) {
  const status = document.getElementById("status");
  const button = undo && h("button", { type: "button", id: "undo", onclick: async () => {
    show(status);
    await undo();
  } }, "Undo");
  show(status, text && h("span", {}, text), button);
  clearTimeout(statusTimer);
  if (text) statusTimer = setTimeout(() => show(status), undo ? 15000 : 6000);
}

export function gauge(share) {
  const inner = h("span");
  inner.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return h("div", { class: "gauge", "aria-hidden": "true" }, inner);
}

export function chips(words, kind = "") {
  return h("ul", { class: `chips ${kind}` }, words.map((word) => h("li", {}, String(word))));
}

export const isNarrow = () => matchMedia("(max-width: 40rem)").matches;

// A table whose rows become cards on a narrow screen. Long ones begin with some rows; a button shows the others.
export function table(columns, rows, caption, { id = null, first = isNarrow() ? 6 : 25 } = {}) {
  const draw = (row) => h("tr", { role: "row" }, row.map((cell, at) =>
    h("td", { role: "cell", class: columns[at][1], "data-label": columns[at][0] || null }, h("div", {}, cell))));
  const body = h("tbody", { role: "rowgroup" }, rows.slice(0, first).map(draw));
  const more = rows.length > first && h("button", { type: "button", class: "more", onclick: () => {
    body.append(...rows.slice(first).map(draw));
    more.remove();
    region.focus();
  } }, `Show all ${number(rows.length)}`);
  const region = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption, id },
    h("table", { role: "table" },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map(([name, kind]) => h("th", { scope: "col", role: "columnheader", class: kind }, name)))),
      body), more);
  return region;
}

// A text with the given words marked. Words are compared as they are spelled, without their case.
export function marked(text, words) {
  const wanted = new Set(words.map((word) => word.toLowerCase()));
  if (!wanted.size) return [text];
  return text.split(/([\p{L}\p{N}\p{M}]+)/u).map((part) => (wanted.has(part.toLowerCase()) ? h("mark", {}, part) : part));
}

// The full id of a tool with a button that copies it.
export function copyable(id) {
  const text = h("code", { class: "id" }, id);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(id);
      say("Copied.");
    } catch { // pages over plain HTTP may not write to the clipboard
      getSelection().selectAllChildren(text);
      say("Selected. Press Ctrl-C to copy.");
    }
  };
  return h("span", { class: "copyable" }, text,
    h("button", { type: "button", class: "copy", "aria-label": `Copy ${id}`, onclick: copy }, "Copy"));
}

export const count = (amount, one, many = `${one}s`) => `${number(amount)} ${amount === 1 ? one : many}`;

const MAX_LISTED_CHARS = 140; // of a query in a list

export const clip = (text) => (text.length > MAX_LISTED_CHARS ? `${text.slice(0, MAX_LISTED_CHARS - 1)}…` : text);

export const when = (at) => String(at ?? "").slice(0, 16).replace("T", " ");

export const linkTo = (view, parameters = {}) => {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value)).toString();
  return `#/${view}${query ? `?${query}` : ""}`;
};

// Asks for confirmation; true if the user confirmed.
export function confirmed(question, consequence) {
  return new Promise((resolve) => {
    const end = (value) => () => dialog.close(value);
    const dialog = h("dialog", { "aria-labelledby": "question", "aria-describedby": "consequence" },
      h("h2", { id: "question" }, question), h("p", { id: "consequence" }, consequence),
      h("div", { class: "row" }, h("button", { type: "button", onclick: end("") }, "Cancel"),
        h("button", { type: "button", class: "main", id: "confirm", onclick: end("yes") }, "Confirm")));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

export const number = (value, digits = 0) =>
  value === null || value === undefined ? "—" : Number(value).toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });

export function debounce(work, milliseconds) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), milliseconds);
  };
}
