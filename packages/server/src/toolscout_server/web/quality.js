// Quality: how well each recipe finds the catalogue's own tools, which tools are hard to find, and how that changes.

import { get, post } from "./api.js";
import { lines } from "./charts.js";
import { count, h, isNarrow, linkTo, number, show, table, when } from "./dom.js";
import { remember, report } from "./frame.js";
import { drawDrift } from "./drift.js";
import { linkWhy } from "./why.js";

const DEFAULT_TOOLS = 300;
const DEFAULT_QUERIES = 200;
const MAX_ROWS = 100; // rows of a table
const MAX_RUNS = 20; // runs in a chart
const SERIES = ["bar", "champion", "bad", "soft"];
const percent = (value) => `${number(100 * value, 1)} %`;

export async function open(place, parameters, me) {
  const sections = [drawFindability(place, parameters)];
  if (me.manages) sections.unshift(drawSelftest(place));
  place.append(h("p", { class: "quiet" }, "Queries are made from the names and descriptions of your tools. Use the figures to compare recipes and runs. They do not show how well real requests are answered. These searches are not in the journal."),
    ...sections.map((section) => section.element));
  const drift = drawDrift(place);
  place.append(drift.element);
  const [history] = await Promise.all([get("/v1/checks"), drift.refresh()]);
  for (const section of sections) section.showTrend(history.runs);
  if (parameters.has("most")) await sections.at(-1).run();
}

// A section with a number to choose, a button, the trend of former runs, and the result of this one.
function drawCheck(place, { title, about, id, label, value, bounds, work, draw, check, after = () => {} }) {
  const most = h("input", { type: "number", id, ...bounds, value });
  const button = h("button", { class: "main" }, title === "Selftest" ? "Run" : "Check");
  const [trend, body] = [h("div", { class: "trend" }), h("div", { "aria-live": "polite", id: `${id}-result` })];
  const showTrend = (runs) => show(trend, drawRuns(runs.filter((run) => run.check === check)));
  const run = async (event) => {
    event?.preventDefault();
    after(most.value);
    const token = (body.token = {}); // an older answer does not draw over a newer one
    show(body, h("p", { class: "quiet" }, "Searching for your tools …"));
    try {
      const result = await work(most.value);
      if (body.token !== token) return;
      show(body, draw(result));
      showTrend((await get("/v1/checks")).runs);
    } catch (error) {
      if (body.token === token) show(body);
      report(error, place);
    }
  };
  const element = h("section", { class: "card", "aria-label": title }, h("h2", {}, title), h("p", { class: "quiet" }, about),
    h("form", { class: "row", onsubmit: run }, h("label", { for: id }, label, most), button), trend, body);
  return { element, run, showTrend };
}

// Runs are compared with the newest one: only those that asked the same kind of questions are in the chart.
function drawRuns(runs) {
  const newest = runs.at(-1);
  const alike = runs.filter((run) => run.comparable === newest?.comparable).slice(-MAX_RUNS);
  if (!alike.length) return h("p", { class: "quiet" }, "It has not run yet.");
  const names = Object.keys(newest.figures).slice(0, SERIES.length);
  return [lines(alike.map((run) => when(run.at)), names.map((name, at) => [name, SERIES[at], alike.map((run) => run.figures[name] ?? null)]), `Trend of ${count(alike.length, "run")}`),
    h("p", { class: "quiet" }, `${count(alike.length, "run")} (${newest.comparable}), the last on ${when(newest.at)} over ${count(newest.n_tools, "tool")}.`)];
}

// --- selftest ----------------------------------------------------------------------------------------------------------

function drawSelftest(place) {
  return drawCheck(place, {
    title: "Selftest", id: "selftest-most", label: "Queries", value: DEFAULT_QUERIES, bounds: { min: 10, max: 1000 }, check: "selftest",
    about: "Scores each recipe on queries for your own tools, and on logged ones if there are enough.",
    work: (most) => post("/v1/selftest", { most: Number(most) }), draw: drawScores,
  });
}

function drawScores(result) {
  const measures = Object.keys(result.rows[0].measures);
  const columns = [["recipe", ""], ...measures.map((name) => [name, "number"]), ["chat turned away", "number"]];
  const asked = Object.entries(result.requests).map(([kind, amount]) => `${number(amount)} ${kind}`).join(", ");
  return [
    h("p", { id: "selftest-summary" }, result.recommended
      ? [h("strong", {}, result.recommended), ` is recommended${result.sure ? "" : ", though not significantly better than the next"}.`]
      : "There are too few queries to tell which recipe is best. Add tools with descriptions."),
    result.note ? h("p", { class: "note" }, result.note) : null,
    table(columns, result.rows.map((row) => [row.recipe, ...measures.map((name) => percent(row.measures[name])), percent(row.no_tool)]), "Recipes"),
    Object.entries(result.problems).map(([name, text]) => h("p", { class: "note bad" }, `${name}: ${text}`)),
    h("p", { class: "quiet" }, `${count(result.n_tools, "tool")}; queries: ${asked}.`),
  ];
}

// --- findability -------------------------------------------------------------------------------------------------------

function drawFindability(place, parameters) {
  return drawCheck(place, {
    title: "Findability", id: "most", label: "Tools to check", value: parameters.get("most") ?? DEFAULT_TOOLS, bounds: { min: 1, max: 1000 }, check: "lint",
    about: "Searches for each tool, and names those that are hard to find or confused, with advice.",
    work: (most) => get("/v1/lint", { most }), draw: drawLint, after: (most) => remember(place, "quality", { most }),
  });
}

const named = (id) => h("a", { href: linkTo("catalogue", { tool: id }), "data-stop": true }, id);
const each = (sentences) => sentences.map((text) => h("div", {}, text));

function drawLint(result) {
  return [
    h("p", { id: "lint-summary" }, h("strong", {}, `${count(result.asked, "tool")} checked: `),
      `${number(result.hidden.length)} hard to find, ${count(result.confused.length, "pair")} confused, ${number(result.silent.length)} without a description`),
    drawPart("Hard to find", result.hidden, [["tool", "name"], ["found", "number"], ["found instead", ""], ["cause", ""], ["advice", ""], ["a query that failed", ""]],
      (row) => [named(row.tool), `${number(100 * row.found)} %`, each(row.instead), each(row.causes), each(row.fixes),
        [row.missed, " ", h("a", { href: linkWhy(row.missed, row.tool) }, "Why not?")]]),
    drawPart("Confused pairs", result.confused, [["tool", "name"], ["confused with", ""], ["times", "number"], ["text", ""], ["advice", ""]],
      (row) => [named(row.one), named(row.other), number(row.times), row.twins ? "the same" : "", row.fix]),
    drawPart("No description", result.silent, [["tool", "name"], ["advice", ""]], (row) => [named(row), "Add a description."]),
  ];
}

function drawPart(title, rows, columns, cells) {
  if (!rows.length) return null;
  return h("section", { "aria-label": `${title}: list` }, h("h3", {}, title), table(columns, rows.slice(0, MAX_ROWS).map(cells), title, { first: isNarrow() ? 3 : 5 }),
    rows.length > MAX_ROWS && h("p", { class: "quiet" }, `And ${number(rows.length - MAX_ROWS)} more. Run toolscout lint to list all.`));
}
