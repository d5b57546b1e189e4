// The command palette: views, commands, tools by name, and a search for whatever was typed.

import { get } from "./api.js";
import { debounce, h, linkTo, show } from "./dom.js";
import { report } from "./frame.js";
import { moveInList } from "./why.js";

const MAX_TOOLS = 8;
const TYPING_PAUSE_MS = 30;

export function openPalette(commands) {
  if (document.querySelector("dialog[open]")) return;
  const field = h("input", { type: "text", id: "palette-field", role: "combobox", "aria-expanded": "true", "aria-controls": "palette-options",
    "aria-autocomplete": "list", "aria-label": "View, command, tool or query", placeholder: "View, command, tool or query", autocomplete: "off" });
  const options = h("ul", { class: "options", id: "palette-options", role: "listbox", "aria-label": "Results" });
  const dialog = h("dialog", { class: "palette", "aria-label": "Command palette" }, field, options);
  let entries = [];
  const run = (index) => {
    const entry = entries[Number(index)];
    dialog.close();
    if (entry?.work) entry.work();
    else if (entry) location.hash = entry.href;
  };
  const draw = (tools) => {
    const text = field.value.trim();
    const words = text.toLowerCase().split(/\s+/);
    entries = commands.filter((command) => words.every((word) => command.title.toLowerCase().includes(word)));
    if (text) entries.push({ title: `Search for “${text}”`, about: "search", href: linkTo("search", { q: text }) });
    entries.push(...tools.map((tool) => ({ title: tool.id, about: "tool", href: linkTo("catalogue", { tool: tool.id }) })));
    show(options, entries.map((entry, at) => h("li", { role: "option", id: `palette-option-${at}`, "data-id": at,
      "aria-selected": String(at === 0), onmousedown: (event) => { event.preventDefault(); run(at); } },
      h("span", {}, entry.title), h("span", { class: "quiet" }, entry.about))));
    field.setAttribute("aria-activedescendant", entries.length ? "palette-option-0" : "");
  };
  const lookUp = debounce(async () => {
    const text = field.value.trim();
    if (!text) return;
    try {
      const page = await get("/v1/tools", { text, limit: MAX_TOOLS });
      if (dialog.isConnected && field.value.trim() === text) draw(page.tools);
    } catch (error) {
      report(error, dialog);
    }
  }, TYPING_PAUSE_MS);
  field.addEventListener("input", () => { draw([]); lookUp(); });
  field.addEventListener("keydown", (event) => moveInList(event, field, options, run, () => dialog.close()));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  draw([]);
  dialog.showModal();
  field.focus();
}
