// The catalogue: the tree of paths, the tools below a node, and one tool in full. Only visible rows are in the page.

import { get } from "./api.js";
import { chips, debounce, h, number, show } from "./dom.js";
import { remember, report } from "./frame.js";

const HEIGHT = 58; // of a row
const BLOCK = 100; // rows of one request

export async function open(place, parameters) {
  const state = { within: parameters.get("within") ?? "", text: parameters.get("text") ?? "", tool: parameters.get("tool") ?? "" };
  const filter = h("input", { type: "search", id: "filter", value: state.text, autocomplete: "off", "aria-keyshortcuts": "/" });
  const count = h("p", { id: "count", class: "quiet", role: "status" });
  const list = h("div", { class: "pane card", id: "tools", role: "group", "aria-label": "Tools" });
  const detail = h("section", { class: "pane card", id: "detail", "aria-label": "Tool", tabindex: "0" }, h("p", { class: "quiet" }, "Choose a tool."));
  const branch = h("ul", { role: "tree", "aria-label": "Sources and paths" });
  const fresh = () => {
    remember(place, "catalogue", state);
    return rows(list, count, state, pick).catch((error) => report(error, place));
  };
  const pick = async (id) => {
    state.tool = id;
    remember(place, "catalogue", state);
    try {
      const tool = await get("/v1/tool", { id });
      if (state.tool !== id) return; // another tool was chosen in the meantime
      show(detail, draw(tool));
      detail.scrollTop = 0;
    } catch (error) {
      report(error, place);
    }
  };
  filter.addEventListener("input", debounce(() => { state.text = filter.value; fresh(); }, 60));
  place.append(
    h("div", { class: "row" }, h("label", { class: "wide", for: "filter" }, "Filter by name or description", filter), count),
    h("div", { class: "three" }, h("div", { class: "pane card" }, branch), list, detail));
  const chosen = (key) => { state.within = key; fresh(); };
  const started = fresh();
  await tree(branch, chosen, state.within);
  await started;
  if (state.tool) await pick(state.tool);
}

// --- the list ----------------------------------------------------------------------------------------------------------

async function rows(list, count, state, pick) {
  const asked = { within: state.within, text: state.text };
  const token = (list.token = {}); // an older answer does not draw over a newer one
  const blocks = new Map();
  const block = (at) => {
    if (!blocks.has(at)) blocks.set(at, get("/v1/tools", { ...asked, offset: at * BLOCK, limit: BLOCK }));
    return blocks.get(at);
  };
  const { total } = await block(0);
  if (list.token !== token) return;
  count.textContent = `${number(total)} ${total === 1 ? "tool" : "tools"}${asked.within ? ` in ${decodeURIComponent(asked.within).replaceAll("/", " › ")}` : ""}`;
  const canvas = h("div", { class: "virtual" });
  canvas.style.height = `${total * HEIGHT}px`;
  show(list, canvas);
  list.scrollTop = 0;
  const drawn = new Map();
  const draw = async () => {
    const first = Math.max(0, Math.floor(list.scrollTop / HEIGHT) - 4);
    const last = Math.min(total - 1, Math.ceil((list.scrollTop + (list.clientHeight || 600)) / HEIGHT) + 4);
    for (const [at, row] of drawn) {
      if ((at < first || at > last) && !row.contains(document.activeElement)) { row.remove(); drawn.delete(at); }
    }
    for (let at = Math.floor(first / BLOCK); at <= Math.floor(last / BLOCK); at += 1) {
      const page = await block(at);
      if (list.token !== token) return;
      page.tools.forEach((tool, inner) => {
        const place = at * BLOCK + inner;
        if (place < first || place > last || drawn.has(place)) return;
        const row = line(tool, state, pick, list);
        row.style.top = `${place * HEIGHT}px`;
        drawn.set(place, row);
        const after = [...drawn.keys()].filter((each) => each > place).sort((a, b) => a - b)[0];
        canvas.insertBefore(row, after === undefined ? null : drawn.get(after)); // so that Tab goes down the list
      });
    }
  };
  list.onscroll = () => draw().catch((error) => report(error, list));
  await draw();
}

function line(tool, state, pick, list) {
  const chosen = () => {
    for (const other of list.querySelectorAll("[aria-pressed=true]")) other.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-pressed", "true");
    pick(tool.id);
  };
  const button = h("button", { type: "button", "data-stop": true, "data-id": tool.id, "aria-pressed": String(tool.id === state.tool), onclick: chosen },
    h("strong", {}, tool.name), h("span", {}, tool.description || tool.id));
  return h("div", {}, button);
}

// --- the tree: roles and keys as the ARIA practices have them ---------------------------------------------------------

async function tree(root, chosen, selected) {
  const failed = (error) => report(error, root);
  const item = (node, level) => {
    const mark = h("span", { class: "mark", "aria-hidden": "true" }, node.leaf ? "" : "▸");
    const self = h("li", { role: "treeitem", tabindex: "-1", "aria-level": level, "aria-selected": String(node.key === selected),
      "aria-expanded": node.leaf ? null : "false", "data-key": node.key },
      h("div", { class: "label" }, mark, h("span", { class: "text" }, node.name), h("span", { class: "quiet" }, number(node.tools))));
    self.toggle = async (opened) => {
      if (node.leaf || opened === (self.getAttribute("aria-expanded") === "true")) return;
      self.setAttribute("aria-expanded", String(opened));
      mark.textContent = opened ? "▾" : "▸";
      self.querySelector(":scope > [role=group]")?.remove();
      if (opened) {
        const group = h("ul", { role: "group" });
        self.append(group);
        await page(group, node.key, level + 1, 0);
      }
    };
    self.choose = () => {
      for (const other of root.querySelectorAll("[aria-selected=true]")) other.setAttribute("aria-selected", "false");
      self.setAttribute("aria-selected", "true");
      focus(self);
      chosen(node.key);
    };
    self.firstChild.addEventListener("click", (event) => {
      event.stopPropagation();
      self.choose();
      self.toggle(self.getAttribute("aria-expanded") !== "true").catch(failed);
    });
    return self;
  };
  const page = async (group, key, level, offset) => {
    const found = await get("/v1/tree", { within: key, offset, limit: 200 });
    group.append(...found.nodes.map((node) => item(node, level)));
    const left = found.total - offset - found.nodes.length;
    if (left <= 0 || !found.nodes.length) return;
    const more = h("li", { role: "treeitem", tabindex: "-1", "aria-level": level, "aria-selected": "false" },
      h("div", { class: "label" }, h("span", { class: "mark" }), h("span", { class: "text" }, `${number(left)} more`)));
    more.choose = async () => { more.remove(); await page(group, key, level, offset + found.nodes.length); };
    more.toggle = async () => {};
    more.firstChild.addEventListener("click", (event) => { event.stopPropagation(); more.choose().catch(failed); });
    group.append(more);
  };
  const focus = (self) => {
    for (const other of root.querySelectorAll("[tabindex='0']")) other.setAttribute("tabindex", "-1");
    self.setAttribute("tabindex", "0");
    self.focus({ preventScroll: false });
  };
  root.addEventListener("keydown", async (event) => {
    const self = event.target.closest("[role=treeitem]");
    const all = [...root.querySelectorAll("[role=treeitem]")];
    const at = all.indexOf(self);
    const opened = self?.getAttribute("aria-expanded");
    const moves = {
      ArrowDown: () => all[at + 1] && focus(all[at + 1]),
      ArrowUp: () => all[at - 1] && focus(all[at - 1]),
      Home: () => focus(all[0]),
      End: () => focus(all.at(-1)),
      ArrowRight: () => (opened === "false" ? self.toggle(true) : opened === "true" && all[at + 1] && focus(all[at + 1])),
      ArrowLeft: () => (opened === "true" ? self.toggle(false) : self.parentElement.closest("[role=treeitem]") && focus(self.parentElement.closest("[role=treeitem]"))),
      Enter: () => self.choose(),
      " ": () => self.choose(),
    };
    if (at < 0 || !moves[event.key]) return;
    event.preventDefault();
    try {
      await moves[event.key]();
    } catch (error) {
      failed(error);
    }
  });
  show(root);
  await page(root, "", 1, 0);
  const items = [...root.children];
  items[0]?.setAttribute("tabindex", "0");
  if (items.length === 1) await items[0].toggle(true);
}

// --- one tool ----------------------------------------------------------------------------------------------------------

function draw(tool) {
  const hints = Object.entries(tool.hints).filter(([, value]) => value !== null).map(([name, value]) => `${value ? "" : "not "}${name.replace("_", " ")}`);
  const json = (title, value) => value !== null && value !== undefined && Object.keys(value).length > 0 &&
    [h("h3", {}, title), h("pre", { tabindex: "0", "aria-label": title }, typeof value === "string" ? value : JSON.stringify(value, null, 2))];
  return [
    h("h2", { id: "tool-name" }, tool.name),
    h("dl", {}, [["id", tool.id], ["path", tool.path.join(" › ")], ["callable", tool.callable ? "yes" : "no"], ["fingerprint", tool.fingerprint]]
      .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value || "—")])),
    hints.length > 0 && chips(hints), tool.tags.length > 0 && chips(tool.tags),
    h("h3", {}, "Description"), h("pre", { tabindex: "0", "aria-label": "Description" }, tool.description || "none"),
    json("Parameters", tool.parameters), json("Returns", tool.returns), json("Metadata", tool.meta),
  ];
}
