// Home: what there is, how it fares, what was searched last, and what to do next.

import { get } from "./api.js";
import { columns } from "./charts.js";
import { clip, count, h, linkTo, number, show, when } from "./dom.js";
import { remember } from "./frame.js";
import { drawExamples } from "./search.js";

const LAST_SEARCHES = 6;
const SHOWN_SOURCES = 8;
const TREND_DAYS = 14;
const ENOUGH_TO_LEARN = 100; // searches with a successful call
const MANY_EMPTY = 0.2; // share of searches without a tool that deserves a look

export async function open(place, parameters, me) {
  remember(place, "home", {});
  const field = h("input", { type: "search", id: "home-query", autocomplete: "off", "aria-keyshortcuts": "/" });
  const examples = h("div", { id: "examples" });
  const state = h("div", { class: "tiles", id: "state" });
  const next = h("section", { class: "card", id: "next", "aria-label": "What to do next" });
  const trend = h("section", { class: "card", "aria-label": "Searches by day", hidden: true });
  const rest = h("div", { class: "halves" });
  place.append(
    h("form", { class: "row short", role: "search", onsubmit: (event) => { event.preventDefault(); location.hash = linkTo("search", { q: field.value }); } },
      h("label", { class: "wide", for: "home-query" }, "What do you want to do?", field), h("button", { class: "main" }, "Search")),
    examples, state, h("div", { class: "halves" }, next, trend), rest);
  field.focus();
  const shown = showExamples(examples);
  const facts = await readFacts(me);
  show(state, drawState(facts, me));
  show(next, drawNext(facts, me));
  trend.hidden = sum(facts.days, "searches") === 0;
  if (!trend.hidden) show(trend, h("h2", {}, "Searches by day"), drawTrend(facts.days, facts.since));
  show(rest, drawSources(facts, me), me.operator && drawSearches(facts));
  await shown;
}

async function readFacts(me) {
  const [sources, trends, searches, stats, learning] = await Promise.all([
    get("/v1/sources"),
    me.operator ? get("/v1/journal/trends", { days: TREND_DAYS }) : null,
    me.operator ? get("/v1/journal", { event: "search", limit: LAST_SEARCHES }) : null,
    me.operator ? get("/v1/journal/stats") : null,
    me.operator ? get("/v1/learning") : null,
  ]);
  return { sources: sources.sources, days: trends?.days ?? [], since: trends?.since, searches: searches?.events ?? [], lesson: stats && countLesson(stats, learning.last) };
}

// Searches that led to a successful call: all of them, or those since the last run of `learn`.
function countLesson(stats, last) {
  const served = stats.searches_followed_by_a_successful_call;
  return last ? { fresh: served - (last.evidence.searches - last.evidence.unused), since: " since the last learning" } : { fresh: served, since: "" };
}

async function showExamples(place) {
  const { queries } = await get("/v1/examples");
  if (queries.length) show(place, h("p", { class: "quiet" }, "Examples from your catalogue"), drawExamples(queries));
}

const sum = (days, field) => days.reduce((total, day) => total + day[field], 0);

function drawState({ sources, days }, me) {
  const troubled = sources.filter((source) => source.state === "error").length;
  const tile = (title, value, about, href) => h("a", { class: "tile card", href }, h("span", { class: "quiet" }, title), h("strong", {}, value), h("span", { class: "quiet" }, about));
  const searches = sum(days, "searches");
  const empty = sum(days, "empty") + sum(days, "abstained");
  return [
    tile("Tools", number(me.tools), `searched with ${me.recipe}`, "#/catalogue"),
    tile("Sources", number(sources.length), troubled ? `${number(troubled)} cannot be read` : "all can be read", me.manages ? "#/sources" : "#/catalogue"),
    me.operator && tile("Searches", number(searches), `in ${TREND_DAYS} days`, "#/journal"),
    me.operator && tile("Without a tool", searches ? `${number((100 * empty) / searches)} %` : "—", `${number(empty)} of ${number(searches)}`, "#/journal?without=1"),
  ];
}

// Every day of the span has a column, also those without an event.
export function fillDays(days, since) {
  const known = new Map(days.map((day) => [day.day, day]));
  const filled = [];
  for (let at = new Date(`${since}T00:00:00Z`); at <= new Date(); at = new Date(at.getTime() + 86_400_000)) {
    const day = at.toISOString().slice(0, 10);
    filled.push(known.get(day) ?? { day, searches: 0, abstained: 0, empty: 0, calls: 0, failed_calls: 0, feedback: 0 });
  }
  return filled;
}

export function drawTrend(days, since) {
  const filled = fillDays(days, since);
  return columns(filled.map((day) => day.day), [
    ["with tools", "bar", filled.map((day) => day.searches - day.empty - day.abstained)],
    ["abstained", "soft", filled.map((day) => day.abstained)],
    ["nothing found", "bad", filled.map((day) => day.empty)],
  ], "Searches by day");
}

function drawNext(facts, me) {
  const steps = listNext(facts, me);
  return [h("h2", {}, "What to do next"), steps.length
    ? h("ul", { class: "next" }, steps.map(([text, title, href]) => h("li", {}, h("span", {}, text), h("a", { href, "data-stop": true }, title))))
    : h("p", { class: "quiet" }, "Nothing. All sources can be read, and nothing waits for you.")];
}

// [what is the case, what to do, where], the most urgent first.
function listNext({ sources, days, lesson }, me) {
  const steps = [];
  const troubled = sources.filter((source) => source.state === "error");
  const waiting = sources.reduce((total, source) => total + source.waiting, 0);
  const searches = sum(days, "searches");
  if (!me.tools) steps.push(["The catalogue is empty.", me.manages ? "Add a source" : "Open the catalogue", me.manages ? "#/sources?add=1" : "#/catalogue"]);
  if (!me.manages) return steps;
  for (const source of troubled.slice(0, 3)) steps.push([`${source.name} could not be read. ${source.tools ? "Its former tools are still searched." : "It has no tools yet."}`, "See why", "#/sources"]);
  if (waiting) steps.push([`${count(waiting, "definition waits", "definitions wait")} for your approval.`, "Review", "#/sources?waiting=1"]);
  if (searches && sum(days, "empty") / searches > MANY_EMPTY) steps.push(["Many searches find nothing.", "See which", "#/journal?without=1"]);
  if (me.tools && !searches) steps.push(["Nobody has searched yet. Connect an agent, or try a search.", "Search", "#/search"]);
  if (lesson && lesson.fresh >= ENOUGH_TO_LEARN) {
    steps.push([`${number(lesson.fresh)} searches led to a successful call${lesson.since}: enough to learn from.`, "See the models", "#/models"]);
  }
  if (me.tools > 1) steps.push(["Check which tools are hard to find.", "Check", "#/quality"]);
  return steps;
}

function drawSources({ sources }, me) {
  const shown = [...sources].sort((a, b) => (b.state === "error") - (a.state === "error") || b.tools - a.tools).slice(0, SHOWN_SOURCES);
  return h("section", { class: "card", "aria-label": "Sources" }, h("h2", {}, "Sources"),
    shown.length > 0 && h("ul", { class: "plain" }, shown.map((source) => h("li", {},
      h("a", { href: linkTo("catalogue", { source: source.name }), "data-stop": true }, source.name),
      h("span", { class: "quiet" }, ` ${source.kind}, ${count(source.tools, "tool")}`),
      source.state !== "ok" && h("span", { class: source.state === "error" ? "badge bad" : "badge" }, source.state),
      source.waiting > 0 && h("span", { class: "badge" }, `${number(source.waiting)} waiting`)))),
    !shown.length && h("p", { class: "quiet" }, "There is no source yet."),
    sources.length > shown.length && h("p", {}, h("a", { href: me.manages ? "#/sources" : "#/catalogue" }, `All ${number(sources.length)} sources`)));
}

function drawSearches({ searches }) {
  return h("section", { class: "card", "aria-label": "Last searches" }, h("h2", {}, "Last searches"),
    searches.length === 0 && h("p", { class: "quiet" }, "There are none yet."),
    h("ul", { class: "plain" }, searches.map((event) => h("li", {},
      event.query ? h("a", { href: linkTo("search", { q: event.query }), "data-stop": true }, clip(event.query)) : "a query that was not recorded",
      h("span", { class: "quiet" }, ` ${event.caller}, ${when(event.at)}, ${event.shown.length ? count(event.shown.length, "tool") : "no tool"}`)))));
}
