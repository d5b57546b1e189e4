// Models: the data to learn from, the last run, the champion. Models are promoted and rolled back here.

import { get, post } from "./api.js";
import { pairs } from "./charts.js";
import { confirmed, count, h, number, say, show, table, when } from "./dom.js";
import { report } from "./frame.js";

const percent = (value) => number(100 * value, 1);
const signed = (value) => `${value > 0 ? "+" : ""}${percent(value)}`;

export async function open(place) {
  const body = h("div");
  place.append(body);
  const draw = async () => {
    const [stats, shelf, learning] = await Promise.all([get("/v1/journal/stats"), get("/v1/models"), get("/v1/learning")]);
    show(body, drawServing(shelf, learning, change), drawData(stats), learning.last && drawRun(learning.last), drawPromotions(learning.history));
  };
  const apply = async (path, request, undo) => {
    try {
      const now = await post(path, request);
      say(now.notice ?? `${now.champion ?? now.recipe} now serves searches.`, undo && (() => apply(...undo, null)));
    } catch (error) {
      report(error, place);
    }
    await draw().catch((error) => report(error, place));
    place.querySelector("#serving")?.focus();
  };
  // Asks first. `undo` is the path and the request that take the change back.
  const change = async (question, path, request, undo) => {
    if (await confirmed(question, "It will answer every search that names no recipe.")) await apply(path, request, undo);
  };
  await draw();
}

function drawServing(shelf, learning, change) {
  const champion = learning.history.at(-1)?.model;
  const former = learning.history.at(-2)?.model;
  const formerTitle = former ?? "the recipe of the settings";
  const sound = shelf.models.filter((model) => !model.problem);
  const figures = [...new Set(sound.flatMap((model) => Object.keys(model.metrics)))];
  const columns = [["model", "name"], ["recipe", ""], ["data", ""], ["tools", "number"], ...figures.map((name) => [`dev ${name} %`, "number"]), ["seconds", "number"], ["action", "fixed"]];
  const promote = (name) => h("button", { type: "button", "data-stop": true, "data-promote": name, "aria-label": `Promote ${name}`,
    onclick: () => change(`Promote ${name}?`, "/v1/promote", { model: name }, ["/v1/rollback", { champion: name }]) }, "Promote");
  const rows = sound.map((model) => [
    model.serving ? h("strong", {}, `${model.name} (serves)`) : model.name, model.recipe, model.data, number(model.n_tools),
    ...figures.map((name) => (name in model.metrics ? percent(model.metrics[name]) : "")), number(model.fit_seconds),
    model.name === champion ? "champion" : promote(model.name)]);
  const rollBack = () => change(`Roll back from ${champion} to ${formerTitle}?`, "/v1/rollback", { champion }, ["/v1/promote", { model: champion }]);
  return h("section", { class: "card" }, h("h2", {}, "Champion"),
    h("p", { id: "serving", tabindex: "-1" }, "Searches are answered by ", h("strong", {}, shelf.recipe), shelf.model ? " with a fitted model." : ", which needs no model."),
    shelf.notice && h("p", { class: "note bad" }, shelf.notice),
    learning.overruled && h("p", { class: "note" }, "A setting names the recipe or model, so a promotion changes nothing here."),
    shelf.models.filter((model) => model.problem).map((model) => h("p", { class: "note bad" }, model.problem)),
    rows.length ? table(columns, rows, "Models") : h("p", { class: "quiet" }, "There are no fitted models yet. Run toolscout learn."),
    champion && h("p", {}, h("button", { type: "button", id: "rollback", "data-stop": true, onclick: rollBack }, `Roll back to ${formerTitle}`)));
}

function drawData(stats) {
  const facts = [
    ["searches", stats.events.search],
    ["calls", stats.events.call],
    ["ratings", stats.events.feedback],
    ["callers", stats.callers],
    ["searches followed by a successful call (used for learning)", stats.searches_followed_by_a_successful_call],
  ];
  return h("section", { class: "card" }, h("h2", {}, "Data"), h("dl", {}, facts.map(([name, count]) => [h("dt", {}, name), h("dd", {}, number(count))])));
}

// --- the last run ------------------------------------------------------------------------------------------------------

function drawRun(run) {
  const { train, dev, test } = run.splits;
  return h("section", { class: "card", "aria-labelledby": "last" }, h("h2", { id: "last" }, `The last run: ${run.outcome.replace("-", " ")}`),
    h("p", { id: "reason", class: "note" }, run.reason),
    h("p", { class: "quiet" }, `${when(run.at)}, ${number(run.seconds)} s: ${number(train)} queries for training, ${number(dev)} for choosing, ${number(test)} held out for the test`),
    run.candidates.length > 0 && [h("h3", {}, "Candidates"), drawCandidates(run)],
    run.verdict && drawVerdict(run));
}

function drawCandidates(run) {
  const figures = [...new Set(run.candidates.flatMap((each) => Object.keys(each.dev)))];
  return table([["recipe", ""], ...figures.map((name) => [`dev ${name}`, "number"]), ["seconds", "number"], ["note", ""]],
    run.candidates.map((each) => [each.recipe, ...figures.map((name) => (name in each.dev ? percent(each.dev[name]) : "")),
      each.model ? number(each.seconds) : "", each.problem || (each.model === run.candidate ? "chosen on dev" : "")]), "Candidates");
}

function drawVerdict(run) {
  const { tests, slices, without, latency_ms: took } = run.verdict;
  const columns = [["measure", ""], [run.champion, "number"], [run.candidate, "number"], ["difference", "number"], ["95 % interval", "number"], ["p", "number"], ["wins", "number"], ["ties", "number"], ["losses", "number"]];
  const rows = Object.entries(tests).map(([name, each]) => [name, percent(each.champion), percent(each.candidate), signed(each.difference),
    each.ci95.map(signed).join(" to "), number(each.p, 4), number(each.wins), number(each.ties), number(each.losses)]);
  const parts = Object.entries(slices).flatMap(([name, labels]) => Object.entries(labels).map(([label, each]) => [name, label, number(each.n), signed(each.difference), number(each.p, 4)]));
  return [
    h("h3", {}, `The newest ${number(run.verdict.n)} queries of ${count(run.verdict.callers, "caller")}: candidate against champion`),
    h("div", { id: "comparison" }, pairs(Object.entries(tests).map(([name, test]) =>
      ({ name, champion: test.champion, candidate: test.candidate, interval: test.ci95 })), "Candidate against champion; the table below has the figures")),
    table(columns, rows, "Candidate against champion"),
    without && h("p", { class: "quiet" }, `Without ${without.caller}, whose queries favour the candidate most: ${signed(without.difference)} points of ndcg@5 (p ${number(without.p, 4)}).`),
    h("p", { class: "quiet" }, `A search with the candidate takes ${number(took.p50, 2)} ms of processor time (median); 95 % take less than ${number(took.p95, 2)} ms.`),
    parts.length > 0 && h("details", {}, h("summary", {}, "Slices of these queries"),
      table([["slice", ""], ["value", ""], ["queries", "number"], ["difference of ndcg@5", "number"], ["p", "number"]], parts, "Slices")),
  ];
}

function drawPromotions(history) {
  if (!history.length) return null;
  return h("section", { class: "card" }, h("h2", {}, "Promotions"),
    table([["when", "fixed"], ["model", ""], ["reason", ""]], history.toReversed().map((each) => [when(each.at), each.model, each.why]), "Promotions"));
}
