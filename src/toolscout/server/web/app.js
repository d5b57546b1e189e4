// The frame of the page: tabs, hash routes, keyboard shortcuts, and the form for an API key.

import * as catalogue from "./catalogue.js";
import * as evaluation from "./evaluation.js";
import * as findability from "./findability.js";
import * as journal from "./journal.js";
import * as learning from "./learning.js";
import * as search from "./search.js";
import { get, key } from "./api.js";
import { h, say, show } from "./dom.js";
import { SIGN_IN, report } from "./frame.js";

const VIEWS = [
  { name: "search", title: "Search", view: search, there: () => true },
  { name: "catalogue", title: "Catalogue", view: catalogue, there: () => true },
  { name: "findability", title: "Quality", view: findability, there: (me) => me.operator },
  { name: "journal", title: "Journal", view: journal, there: (me) => me.operator },
  { name: "learning", title: "Models", view: learning, there: (me) => me.operator },
  { name: "evaluation", title: "Evaluation", view: evaluation, there: (me) => me.operator && me.results },
];
const main = document.getElementById("main");
let me = null;

const views = () => VIEWS.filter((each) => each.there(me));

function address() {
  const [name, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { name, parameters: new URLSearchParams(query ?? "") };
}

// Each view draws into its own element, which is removed when the view is left. A late answer then changes nothing that
// is visible. Code that changes anything outside the element checks first that it is still connected.
async function route() {
  const { name, parameters } = address();
  const chosen = views().find((each) => each.name === name) ?? views()[0];
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.name === chosen.name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${chosen.title} – toolscout`;
  const place = h("div");
  show(main, h("h1", {}, chosen.title), place);
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
  document.getElementById("who").textContent = `${me.caller} · ${me.tools.toLocaleString("en")} tools`;
  show(document.getElementById("tabs"),
    views().map((each, at) => h("a", { href: `#/${each.name}`, "data-name": each.name, "aria-keyshortcuts": at + 1 }, each.title)));
  await route();
}

document.addEventListener(SIGN_IN, askForKey);

const KEYS = [
  ["/", "focus the search field"],
  ["1 … 6", "switch the view"],
  ["j, k", "next, previous tool or model"],
  ["Enter", "open the tool"],
  ["← → ↑ ↓", "move in the tree"],
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
  const stops = [...main.querySelectorAll("[data-stop]")];
  const at = stops.indexOf(document.activeElement);
  const next = stops[Math.max(0, Math.min(stops.length - 1, at + (forward ? 1 : -1)))];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  if (event.key === "/") main.querySelector("input[type=search]")?.focus();
  else if (event.key === "?") help();
  else if (event.key === "j" || event.key === "k") step(event.key === "j");
  else if (/^[1-9]$/.test(event.key) && me && views()[event.key - 1]) location.hash = `#/${views()[event.key - 1].name}`;
  else return;
  event.preventDefault();
});
document.getElementById("help").addEventListener("click", help);
addEventListener("hashchange", () => me && route());
begin();
