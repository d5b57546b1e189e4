// Models: the data to learn from, the last run, the champion. Models are promoted and rolled back here.

import { get, post } from "./api.js";
import { confirmed, h, number, say, show, svg, table } from "./dom.js";
import { report } from "./frame.js";

const percent = (value) => number(100 * value, 1);
const signed = (value) => `${value > 0 ? "+" : ""}${percent(value)}`;
const when = (at) => String(at).slice(0, 16).replace("T", " ");

export async function open(place) {
  const body = h("div");
  place.append(body);
  const draw = async () => {
    const [stats, shelf, told] = await Promise.all([get("/v1/journal/stats"), get("/v1/models"), get("/v1/learning")]);
    show(body, serving(shelf, told, change), data(stats), told.last && last(told.last), promotions(told.history));
  };
  const change = async (question, path, asked) => {
    if (!(await confirmed(question, "It will answer every search that names no recipe."))) return;
    try {
      const now = await post(path, asked);
      say(now.notice ?? `${now.champion ?? now.recipe} now serves searches.`);
    } catch (error) {
      report(error, place);
    }
    await draw().catch((error) => report(error, place));
    place.querySelector("#serving")?.focus();
  };
  await draw();
}

function serving(shelf, told, change) {
  const champion = told.history.at(-1)?.model;
  const former = told.history.at(-2)?.model ?? "the recipe of the settings";
  const whole = shelf.models.filter((each) => !each.problem);
  const figures = [...new Set(whole.flatMap((each) => Object.keys(each.metrics)))];
  const columns = [["model", ""], ["recipe", ""], ["data", ""], ["tools", "number"], ...figures.map((name) => [`dev ${name}`, "number"]), ["seconds", "number"], ["", "fixed"]];
  const act = (each) => (each.name === champion ? "champion" : h("button", { type: "button", "data-stop": true, "data-promote": each.name,
    onclick: () => change(`Promote ${each.name}?`, "/v1/promote", { model: each.name }) }, "Promote"));
  const rows = whole.map((each) => [
    each.serving ? h("strong", {}, `${each.name} (serves)`) : each.name, each.recipe, each.data, number(each.n_tools),
    ...figures.map((name) => (name in each.metrics ? percent(each.metrics[name]) : "")), number(each.fit_seconds), act(each)]);
  return h("section", { class: "card" }, h("h2", {}, "Champion"),
    h("p", { id: "serving", tabindex: "-1" }, "Searches are answered by ", h("strong", {}, shelf.recipe), shelf.model ? " with a fitted model." : ", which needs no model."),
    shelf.notice && h("p", { class: "note bad" }, shelf.notice),
    told.overruled && h("p", { class: "note" }, "A setting names the recipe or model, so a promotion changes nothing here."),
    shelf.models.filter((each) => each.problem).map((each) => h("p", { class: "note bad" }, each.problem)),
    rows.length ? table(columns, rows, "Models") : h("p", { class: "quiet" }, "There are no fitted models yet. Run toolscout learn."),
    champion && h("p", {}, h("button", { type: "button", id: "rollback", "data-stop": true,
      onclick: () => change(`Roll back from ${champion} to ${former}?`, "/v1/rollback", { champion }) }, `Roll back to ${former}`)));
}

function data(stats) {
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

function last(run) {
  const { train, dev, test } = run.splits;
  return h("section", { class: "card", "aria-labelledby": "last" }, h("h2", { id: "last" }, `The last run: ${run.outcome.replace("-", " ")}`),
    h("p", { id: "reason", class: "note" }, run.reason),
    h("p", { class: "quiet" }, `${when(run.at)}, ${number(run.seconds)} s: ${number(train)} queries for training, ${number(dev)} for choosing, ${number(test)} held out for the test`),
    run.candidates.length > 0 && [h("h3", {}, "Candidates"), candidates(run)],
    run.verdict && verdict(run));
}

function candidates(run) {
  const figures = [...new Set(run.candidates.flatMap((each) => Object.keys(each.dev)))];
  return table([["recipe", ""], ...figures.map((name) => [`dev ${name}`, "number"]), ["seconds", "number"], ["", ""]],
    run.candidates.map((each) => [each.recipe, ...figures.map((name) => (name in each.dev ? percent(each.dev[name]) : "")),
      each.model ? number(each.seconds) : "", each.problem || (each.model === run.candidate ? "chosen on dev" : "")]), "Candidates");
}

function verdict(run) {
  const { tests, slices, without, latency_ms: took } = run.verdict;
  const columns = [["measure", ""], [run.champion, "number"], [run.candidate, "number"], ["difference", "number"], ["95 % interval", "number"], ["p", "number"], ["wins", "number"], ["ties", "number"], ["losses", "number"]];
  const rows = Object.entries(tests).map(([name, each]) => [name, percent(each.champion), percent(each.candidate), signed(each.difference),
    each.ci95.map(signed).join(" to "), number(each.p, 4), number(each.wins), number(each.ties), number(each.losses)]);
  const parts = Object.entries(slices).flatMap(([name, labels]) => Object.entries(labels).map(([label, each]) => [name, label, number(each.n), signed(each.difference), number(each.p, 4)]));
  return [
    h("h3", {}, `The newest ${number(run.verdict.n)} queries of ${number(run.verdict.callers)} ${run.verdict.callers === 1 ? "caller" : "callers"}: candidate against champion`),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Differences" }, differences(tests)),
    table(columns, rows, "Candidate against champion"),
    without && h("p", { class: "quiet" }, `Without ${without.caller}, whose queries favour the candidate most: ${signed(without.difference)} points of ndcg@5 (p ${number(without.p, 4)}).`),
    h("p", { class: "quiet" }, `A search with the candidate takes ${number(took.p50, 2)} ms of processor time (median); 95 % take less than ${number(took.p95, 2)} ms.`),
    parts.length > 0 && h("details", {}, h("summary", {}, "Slices of these queries"),
      table([["slice", ""], ["value", ""], ["queries", "number"], ["difference of ndcg@5", "number"], ["p", "number"]], parts, "Slices")),
  ];
}

function differences(tests) {
  const [left, width, row] = [90, 760, 26];
  const rows = Object.entries(tests);
  const most = Math.max(0.01, ...rows.flatMap(([, each]) => each.ci95.map(Math.abs)));
  const x = (value) => left + ((value + most) / (2 * most)) * (width - left - 60);
  const height = rows.length * row + 24;
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width: "100%", role: "img", "aria-label": "Differences with 95 % intervals; the table below has the figures" },
    [-most, 0, most].map((value) => [
      svg("line", { class: "axis", x1: x(value), x2: x(value), y1: 0, y2: height - 20 }),
      svg("text", { x: x(value), y: height - 5, "text-anchor": "middle" }, signed(value))]),
    rows.map(([name, each], at) => {
      const middle = at * row + 13;
      return [
        svg("text", { x: left - 8, y: middle + 4, "text-anchor": "end" }, name),
        svg("line", { class: "whisker", x1: x(each.ci95[0]), x2: x(each.ci95[1]), y1: middle, y2: middle }),
        svg("circle", { class: "bar", cx: x(each.difference), cy: middle, r: 5 })];
    }));
}

function promotions(history) {
  if (!history.length) return null;
  return h("section", { class: "card" }, h("h2", {}, "Promotions"),
    table([["when", "fixed"], ["model", ""], ["reason", ""]], history.toReversed().map((each) => [when(each.at), each.model, each.why]), "Promotions"));
}
