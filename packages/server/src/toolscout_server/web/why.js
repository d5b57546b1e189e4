// Why a tool is, or is not, in an answer: in plain words, with cures that are tried with one click.

import { get, post } from "./api.js";
import { copyable, count, debounce, h, linkTo, number, show, table } from "./dom.js";
import { report } from "./frame.js";

const MAX_SUGGESTIONS = 8;
const MAX_COUNT = 100; // tools in an answer
const MAX_TRIAL_WORDS = 10;

// Draws the question into `place`. Returns a function that asks it for a tool.
export function drawWhy(place, view) {
  const answer = h("div", { id: "why-answer", "aria-live": "polite" });
  const ask = (tool, trial = {}) => askWhy(answer, view, tool, trial);
  const field = h("input", { type: "text", id: "why-tool", role: "combobox", "aria-expanded": "false", "aria-controls": "why-options",
    "aria-autocomplete": "list", autocomplete: "off", placeholder: "name or description" });
  const options = h("ul", { class: "options", id: "why-options", role: "listbox", "aria-label": "Tools" });
  const close = () => {
    show(options);
    field.setAttribute("aria-expanded", "false");
    field.removeAttribute("aria-activedescendant");
  };
  const choose = (id) => {
    field.value = id;
    close();
    ask(id);
  };
  field.addEventListener("input", debounce(() => suggest(field, options, view, choose, close), 100));
  field.addEventListener("keydown", (event) => moveInList(event, field, options, choose, close));
  show(place, h("h2", { id: "why-title" }, "Why not?"),
    h("p", { class: "quiet" }, "Name a tool that you expected. You learn which rank it has, why, and what would help."),
    h("label", { class: "field", for: "why-tool" }, "Expected tool", field), options, answer);
  return ask;
}

async function suggest(field, options, view, choose, close) {
  if (!field.value.trim()) return close();
  const shown = new Set(view.result.hits.map((hit) => hit.id));
  try {
    const page = await get("/v1/tools", { text: field.value, limit: 20 });
    const rows = page.tools.filter((row) => !shown.has(row.id)).slice(0, MAX_SUGGESTIONS);
    show(options, rows.map((row, at) => h("li", { role: "option", id: `why-option-${at}`, "aria-selected": "false", "data-id": row.id,
      onmousedown: (event) => { event.preventDefault(); choose(row.id); } }, row.id)));
    field.setAttribute("aria-expanded", String(rows.length > 0));
    field.removeAttribute("aria-activedescendant");
  } catch (error) {
    report(error, options);
  }
}

// Arrows, Enter and Escape in a field with a list of options below it.
export function moveInList(event, field, options, choose, close) {
  const rows = [...options.children];
  const at = rows.findIndex((row) => row.getAttribute("aria-selected") === "true");
  if ((event.key === "ArrowDown" || event.key === "ArrowUp") && rows.length) {
    event.preventDefault();
    const next = event.key === "ArrowDown" ? (at + 1) % rows.length : (Math.max(at, 0) - 1 + rows.length) % rows.length;
    rows.forEach((row, index) => row.setAttribute("aria-selected", String(index === next)));
    rows[next].scrollIntoView({ block: "nearest" });
    field.setAttribute("aria-activedescendant", rows[next].id);
  } else if (event.key === "Enter" && rows.length) {
    event.preventDefault();
    choose(rows[Math.max(at, 0)].dataset.id);
  } else if (event.key === "Escape" && rows.length) {
    event.stopPropagation();
    close();
  }
}

async function askWhy(place, view, tool, trial) {
  const token = (place.token = {}); // an older answer does not draw over a newer one
  const isTrial = trial.cures || trial.words;
  show(place, h("p", { class: "quiet" }, isTrial ? "Trying it out. This indexes the whole catalogue again …" : "Loading …"));
  try {
    const why = await post("/v1/why", { ...view.state(), tool, ...trial });
    if (place.token !== token) return;
    show(place, drawAnswer(why, view, (next) => askWhy(place, view, tool, next), trial));
    if (matchMedia("(max-width: 60rem)").matches) place.scrollIntoView({ block: "start" });
  } catch (error) {
    if (place.token === token) show(place);
    report(error, place);
  }
}

function drawAnswer(why, view, retry, trial) {
  const list = (title, sentences) => sentences.length > 0 && [h("h3", {}, title), h("ul", {}, sentences.map((text) => h("li", {}, sentence(text))))];
  return [
    h("div", {}, copyable(why.tool)),
    h("p", { id: "why-where" }, describePlace(why)),
    why.trial && h("p", { class: why.trial.shown ? "note good" : "note", id: "trial" }, describeTrial(why)),
    list("Why", why.causes), !why.shown && drawCures(why, view, retry, trial),
    drawWords("Words of the query in its text", Object.keys(why.matched), "good"),
    drawMissing(why, retry),
    h("details", {}, h("summary", {}, "Rank in each stage"),
      table([["stage", ""], ["rank", "number"], ["score", "number"], ["note", ""]],
        why.stages.map((stage) => [stage.stage, stage.rank ?? "—", number(stage.score, 2), stage.note ?? ""]), "Rank in each stage")),
  ];
}

const sentence = (text) => {
  const whole = /[.!?…)]$/.test(text) ? text : `${text}.`;
  return whole[0].toUpperCase() + whole.slice(1);
};
const quoted = (words) => words.map((word) => `“${word}”`).join(", ");

function describePlace(why) {
  const place = why.rank === null ? "no stage of the search finds it" : `it has rank ${number(why.rank)}`;
  return why.shown ? `It is in the answer: ${place}.` : `It is not in the answer: ${place}, and the answer has room for ${count(why.k, "tool")}.`;
}

function describeTrial({ trial }) {
  const words = `With ${quoted(trial.words)} in its description`;
  if (trial.refusal) return `${words} the request would still be turned away: ${trial.refusal}`;
  if (trial.rank === null) return `${words} no stage would find it either.`;
  return `${words} it would have rank ${number(trial.rank)}, ${trial.shown ? "and the answer would show it. Add the words at its source, then sync the source." : "and the answer would still not show it."}`;
}

function drawCures(why, view, retry, trial) {
  const act = (text, work, id = null) => h("button", { type: "button", id, onclick: work }, text);
  const name = why.tool.slice(why.tool.indexOf("/") + 1);
  return [
    h("h3", {}, "What would help"),
    why.fixes.length > 0 && h("ul", {}, why.fixes.map((text) => h("li", {}, sentence(text)))),
    trial.cures && !why.fixes.some((text) => text.endsWith("(tried out)")) && h("p", { class: "quiet" }, "No missing word alone would lift it into the answer (tried out)."),
    h("div", { class: "acts" },
      !trial.cures && why.missing.length > 0 && act("Find words that would help", () => retry({ cures: true }), "cure"),
      why.rank !== null && why.rank > why.k && why.rank <= MAX_COUNT && act(`Show ${number(why.rank)} tools`, () => view.setCount(why.rank)),
      act("Search for its name", () => view.setQuery(`select:${name}`))),
  ];
}

function drawWords(title, words, kind) {
  return words.length > 0 && [h("h3", {}, title), h("ul", { class: `chips ${kind}` }, words.map((word) => h("li", {}, word)))];
}

// The words that the tool lacks. They are chosen and tried out in its description.
function drawMissing(why, retry) {
  if (!why.missing.length || why.shown) return drawWords("Missing words", why.missing, "bad");
  const chosen = new Set(why.missing.slice(0, 3));
  const start = h("button", { type: "button", id: "try", onclick: () => retry({ words: [...chosen] }) }, "Try these words");
  const toggles = why.missing.slice(0, MAX_TRIAL_WORDS).map((word) => {
    const button = h("button", { type: "button", class: "chip", "aria-pressed": String(chosen.has(word)), onclick: () => {
      if (!chosen.delete(word)) chosen.add(word);
      button.setAttribute("aria-pressed", String(chosen.has(word)));
      start.disabled = chosen.size === 0;
    } }, word);
    return button;
  });
  return [h("h3", {}, "Missing words"), h("p", { class: "quiet" }, "Choose words, and see what they would do in its description. Nothing is changed."),
    h("div", { class: "acts" }, toggles, start)];
}

export const linkWhy = (query, tool) => linkTo("search", { q: query, why: tool });
