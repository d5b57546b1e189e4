// Search: a query, its answer with scores and stages, and why a tool is missing.

import { get, post } from "./api.js";
import { chips, debounce, gauge, h, number, say, show, table } from "./dom.js";
import { remember, report } from "./frame.js";

const RECIPES = [["", "default"], ["scout", "scout"], ["hybrid", "hybrid"], ["bm25", "bm25"], ["dense", "dense"]];
let running = null;

export async function open(place, parameters, me) {
  const query = h("input", { type: "search", id: "query", autocomplete: "off", value: parameters.get("q") ?? "", "aria-keyshortcuts": "/" });
  const k = h("input", { type: "number", id: "k", min: 1, max: 100, value: parameters.get("k") ?? me.k });
  const recipe = h("select", { id: "recipe" }, RECIPES.map(([value, text]) => h("option", { value }, text)));
  recipe.value = RECIPES.some(([value]) => value === parameters.get("recipe")) ? parameters.get("recipe") : "";
  const answer = h("section", { "aria-label": "Answer", "aria-live": "polite" });
  const why = h("section", { class: "card", "aria-labelledby": "why-title", hidden: true });
  const state = () => ({ query: query.value, k: Number(k.value) || me.k, recipe: recipe.value || null });
  const look = async (event) => {
    event?.preventDefault();
    remember(place, "search", { q: query.value, k: k.value, recipe: recipe.value });
    running?.abort();
    running = new AbortController();
    try {
      const found = await post("/v1/search", { ...state(), trace: true }, running.signal);
      show(answer, drawAnswer(found, state));
      why.hidden = false;
      show(why, drawWhy(state, found));
    } catch (error) {
      report(error, place);
    }
  };
  place.append(
    h("form", { class: "row", role: "search", onsubmit: look },
      h("label", { class: "wide", for: "query" }, "Query", query),
      h("label", { for: "k" }, "Tools", k), h("label", { for: "recipe" }, "Recipe", recipe),
      h("button", { class: "main" }, "Search")),
    h("div", { class: "two" }, h("div", {}, answer), why));
  if (!query.value) return query.focus();
  await look();
  if (parameters.get("why") && !why.hidden && place.isConnected) await ask(state, parameters.get("why"), false);
}

function drawAnswer(found, state) {
  const best = Math.max(...found.hits.map((hit) => hit.score), 0);
  const count = found.hits.length;
  const head = count ? `${count} ${count === 1 ? "tool" : "tools"}` : (found.answer ?? "no tools").replaceAll("_", " ");
  const judged = found.need === null ? "" : ` · ${number(100 * found.need)} % likely to need a tool`;
  return [
    h("p", { id: "summary" }, h("strong", {}, head), h("span", { class: "quiet" }, ` in ${number(found.ms.total, 1)} ms${judged}`)),
    found.reason && h("p", { class: "note" }, found.reason),
    ...found.uncovered.map((step) => h("p", { class: "note" }, `No tool fits the step “${step}”.`)),
    count > 0 && h("ol", { class: "hits card" }, found.hits.map((hit, at) => drawHit(hit, at + 1, best, found.search_id, state))),
    h("details", { class: "card", open: true }, h("summary", {}, "Stages"),
      table([["stage", ""], ["ms", "number"], ["note", ""]], found.trace.map((step) => [step.stage, number(step.ms, 2), step.note]), "Stages")),
  ];
}

function drawHit(hit, rank, best, searchId, state) {
  const names = Object.keys(hit.parameters?.properties ?? {});
  const judge = (text, body) => {
    const button = h("button", { type: "button", "aria-pressed": "false", onclick: async () => {
      try {
        await post("/v1/feedback", { search_id: searchId, ...body });
        button.setAttribute("aria-pressed", "true");
        say("Saved to the journal.");
      } catch (error) {
        report(error, button);
      }
    } }, text);
    return button;
  };
  return h("li", { class: "hit" },
    h("span", { class: "rank" }, `${rank}.`),
    h("div", {},
      h("a", { class: "name", href: `#/catalogue?${new URLSearchParams({ tool: hit.id })}`, "data-stop": true }, hit.name),
      h("div", { class: "id" }, hit.id),
      hit.role === "prerequisite" && h("p", { class: "quiet role" }, `Prerequisite: ${hit.why}`),
      h("p", { class: "about" }, hit.description),
      hit.step && h("p", { class: "quiet" }, `for: ${hit.step}`),
      hit.similar.length > 0 && h("details", { class: "quiet" }, h("summary", {}, `+${hit.similar.length} similar`),
        hit.similar.map((id) => h("div", { class: "id" }, id))),
      names.length > 0 && h("p", { class: "quiet" }, names.slice(0, 12).join(", ") + (names.length > 12 ? " …" : ""))),
    h("div", {}, h("div", { class: "score" }, number(hit.score, 2)), gauge(best > 0 ? hit.score / best : 0),
      h("div", { class: "quiet score" }, hit.why)),
    h("div", { class: "acts" }, judge("Right", { good: [hit.id] }), judge("Wrong", { bad: [hit.id] }),
      h("button", { type: "button", onclick: () => ask(state, hit.id, false) }, "Why is it here?")));
}

// --- why ---------------------------------------------------------------------------------------------------------------

let told = null; // where the answer to `why` is drawn

function drawWhy(state, found) {
  const shown = new Set(found.hits.map((hit) => hit.id));
  const field = h("input", { type: "text", id: "why-tool", role: "combobox", "aria-expanded": "false", "aria-controls": "why-options",
    "aria-autocomplete": "list", autocomplete: "off", placeholder: "name or description" });
  const options = h("ul", { class: "options", id: "why-options", role: "listbox", "aria-label": "Tools" });
  told = h("div", { id: "why-answer", "aria-live": "polite" });
  const choose = (id) => {
    field.value = id;
    show(options);
    field.setAttribute("aria-expanded", "false");
    ask(state, id, false);
  };
  const suggest = debounce(async () => {
    if (!field.value.trim()) return show(options);
    try {
      const page = await get("/v1/tools", { text: field.value, limit: 20 });
      const rows = page.tools.filter((row) => !shown.has(row.id)).slice(0, 8);
      show(options, rows.map((row, at) => h("li", { role: "option", id: `why-option-${at}`, "aria-selected": "false", "data-id": row.id,
        onmousedown: (event) => { event.preventDefault(); choose(row.id); } }, row.id)));
      field.setAttribute("aria-expanded", String(rows.length > 0));
      field.removeAttribute("aria-activedescendant");
    } catch (error) {
      report(error, options);
    }
  }, 120);
  const keys = (event) => {
    const rows = [...options.children];
    const at = rows.findIndex((row) => row.getAttribute("aria-selected") === "true");
    if ((event.key === "ArrowDown" || event.key === "ArrowUp") && rows.length) {
      event.preventDefault();
      const next = (at + (event.key === "ArrowDown" ? 1 : -1) + rows.length) % rows.length;
      rows.forEach((row, each) => row.setAttribute("aria-selected", String(each === next)));
      rows[next].scrollIntoView({ block: "nearest" });
      field.setAttribute("aria-activedescendant", rows[next].id);
    } else if (event.key === "Enter" && rows.length) {
      event.preventDefault();
      choose(rows[Math.max(at, 0)].dataset.id);
    } else if (event.key === "Escape") {
      show(options);
      field.setAttribute("aria-expanded", "false");
    }
  };
  field.addEventListener("input", suggest);
  field.addEventListener("keydown", keys);
  return [h("h2", { id: "why-title" }, "Why not?"), h("label", { class: "field", for: "why-tool" }, "Expected tool", field), options, told];
}

async function ask(state, tool, cures) {
  const place = told;
  const token = (place.token = {}); // an older answer does not draw over a newer one
  show(place, h("p", { class: "quiet" }, cures ? "Trying words. This indexes the whole catalogue again …" : "Loading …"));
  try {
    const why = await post("/v1/why", { ...state(), tool, cures });
    if (place.token === token) show(place, drawTold(why, () => ask(state, tool, true), cures));
  } catch (error) {
    if (place.token === token) show(place);
    report(error, place);
  }
}

function drawTold(why, retry, cures) {
  const where = why.rank === null ? "no stage finds it" : `rank ${why.rank}`;
  const list = (title, sentences) => sentences.length > 0 && [h("h3", {}, title), h("ul", {}, sentences.map((each) => h("li", {}, each)))];
  const words = (title, found, kind) => found.length > 0 && [h("h3", {}, title), chips(found, kind)];
  return [
    h("p", { id: "why-where" }, h("strong", {}, why.tool), why.shown ? ` is in the answer: ${where}` : ` is not in the answer: ${where}, and the answer has ${why.k} ${why.k === 1 ? "tool" : "tools"}`),
    list("Why", why.causes), list("What would help", why.fixes),
    !why.shown && !cures && h("p", {}, h("button", { type: "button", id: "cure", onclick: retry }, "Find words that would help")),
    words("Matching words", Object.entries(why.matched).map(([word, part]) => `${word} ${number(part, 2)}`), "good"),
    words("Missing words", why.missing, "bad"),
    table([["stage", ""], ["rank", "number"], ["score", "number"], ["note", ""]],
      why.stages.map((stage) => [stage.stage, stage.rank ?? "—", number(stage.score, 2), stage.note ?? ""]), "Rank in each stage"),
  ];
}
