// The journal: counts, filters, pages of events, import and export.

import { download, get, upload } from "./api.js";
import { h, number, say, show, table } from "./dom.js";
import { remember, report } from "./frame.js";

const FIELDS = [
  ["event", "Event", ["", "search", "call", "feedback"]],
  ["caller", "Caller"],
  ["text", "Query or tool contains"],
  ["since", "Since", "date"],
  ["until", "Until", "date"],
  ["search_id", "Search id"],
];

export async function open(place, parameters) {
  const inputs = Object.fromEntries(FIELDS.map(([name, , kind]) => [name, field(name, kind, parameters.get(name) ?? "")]));
  const body = h("tbody");
  const more = h("button", { type: "button", hidden: true }, "Older events");
  const empty = h("p", { class: "quiet", hidden: true }, "No event matches these filters.");
  const counts = h("p", { id: "counts" });
  const filters = () => Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value.trim()]));
  let before = null;
  const load = async (fresh) => {
    const token = (body.token = {}); // an older answer does not draw over a newer one
    try {
      if (fresh) {
        remember(place, "journal", filters());
        before = null;
      }
      const page = await get("/v1/journal", { ...filters(), before, limit: 50 });
      if (body.token !== token) return;
      if (fresh) show(body);
      body.append(...page.events.map(draw));
      before = page.next;
      more.hidden = before === null;
      empty.hidden = body.childElementCount > 0;
    } catch (error) {
      report(error, place);
    }
  };
  const count = async () => {
    const stats = await get("/v1/journal/stats");
    counts.textContent = `${number(stats.events.search)} searches, ${number(stats.events.call)} calls, ${number(stats.events.feedback)} ratings by ${number(stats.callers)} ${stats.callers === 1 ? "caller" : "callers"}` +
      (stats.first ? `, ${when(stats.first)} to ${when(stats.last)}` : "");
  };
  const file = h("input", { type: "file", id: "import", accept: ".jsonl,.ndjson", onchange: async () => {
    try {
      const taken = await upload("/v1/journal/import", file.files[0]);
      say(`${number(taken.new)} new events` + (taken.bad_lines ? `. ${number(taken.bad_lines)} lines were skipped. The first: ${taken.problems[0].entry}: ${taken.problems[0].message}` : ""));
      await Promise.all([count(), load(true)]);
    } catch (error) {
      report(error, place);
    }
  } });
  const save = async () => {
    try {
      const url = URL.createObjectURL(await download("/v1/journal/export"));
      h("a", { href: url, download: "journal.jsonl" }).click();
      URL.revokeObjectURL(url);
    } catch (error) {
      report(error, place);
    }
  };
  more.addEventListener("click", () => load(false));
  place.append(counts,
    h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); load(true); } },
      FIELDS.map(([name, title]) => h("label", { for: `journal-${name}` }, title, inputs[name])), h("button", { class: "main" }, "Filter")),
    h("div", { class: "card scroll", tabindex: "0", role: "region", "aria-label": "Events" },
      h("table", { id: "events" }, h("thead", {}, h("tr", {}, ["when", "event", "caller", "query or tool", "outcome"].map((name) => h("th", { scope: "col" }, name)))), body), empty),
    h("div", { class: "row" }, more, h("button", { type: "button", onclick: save }, "Export as JSON lines"), h("label", { for: "import" }, "Import", file)));
  await Promise.all([count(), load(true)]);
}

function field(name, kind, value) {
  const id = `journal-${name}`;
  if (Array.isArray(kind)) {
    const select = h("select", { id }, kind.map((each) => h("option", { value: each }, each || "all")));
    select.value = kind.includes(value) ? value : "";
    return select;
  }
  return h("input", { id, type: kind ?? (name === "text" ? "search" : "text"), value, autocomplete: "off" });
}

const when = (at) => String(at).slice(0, 19).replace("T", " ");
const ids = (found) => (Array.isArray(found) ? found : []).join(", ");

function draw(event) {
  const link = (id) => h("a", { href: `#/journal?${new URLSearchParams({ search_id: id })}` }, "search");
  const what = {
    search: () => [event.query || "—", ids(event.shown) || "no tool was shown"],
    call: () => [event.tool, [event.ok ? "succeeded" : "failed", event.rank ? `, shown at rank ${event.rank}` : "", event.search_id ? [" – ", link(event.search_id)] : ""]],
    feedback: () => [link(event.search_id), [ids(event.good) && `right: ${ids(event.good)} `, ids(event.bad) && `wrong: ${ids(event.bad)}`]],
  }[event.event] ?? (() => ["", ""]);
  const [subject, outcome] = what();
  return h("tr", {}, [when(event.at), event.event, event.caller].map((each) => h("td", { class: "fixed" }, each)), h("td", {}, subject), h("td", {}, outcome));
}
