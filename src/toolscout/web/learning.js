// What there is to learn from, and the models. Candidates, promotion and rollback will be drawn here.

import { get } from "./api.js";
import { h, number, show, table } from "./dom.js";

export async function open(main) {
  const body = h("div");
  main.append(body);
  const [stats, shelf] = await Promise.all([get("/v1/journal/stats"), get("/v1/models")]);
  show(body, data(stats), models(shelf));
}

function data(stats) {
  const facts = [
    ["searches", stats.events.search],
    ["calls", stats.events.call],
    ["judgements", stats.events.feedback],
    ["callers", stats.callers],
    ["searches that a successful call followed: what can be learned from", stats.searches_followed_by_a_successful_call],
  ];
  return h("section", { class: "card" }, h("h2", {}, "The data so far"), h("dl", {}, facts.map(([name, count]) => [h("dt", {}, name), h("dd", {}, number(count))])));
}

function models(shelf) {
  const whole = shelf.models.filter((each) => !each.problem);
  const broken = shelf.models.filter((each) => each.problem);
  const figures = [...new Set(whole.flatMap((each) => Object.keys(each.metrics)))];
  const columns = [["model", ""], ["recipe", ""], ["data", ""], ["tools", "number"], ...figures.map((name) => [`dev ${name}`, "number"]), ["seconds", "number"]];
  const rows = whole.map((each) => [
    each.serving ? h("strong", {}, `${each.name} (serves)`) : each.name, each.recipe, each.data, number(each.n_tools),
    ...figures.map((name) => (name in each.metrics ? number(100 * each.metrics[name], 1) : "")), number(each.fit_seconds)]);
  return h("section", { class: "card" }, h("h2", {}, "Models"),
    h("p", { id: "serving" }, "Searches are answered by ", h("strong", {}, shelf.recipe), shelf.model ? " with a fitted model." : ", which needs no model."),
    broken.map((each) => h("p", { class: "note bad" }, each.problem)),
    rows.length ? table(columns, rows, "Models") : h("p", { class: "quiet" }, "No model lies on the shelf yet."));
}
