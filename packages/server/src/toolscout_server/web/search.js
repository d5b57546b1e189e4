// Search: results while you type, the steps of a compound request, and why a tool stands where it does.

import { get, post } from "./api.js";
import { copyable, count, debounce, gauge, h, linkTo, marked, number, say, show, table } from "./dom.js";
import { remember, report } from "./frame.js";
import { drawWhy } from "./why.js";

const RECIPES = [["", "default"], ["scout", "several needs"], ["hybrid", "one need"], ["bm25", "words alone"], ["dense", "meaning alone"]];
const STAGE_WORDS = { bm25: "words", dense: "meaning", name: "its name", names: "its name" };
const KINDS = [["", "all"], ["tool", "tools"], ["skill", "skills"], ["agent", "agents"]];
const TYPING_PAUSE_MS = 30;
const SHOWN_PARAMETERS = 12;

let running = null; // the request whose answer is awaited

export async function open(place, parameters, me) {
  const query = h("input", { type: "search", id: "query", autocomplete: "off", value: parameters.get("q") ?? "", "aria-keyshortcuts": "/" });
  const k = h("input", { type: "number", id: "k", min: 1, max: 100, value: parameters.get("k") ?? me.k });
  const [recipe, kind] = [choice("recipe", RECIPES, parameters), choice("kind", KINDS, parameters)];
  const answer = h("section", { "aria-label": "Answer", "aria-live": "polite" });
  const why = h("section", { class: "card", "aria-labelledby": "why-title", hidden: true });
  const view = {
    state: () => ({ query: query.value, k: Number(k.value) || me.k, recipe: recipe.value || null }),
    setCount: (value) => { k.value = value; return look(true); },
    setQuery: (value) => { query.value = value; return look(true); },
    searchId: null,
    me,
  };
  const look = async (preview) => {
    remember(place, "search", { q: query.value, k: k.value, recipe: recipe.value, kind: kind.value });
    running?.abort();
    if (!query.value.trim()) return showStart(answer, why);
    running = new AbortController();
    try {
      const body = { ...view.state(), kind: kind.value || null, trace: true, matched: true, preview };
      const result = await post("/v1/search", body, running.signal);
      view.searchId = result.search_id;
      view.result = result;
      show(answer, drawAnswer(result, view, preview));
      why.hidden = false;
      if (view.explained !== query.value) view.explain = drawWhy(why, view);
      view.explained = query.value;
    } catch (error) {
      report(error, place);
    }
  };
  query.addEventListener("input", debounce(() => place.isConnected && look(true), TYPING_PAUSE_MS));
  for (const select of [recipe, kind]) select.addEventListener("change", () => look(true));
  place.append(
    h("form", { class: "row", role: "search", onsubmit: (event) => { event.preventDefault(); look(false); } },
      h("label", { class: "wide", for: "query" }, "What do you want to do?", query),
      h("label", { for: "k" }, "Tools", k), h("label", { for: "recipe" }, "Recipe", recipe), h("label", { for: "kind" }, "Kind", kind),
      h("button", { class: "main" }, "Search")),
    h("div", { class: "two" }, h("div", {}, answer), why));
  query.focus();
  if (!query.value) return showStart(answer, why);
  await look(false);
  if (parameters.get("why") && view.explain && place.isConnected) await view.explain(parameters.get("why"));
}

function choice(id, values, parameters) {
  const select = h("select", { id }, values.map(([value, text]) => h("option", { value }, text)));
  select.value = values.some(([value]) => value === parameters.get(id)) ? parameters.get(id) : "";
  return select;
}

async function showStart(answer, why) {
  why.hidden = true;
  show(answer);
  try {
    const { queries } = await get("/v1/examples");
    if (!answer.firstChild && queries.length) show(answer, h("p", { class: "quiet" }, "Examples from your catalogue"), drawExamples(queries));
  } catch (error) {
    report(error, answer);
  }
}

export const drawExamples = (queries) => h("ul", { class: "examples" }, queries.map((query) =>
  h("li", {}, h("a", { href: linkTo("search", { q: query }), "data-stop": true }, query))));

// --- the answer --------------------------------------------------------------------------------------------------------

function drawAnswer(result, view, preview) {
  const { hits, steps, uncovered } = result;
  const head = hits.length ? count(hits.length, "tool") : "No tool";
  return [
    h("p", { id: "summary" }, h("strong", {}, head), h("span", { class: "quiet" }, ` · ${number(result.ms.total, 1)} ms`)),
    result.degraded && h("p", { class: "note bad" }, result.degraded),
    result.reason && h("p", { class: "note" }, result.reason),
    steps.length > 1 && drawSteps(result),
    steps.length < 2 && uncovered.map((step) => h("p", { class: "note" }, `No tool fits “${step}”.`)),
    hits.length > 0 && h("ol", { class: "hits card" }, hits.map((hit, at) => drawHit(hit, at + 1, measureStrength(hit, hits), view))),
    preview && h("p", { class: "quiet" }, "Searches while you type are not written to the journal. Enter writes this one."),
    h("details", { class: "card" }, h("summary", {}, "Stages of this search"),
      table([["stage", ""], ["ms", "number"], ["note", ""]], result.trace.map((step) => [step.stage, number(step.ms, 2), step.note]), "Stages")),
  ];
}

function drawSteps({ steps, hits, uncovered }) {
  return h("section", { class: "card", "aria-label": "Steps" }, h("h2", {}, "Steps of this request"),
    h("ol", { class: "steps" }, steps.map((step) => {
      const amount = hits.filter((hit) => hit.step === step && hit.role === "match").length;
      const outcome = uncovered.includes(step) ? "no tool seems to fit" : amount ? count(amount, "tool") : "served by a tool of another step";
      return h("li", {}, step, h("span", { class: uncovered.includes(step) ? "badge bad" : "badge" }, outcome));
    })));
}

// The length of a hit's bar: its score against the best. Scores of some models are below zero; those are compared by
// their distance to the best and the worst.
function measureStrength(hit, hits) {
  const scores = hits.map((other) => other.score);
  const [best, worst] = [Math.max(...scores), Math.min(...scores)];
  return worst > 0 ? hit.score / best : best > worst ? 0.1 + (0.9 * (hit.score - worst)) / (best - worst) : 1;
}

function drawHit(hit, rank, strength, view) {
  const names = Object.keys(hit.parameters?.properties ?? {});
  const rest = names.length > SHOWN_PARAMETERS ? " …" : "";
  const step = hit.step ? (view.result.steps ?? []).indexOf(hit.step) + 1 : 0;
  return h("li", { class: "hit" },
    h("span", { class: "rank" }, `${rank}.`),
    h("div", { class: "body" },
      h("a", { class: "name", href: linkTo("catalogue", { tool: hit.id }), "data-stop": true }, marked(hit.name, hit.matched)), " ",
      hit.role === "prerequisite" && h("span", { class: "badge role" }, "prerequisite"),
      hit.kind !== "tool" && h("span", { class: "badge" }, hit.kind),
      step > 0 && view.result.steps.length > 1 && h("span", { class: "badge", title: hit.step }, `step ${step}`),
      h("div", {}, copyable(hit.id)),
      hit.role === "prerequisite" && h("p", { class: "quiet" }, hit.why),
      h("p", { class: "about" }, marked(hit.description, hit.matched)),
      names.length > 0 && h("p", { class: "quiet parameters" }, `takes ${names.slice(0, SHOWN_PARAMETERS).join(", ")}${rest}`),
      hit.similar.length > 0 && h("details", { class: "quiet" }, h("summary", {}, `${count(hit.similar.length, "other tool")} of the same kind`),
        hit.similar.map((id) => h("div", {}, copyable(id))))),
    h("div", { class: "strength" }, h("div", { class: "score" }, number(hit.score, 2)), gauge(strength),
      hit.role === "match" && h("div", { class: "quiet score" }, describeStages(hit.why))),
    h("div", { class: "acts" }, judge("Right", "good", hit, view), judge("Wrong", "bad", hit, view),
      h("button", { type: "button", onclick: () => view.explain(hit.id) }, "Why is it here?")));
}

// Which stages found a hit, in words: "bm25 + dense" is "by words and meaning". Other stages keep their names.
function describeStages(why) {
  return why ? `by ${why.split(" + ").map((stage) => STAGE_WORDS[stage] ?? stage).join(" and ")}` : "";
}

// A button that rates a tool. A second press, or Undo, withdraws the rating.
function judge(text, field, hit, view) {
  const button = h("button", { type: "button", "aria-pressed": "false" }, text);
  const send = async (name) => {
    try {
      if (view.searchId === null) await writeSearch(view);
      await post("/v1/feedback", { search_id: view.searchId, [name]: [hit.id] });
      button.setAttribute("aria-pressed", String(name !== "withdrawn"));
      if (name === "withdrawn") return say("Withdrawn.");
      for (const other of button.parentElement.querySelectorAll("[aria-pressed=true]")) {
        if (other !== button) other.setAttribute("aria-pressed", "false");
      }
      say("Saved to the journal.", () => send("withdrawn"));
    } catch (error) {
      report(error, button);
    }
  };
  button.addEventListener("click", () => send(button.getAttribute("aria-pressed") === "true" ? "withdrawn" : field));
  return button;
}

// A preview has no entry in the journal to which a rating could refer, so the search is made again.
async function writeSearch(view) {
  const written = await post("/v1/search", view.state());
  if (written.search_id === null) throw new Error("the journal is switched off");
  view.searchId = written.search_id;
}
