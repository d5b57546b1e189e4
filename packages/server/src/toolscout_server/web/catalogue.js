// The catalogue: tools by facets and words, and one tool in full. Only visible rows are in the page.

import { get } from "./api.js";
import { chips, copyable, count, debounce, h, isNarrow, linkTo, marked, number, show } from "./dom.js";
import { remember, report } from "./frame.js";

const ROW_PX = 58;
const ROWS_PER_REQUEST = 100;
const FACETS = [["source", "Source", "sources"], ["kind", "Kind", "kinds"], ["parent", "Parent", "parents"], ["state", "State", "states"]];
const MAX_FACET_VALUES = 300;
const TYPING_PAUSE_MS = 30;

export async function open(place, parameters, me) {
  const state = Object.fromEntries(["text", "source", "kind", "parent", "state", "tool"].map((name) => [name, parameters.get(name) ?? ""]));
  const filter = h("input", { type: "search", id: "filter", value: state.text, autocomplete: "off", "aria-keyshortcuts": "/" });
  const total = h("p", { id: "count", class: "quiet", role: "status" });
  const list = h("div", { class: "pane card", id: "tools", role: "group", "aria-label": "Tools" });
  const detail = h("section", { class: "pane card", id: "detail", "aria-label": "Tool", tabindex: "0" }, h("p", { class: "quiet" }, "Choose a tool."));
  const selects = Object.fromEntries(FACETS.map(([name]) => [name, h("select", { id: `facet-${name}` })]));
  const panes = h("div", { class: "panes" }, list, detail);
  const refresh = () => {
    remember(place, "catalogue", state);
    return Promise.all([showRows(list, total, state, pick, me), showFacets(selects, state)]).catch((error) => report(error, place));
  };
  const pick = async (id) => {
    state.tool = id;
    remember(place, "catalogue", state);
    try {
      const tool = await get("/v1/tool", { id });
      if (state.tool !== id) return; // another tool was chosen in the meantime
      show(detail, drawBack(panes, list), drawTool(tool, state.text));
      panes.classList.add("chosen");
      detail.scrollTop = 0;
      if (isNarrow()) detail.scrollIntoView({ block: "start" });
    } catch (error) {
      report(error, place);
    }
  };
  filter.addEventListener("input", debounce(() => { state.text = filter.value; refresh(); }, TYPING_PAUSE_MS));
  for (const [name] of FACETS) selects[name].addEventListener("change", () => { state[name] = selects[name].value; refresh(); });
  place.append(
    h("div", { class: "row filters" }, h("label", { class: "wide", for: "filter" }, "Name or description", filter),
      FACETS.map(([name, title]) => h("label", { for: `facet-${name}` }, title, selects[name])),
      h("button", { type: "button", id: "clear", onclick: () => {
        for (const name of ["text", "source", "kind", "parent", "state"]) state[name] = "";
        filter.value = "";
        refresh();
      } }, "Clear")),
    total, panes);
  await refresh();
  if (state.tool) await pick(state.tool);
}

const filters = ({ text, source, kind, parent, state }) => ({ text, source, kind, parent, state });

// --- facets ------------------------------------------------------------------------------------------------------------

async function showFacets(selects, state) {
  const token = (selects.token = {}); // an older answer does not draw over a newer one
  const facets = await get("/v1/facets", { ...filters(state), limit: MAX_FACET_VALUES });
  if (selects.token !== token) return;
  for (const [name, , field] of FACETS) {
    const values = facets[field];
    const options = values.map((value) => h("option", { value: name === "state" && value.key === "searched" ? "" : value.key }, `${value.name} (${number(value.tools)})`));
    if (name !== "state") options.unshift(h("option", { value: "" }, "all"));
    if (state[name] && !values.some((value) => value.key === state[name])) options.push(h("option", { value: state[name] }, `${decodeURIComponent(state[name])} (0)`));
    show(selects[name], options);
    selects[name].value = state[name];
    selects[name].parentElement.hidden = name === "state" ? values.length < 2 && !state.state : values.length < 1;
  }
}

// --- the list ----------------------------------------------------------------------------------------------------------

async function showRows(list, place, state, pick, me) {
  const token = (list.token = {});
  const wanted = filters(state);
  const blocks = new Map();
  const readBlock = (at) => {
    if (!blocks.has(at)) blocks.set(at, get("/v1/tools", { ...wanted, offset: at * ROWS_PER_REQUEST, limit: ROWS_PER_REQUEST }));
    return blocks.get(at);
  };
  const { total } = await readBlock(0);
  if (list.token !== token) return;
  place.textContent = count(total, "tool") + (state.source ? ` in ${state.source}` : "");
  const canvas = h("div", { class: "virtual" });
  canvas.style.height = `${total * ROW_PX}px`;
  list.classList.toggle("empty", total === 0);
  show(list, total ? canvas : h("p", { class: "quiet" }, me.tools ? "No tool matches these filters." : "The catalogue is empty."));
  list.scrollTop = 0;
  const drawn = new Map();
  const draw = async () => {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW_PX) - 4);
    const last = Math.min(total - 1, Math.ceil((list.scrollTop + (list.clientHeight || 600)) / ROW_PX) + 4);
    for (const [at, row] of drawn) {
      if ((at < first || at > last) && !row.contains(document.activeElement)) { row.remove(); drawn.delete(at); }
    }
    for (let at = Math.floor(first / ROWS_PER_REQUEST); at <= Math.floor(last / ROWS_PER_REQUEST); at += 1) {
      const page = await readBlock(at);
      if (list.token !== token) return;
      page.tools.forEach((tool, inner) => {
        const number = at * ROWS_PER_REQUEST + inner;
        if (number < first || number > last || drawn.has(number)) return;
        const row = drawRow(tool, state, pick, list);
        row.style.top = `${number * ROW_PX}px`;
        drawn.set(number, row);
        const after = [...drawn.keys()].filter((other) => other > number).sort((a, b) => a - b)[0];
        canvas.insertBefore(row, after === undefined ? null : drawn.get(after)); // so that Tab goes down the list
      });
    }
  };
  list.onscroll = () => draw().catch((error) => report(error, list));
  await draw();
}

function drawRow(tool, state, pick, list) {
  const choose = () => {
    for (const other of list.querySelectorAll("[aria-pressed=true]")) other.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-pressed", "true");
    pick(tool.id);
  };
  const words = state.text.split(/\s+/).filter(Boolean);
  const button = h("button", { type: "button", "data-stop": true, "data-id": tool.id, "aria-pressed": String(tool.id === state.tool), onclick: choose },
    h("strong", {}, marked(tool.name, words), tool.kind !== "tool" && h("span", { class: "badge" }, tool.kind)), h("span", {}, marked(tool.description || tool.id, words)));
  return h("div", {}, button);
}

// --- one tool ----------------------------------------------------------------------------------------------------------

function drawBack(panes, list) {
  return h("button", { type: "button", class: "back", onclick: () => {
    panes.classList.remove("chosen");
    list.querySelector("[aria-pressed=true]")?.focus();
  } }, "Back to the list");
}

function drawTool(tool, text) {
  const hints = Object.entries(tool.hints).filter(([, value]) => value !== null).map(([name, value]) => `${value ? "" : "not "}${name.replace("_", " ")}`);
  const json = (title, value) => value !== null && value !== undefined && Object.keys(value).length > 0 &&
    h("details", {}, h("summary", {}, title), h("pre", { tabindex: "0", "aria-label": title }, typeof value === "string" ? value : JSON.stringify(value, null, 2)));
  return [
    h("h2", { id: "tool-name" }, tool.name),
    h("dl", {}, [["id", copyable(tool.id)], ["source", h("a", { href: linkTo("catalogue", { source: tool.source }) }, tool.source)], ["kind", tool.kind], ["path", tool.path.join(" › ")],
      ["callable", tool.callable ? "yes" : "no"], ["needs", (tool.requires ?? []).join(", ")], ["fingerprint", h("code", {}, tool.fingerprint)]]
      .filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    hints.length > 0 && chips(hints), tool.tags.length > 0 && chips(tool.tags),
    h("h3", {}, "Description"), h("p", { class: "text" }, marked(tool.description || "none", text.split(/\s+/).filter(Boolean))),
    drawParameters(tool.parameters), json("Parameters as JSON Schema", tool.parameters), json("Returns", tool.returns), json("Metadata", tool.meta),
  ];
}

function drawParameters(schema) {
  const properties = Object.entries(schema?.properties ?? {}).filter(([, inner]) => inner && typeof inner === "object");
  if (!properties.length) return null;
  const required = new Set(Array.isArray(schema.required) ? schema.required : []);
  return [h("h3", {}, "Parameters"), h("ul", { class: "plain" }, properties.slice(0, 20).map(([name, inner]) => h("li", {},
    h("code", {}, name), h("span", { class: "quiet" }, ` ${[inner.type].flat().filter(Boolean).join(" or ")}${required.has(name) ? ", required" : ""}`),
    typeof inner.description === "string" && h("div", {}, inner.description)))),
  properties.length > 20 && h("p", { class: "quiet" }, `And ${number(properties.length - 20)} more, in the schema below.`)];
}
