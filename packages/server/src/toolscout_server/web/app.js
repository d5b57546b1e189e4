// The frame of the page: views, hash routes, keys, and the form for an API key.

import * as catalogue from "./catalogue.js";
import * as evaluation from "./evaluation.js";
import * as home from "./home.js";
import * as journal from "./journal.js";
import * as models from "./models.js";
import * as quality from "./quality.js";
import * as search from "./search.js";
import * as sources from "./sources.js";
import { get, key } from "./api.js";
import { count, h, say, show } from "./dom.js";
import { SIGN_IN, report } from "./frame.js";
import { openPalette } from "./palette.js";

const VIEWS = [
  { name: "home", title: "Home", view: home, there: () => true },
  { name: "search", title: "Search", view: search, there: () => true },
  { name: "catalogue", title: "Catalogue", view: catalogue, there: () => true },
  { name: "sources", title: "Sources", view: sources, there: (caller) => caller.manages },
  { name: "journal", title: "Journal", view: journal, there: (caller) => caller.operator },
  { name: "models", title: "Models", view: models, there: (caller) => caller.operator },
  { name: "quality", title: "Quality", view: quality, there: (caller) => caller.operator },
  { name: "evaluation", title: "Evaluation", view: evaluation, there: (caller) => caller.operator && caller.results },
];
const FORMER_NAMES = { learning: "models", findability: "quality" };
const main = document.getElementById("main");
let me = null;

const views = () => VIEWS.filter((view) => view.there(me));

function address() {
  const [name, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { name: FORMER_NAMES[name] ?? name, parameters: new URLSearchParams(query ?? "") };
}

// Each view draws into its own element, which is removed when the view is left. A late answer then changes nothing that
// is visible. Code that changes anything outside the element checks first that it is still connected.
async function route() {
  const { name, parameters } = address();
  const chosen = views().find((view) => view.name === name) ?? views()[0];
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.name === chosen.name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${chosen.title} – toolscout`;
  const place = h("div", { id: `view-${chosen.name}` });
  show(main, h("h1", {}, chosen.title), place);
  scrollTo(0, 0);
  try {
    await chosen.view.open(place, parameters, me);
  } catch (error) {
    report(error, place);
  }
}

function askForKey() {
  const field = h("input", { type: "password", id: "key", autocomplete: "off", required: true });
  const enter = async (event) => {
    event.preventDefault();
    key.set(field.value.trim());
    await begin();
  };
  show(document.getElementById("tabs"));
  show(main, h("h1", {}, "Sign in"),
    h("form", { class: "row", onsubmit: enter },
      h("label", { class: "wide", for: "key" }, "API key or token (kept for this tab only)", field),
      h("button", { class: "main" }, "Sign in")));
  if (key.get()) say("This key is not valid. Ask an operator for one.");
  field.focus();
}

async function begin() {
  try {
    me = await get("/v1/me");
  } catch (error) {
    report(error);
    return;
  }
  document.getElementById("who").textContent = `${me.caller} · ${count(me.tools, "tool")}`;
  show(document.getElementById("tabs"),
    views().map((view, at) => h("a", { href: `#/${view.name}`, "data-name": view.name, "aria-keyshortcuts": at + 1 }, view.title)));
  await route();
}

document.addEventListener(SIGN_IN, askForKey);

const KEYS = [
  ["Ctrl K", "open the command palette"],
  ["/", "focus the search field"],
  ["1 … 8", "switch the view"],
  ["j, k", "next, previous tool or model"],
  ["Enter", "open the tool"],
  ["?", "show this list"],
];

function help() {
  const close = h("button", { type: "button", class: "main", onclick: () => dialog.close() }, "Close");
  const dialog = h("dialog", { "aria-labelledby": "keys" }, h("h2", { id: "keys" }, "Keys"),
    h("dl", {}, KEYS.map(([name, what]) => [h("dt", {}, h("kbd", {}, name)), h("dd", {}, what)])), close);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function step(forward) {
  const stops = [...main.querySelectorAll("[data-stop]")].filter((stop) => stop.checkVisibility?.() ?? true);
  const at = stops.indexOf(document.activeElement);
  const next = stops[Math.max(0, Math.min(stops.length - 1, at + (forward ? 1 : -1)))];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

const commands = () => [
  ...views().map((view) => ({ title: view.title, about: "view", href: `#/${view.name}` })),
  ...(me.manages ? [{ title: "Add a source", about: "command", href: "#/sources?add=1" }, { title: "Approve definitions", about: "command", href: "#/sources?waiting=1" }] : []),
  ...(me.operator ? [{ title: "Queries without a tool", about: "command", href: "#/journal?without=1" }, { title: "Check the quality", about: "command", href: "#/quality?most=300" }] : []),
  { title: "Keys", about: "command", work: help },
];

document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k" && me) {
    event.preventDefault();
    openPalette(commands());
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  if (event.key === "/") main.querySelector("input[type=search]")?.focus();
  else if (event.key === "?") help();
  else if (event.key === "j" || event.key === "k") step(event.key === "j");
  else if (/^[1-9]$/.test(event.key) && me && views()[event.key - 1]) location.hash = `#/${views()[event.key - 1].name}`;
  else return;
  event.preventDefault();
});
document.getElementById("help").addEventListener("click", help);
document.getElementById("palette-open").addEventListener("click", () => me && openPalette(commands()));
addEventListener("hashchange", () => me && route());
begin();
