// The journal: trends, queries without a tool, filters, pages of events, import and export.

import { download, get, upload } from "./api.js";
import { clip, count, h, linkTo, number, say, show, table, when } from "./dom.js";
import { drawTrend } from "./home.js";
import { remember, report } from "./frame.js";

const FIELDS = [
  ["event", "Event", ["", "search", "call", "feedback"]],
  ["caller", "Caller"],
  ["text", "Query or tool contains"],
  ["since", "Since", "date"],
  ["until", "Until", "date"],
  ["search_id", "Search id"],
];
const SPANS = [7, 30, 90];
const EVENTS_PER_PAGE = 25;

export async function open(place, parameters) {
  const span = h("select", { id: "days" }, SPANS.map((days) => h("option", { value: days }, `${days} days`)));
  span.value = SPANS.includes(Number(parameters.get("days"))) ? parameters.get("days") : "30";
  const [facts, lists] = [h("div"), h("div", { class: "halves" })];
  const events = drawEvents(place, parameters, span, async () => showTrends(facts, lists, Number(span.value)));
  const redraw = () => showTrends(facts, lists, Number(span.value)).catch((error) => report(error, place));
  span.addEventListener("change", redraw);
  place.append(h("section", { class: "card", "aria-label": "Trend" }, h("div", { class: "row" }, h("label", { for: "days" }, "Span", span)), facts), lists, ...events.elements);
  await Promise.all([showTrends(facts, lists, Number(span.value)), events.load(true)]);
  if (parameters.has("without")) lists.scrollIntoView();
}

// --- trends ------------------------------------------------------------------------------------------------------------

async function showTrends(facts, lists, days) {
  const [trends, empty, abstained, stats] = await Promise.all([
    get("/v1/journal/trends", { days }), get("/v1/journal/unanswered", { days, limit: 12 }),
    get("/v1/journal/unanswered", { days, limit: 12, abstained: true }), get("/v1/journal/stats"),
  ]);
  const sum = (field) => trends.days.reduce((total, day) => total + day[field], 0);
  const searches = sum("searches");
  const share = (part, whole) => (whole ? ` (${number((100 * part) / whole)} %)` : "");
  show(facts,
    h("p", { id: "counts" }, `${count(searches, "search", "searches")}: ${number(sum("empty"))} found nothing${share(sum("empty"), searches)}, ${number(sum("abstained"))} abstained${share(sum("abstained"), searches)}. `,
      `${count(sum("calls"), "call")}, ${number(sum("failed_calls"))} failed${share(sum("failed_calls"), sum("calls"))}. ${count(sum("feedback"), "rating")}.`),
    h("p", { class: "quiet" }, `In all: ${count(stats.events.search, "search", "searches")} by ${count(stats.callers, "caller")}${stats.first ? `, ${when(stats.first)} to ${when(stats.last)}` : ""}.`),
    searches > 0 && drawTrend(trends.days, trends.since));
  show(lists,
    drawUnanswered("Nothing found", "No tool was found for these. Is a tool missing, or are words missing in its description?", empty.queries),
    drawUnanswered("Abstained", "These were turned away, because they need no tool, or none fits.", abstained.queries));
}

function drawUnanswered(title, about, queries) {
  return h("section", { class: "card", "aria-label": title }, h("h2", {}, title),
    h("p", { class: "quiet" }, queries.length ? about : "None in this span."),
    h("ul", { class: "plain" }, queries.map((row) => h("li", {},
      row.query ? h("a", { href: linkTo("search", { q: row.query }), "data-stop": true, title: "Ask again" }, clip(row.query)) : "a query that was not recorded",
      h("span", { class: "quiet" }, ` ${count(row.times, "time")}, last ${when(row.last)}${row.answer ? `, ${row.answer.replaceAll("_", " ")}` : ""}`)))));
}

// --- events ------------------------------------------------------------------------------------------------------------

function drawEvents(place, parameters, span, recount) {
  const inputs = Object.fromEntries(FIELDS.map(([name, , kind]) => [name, drawField(name, kind, parameters.get(name) ?? "")]));
  const list = h("div", { id: "events" });
  const older = h("button", { type: "button", hidden: true }, "Older events");
  const filters = () => Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value.trim()]));
  let before = null;
  let rows = [];
  const load = async (fresh) => {
    const token = (list.token = {}); // an older answer does not draw over a newer one
    try {
      if (fresh) {
        remember(place, "journal", { ...filters(), days: span.value === "30" ? "" : span.value, without: parameters.get("without") });
        [before, rows] = [null, []];
      }
      const page = await get("/v1/journal", { ...filters(), before, limit: EVENTS_PER_PAGE });
      if (list.token !== token) return;
      rows.push(...page.events);
      before = page.next;
      older.hidden = before === null;
      show(list, rows.length ? table(COLUMNS, rows.map(drawEvent), "List of events", fresh ? {} : { first: rows.length })
        : h("p", { class: "quiet" }, "No event matches these filters."));
    } catch (error) {
      report(error, place);
    }
  };
  older.addEventListener("click", () => load(false));
  const file = h("input", { type: "file", id: "import", accept: ".jsonl,.ndjson", onchange: () => importFile(file, place, async () => { await Promise.all([recount(), load(true)]); }) });
  return {
    load,
    elements: [
      h("section", { class: "card", "aria-labelledby": "events-title" }, h("h2", { id: "events-title" }, "Events"),
        h("form", { class: "row filters", onsubmit: (event) => { event.preventDefault(); load(true); } },
          FIELDS.map(([name, title]) => h("label", { for: `journal-${name}` }, title, inputs[name])), h("button", { class: "main" }, "Filter")),
        list, h("div", { class: "acts" }, older)),
      h("div", { class: "row" }, h("button", { type: "button", onclick: () => exportFile(place) }, "Export as JSON lines"), h("label", { for: "import" }, "Import", file))],
  };
}

async function importFile(file, place, done) {
  try {
    const taken = await upload("/v1/journal/import", file.files[0]);
    const bad = taken.bad_lines ? `. ${count(taken.bad_lines, "line was", "lines were")} skipped. The first: ${taken.problems[0].entry}: ${taken.problems[0].message}` : "";
    say(`${number(taken.new)} new events${bad}`);
    await done();
  } catch (error) {
    report(error, place);
  }
}

async function exportFile(place) {
  try {
    const url = URL.createObjectURL(await download("/v1/journal/export"));
    h("a", { href: url, download: "journal.jsonl" }).click();
    URL.revokeObjectURL(url);
  } catch (error) {
    report(error, place);
  }
}

function drawField(name, kind, value) {
  const id = `journal-${name}`;
  if (Array.isArray(kind)) {
    const select = h("select", { id }, kind.map((option) => h("option", { value: option }, option || "all")));
    select.value = kind.includes(value) ? value : "";
    return select;
  }
  return h("input", { id, type: kind ?? (name === "text" ? "search" : "text"), value, autocomplete: "off" });
}

const COLUMNS = [["when", "fixed"], ["event", "fixed"], ["caller", "caller"], ["query or tool", "name"], ["outcome", "outcome"]];
const list = (ids) => (Array.isArray(ids) ? ids : []).map((id) => h("div", {}, h("a", { href: linkTo("catalogue", { tool: id }) }, id)));

function drawEvent(event) {
  const link = (id) => h("a", { href: linkTo("journal", { search_id: id }) }, "its search");
  const describe = {
    search: () => [event.query ? h("a", { href: linkTo("search", { q: event.query }), title: "Ask again", "data-stop": true }, clip(event.query)) : "—",
      event.shown?.length ? h("details", {}, h("summary", {}, `${count(event.shown.length, "tool")} shown`), list(event.shown)) : (event.answer ?? "no tool was shown").replaceAll("_", " ")],
    call: () => [h("a", { href: linkTo("catalogue", { tool: event.tool }) }, event.tool),
      [event.ok ? "succeeded" : "failed", event.rank ? `, shown at rank ${event.rank}` : "", event.search_id ? [", after ", link(event.search_id)] : ""]],
    feedback: () => [link(event.search_id), [["right", event.good], ["wrong", event.bad], ["withdrawn", event.withdrawn]]
      .filter(([, ids]) => ids?.length).map(([name, ids]) => h("div", {}, `${name}: ${ids.join(", ")}`))],
  }[event.event] ?? (() => ["", ""]);
  return [when(event.at), event.event, event.caller, ...describe()];
}
