// Sources: operators add, sync and disable them, and approve definitions that wait.

import { get, post } from "./api.js";
import { confirmed, copyable, count, h, linkTo, number, say, show, table, when } from "./dom.js";
import { remember, report } from "./frame.js";

const WAITING_PER_PAGE = 10;

export async function open(place, parameters, me) {
  const [sources, waiting] = [h("section", { class: "card", "aria-labelledby": "sources-title" }), h("section", { class: "card", id: "waiting", "aria-labelledby": "waiting-title" })];
  const refresh = async () => {
    const [shelf, page] = await Promise.all([get("/v1/sources"), get("/v1/approvals", { limit: WAITING_PER_PAGE })]);
    show(sources, drawSources(shelf.sources, act));
    show(waiting, drawWaiting(page, act));
    waiting.hidden = page.total === 0;
  };
  // Runs one change after another, says what came of it, and draws the view again.
  const act = async (button, work) => {
    const text = button?.textContent;
    if (button) {
      button.disabled = true;
      button.textContent = "Working …";
    }
    try {
      await work();
    } catch (error) {
      report(error, place);
    }
    if (button) {
      button.disabled = false;
      button.textContent = text;
    }
    if (place.isConnected) await refresh().catch((error) => report(error, place));
  };
  remember(place, "sources", {});
  const form = drawAdd(act, parameters.has("add") || !me.tools);
  place.append(waiting, sources, form);
  await refresh();
  if (parameters.has("waiting") && !waiting.hidden) waiting.scrollIntoView();
  if (parameters.has("add")) form.querySelector("input")?.focus();
}

// --- the list ----------------------------------------------------------------------------------------------------------

function drawSources(sources, act) {
  const button = (text, label, work) => {
    const self = h("button", { type: "button", "aria-label": label, onclick: () => act(self, work) }, text);
    return self;
  };
  const enable = async (source, enabled) => {
    await post("/v1/sources/enable", { source, enabled });
    say(enabled ? `${source} is searched again.` : `${source} is no longer searched.`, () => act(null, () => enable(source, !enabled)));
  };
  const rows = sources.map((source) => [
    h("a", { href: linkTo("catalogue", source.state === "disabled" ? { source: source.name, state: "disabled" } : { source: source.name }), "data-stop": true }, source.name),
    source.kind, number(source.tools), describeState(source), when(source.read_at),
    h("div", { class: "acts" },
      source.kind !== "objects" && button("Sync", `Sync ${source.name}`, async () => say(describeChanges(await post("/v1/sources/sync", { sources: [source.name] })))),
      source.state === "disabled" ? button("Enable", `Enable ${source.name}`, () => enable(source.name, true))
        : button("Disable", `Disable ${source.name}`, () => enable(source.name, false)))]);
  const total = sources.reduce((sum, source) => sum + source.tools, 0);
  return [h("h2", { id: "sources-title" }, `${count(sources.length, "source")}, ${count(total, "tool")}`),
    rows.length ? table([["source", "name"], ["kind", ""], ["tools", "number"], ["state", ""], ["read", ""], ["action", "fixed"]], rows, "Sources")
      : h("p", { class: "quiet" }, "There is no source yet. Add one below."),
    rows.length > 1 && h("div", { class: "acts" }, button("Sync all", "Sync all sources", async () => say(describeChanges(await post("/v1/sources/sync", {})))))];
}

function describeState(source) {
  return [h("span", { class: source.state === "error" ? "badge bad" : source.state === "ok" ? "badge good" : "badge" }, source.state),
    source.problems > 0 && h("span", { class: "quiet" }, ` ${count(source.problems, "bad entry", "bad entries")}`),
    source.waiting > 0 && h("span", { class: "quiet" }, ` ${number(source.waiting)} waiting`),
    source.message && h("div", { class: "quiet" }, withoutName(source.message, source.name))];
}

const withoutName = (message, name) => (message.startsWith(`${name}: `) ? message.slice(name.length + 2) : message);

function describeChanges({ sources }) {
  if (!sources.length) return "Nothing was read: tools that were given as JSON have no source to read again.";
  const parts = sources.slice(0, 3).map((change) => {
    if (change.state === "error") return `${change.source} could not be read: ${withoutName(change.message, change.source)}`;
    const facts = [["new", change.new], ["changed", change.changed], ["gone", change.gone], ["waiting for approval", change.quarantined]].filter(([, amount]) => amount);
    return `${change.source}: ${facts.map(([name, amount]) => `${number(amount)} ${name}`).join(", ") || "nothing changed"}`;
  });
  return parts.join(". ") + (sources.length > 3 ? `. And ${count(sources.length - 3, "more source")}.` : ".");
}

// --- approvals ---------------------------------------------------------------------------------------------------------

function drawWaiting({ waiting, total }, act) {
  const approve = async (rows) => {
    const { approved } = await post("/v1/approvals", { approvals: rows.map(({ id, fingerprint }) => ({ id, fingerprint })) });
    say(approved === rows.length ? `Approved ${count(approved, "definition")}.` : `Approved ${number(approved)} of ${number(rows.length)}. The others changed in the meantime: read them again.`);
  };
  return [h("h2", { id: "waiting-title" }, `${count(total, "definition waits", "definitions wait")} for approval`),
    h("p", { class: "quiet" }, "Nobody can find or call these tools until you approve them. Read what changed first."),
    waiting.map((row) => {
      const button = h("button", { type: "button", class: "main", "aria-label": `Approve ${row.id}`, onclick: () => act(button, async () => {
        if (await confirmed(`Approve ${row.id}?`, "Agents can then find and call it as it is defined now.")) await approve([row]);
      }) }, "Approve");
      return h("article", { class: "waiting" },
        h("div", {}, copyable(row.id), row.new && h("span", { class: "badge" }, "new")),
        h("p", {}, `Since ${when(row.since)}: ${row.why}.`),
        row.findings.map((text) => h("p", { class: "note bad" }, `Suspicious: ${text}`)),
        h("details", { open: waiting.length < 3 }, h("summary", {}, row.new ? "Its definition" : "What changed"),
          h("pre", { tabindex: "0", "aria-label": `Definition of ${row.id}` }, row.changes.map((line) =>
            h("span", { class: { "+": "added", "-": "removed", " ": "context" }[line[0]] ?? "field" }, `${line}\n`)))),
        row.cut ? h("p", { class: "note" }, "It is too long to be shown here. Read and approve it with  toolscout approve.") : h("div", { class: "acts" }, button));
    }),
    total > waiting.length && h("p", { class: "quiet" }, `And ${number(total - waiting.length)} more. Approve these first, or run toolscout approve.`)];
}

// --- a new source ------------------------------------------------------------------------------------------------------

function drawAdd(act, isOpen) {
  const locator = h("input", { type: "url", id: "add-locator", placeholder: "https://example.com/openapi.json", autocomplete: "off" });
  const name = h("input", { type: "text", id: "add-name", autocomplete: "off" });
  const pasted = h("textarea", { id: "add-tools", rows: 5, spellcheck: "false", placeholder: '[{"name": "…", "description": "…", "parameters": {…}}]' });
  const button = h("button", { class: "main" }, "Add");
  const add = async () => {
    const body = { name: name.value.trim() };
    if (pasted.value.trim()) body.tools = parseTools(pasted.value);
    else body.locator = locator.value.trim();
    const changes = await post("/v1/sources/add", body);
    say(describeChanges(changes));
    for (const input of [locator, name, pasted]) input.value = "";
  };
  return h("details", { class: "card", id: "add", open: isOpen }, h("summary", {}, "Add a source"),
    h("p", { class: "quiet" }, "The address of an MCP server, an OpenAPI document or an agent card; or function schemas as JSON. Files, commands and Python modules are added on the machine of the service, with  toolscout add."),
    h("form", { onsubmit: (event) => { event.preventDefault(); act(button, add); } },
      h("div", { class: "row" }, h("label", { class: "wide", for: "add-locator" }, "Address", locator), h("label", { for: "add-name" }, "Name (optional for an address)", name)),
      h("label", { class: "field", for: "add-tools" }, "Or tools as JSON", pasted), h("div", { class: "acts" }, button)));
}

function parseTools(text) {
  try {
    const value = JSON.parse(text);
    return Array.isArray(value) ? value : [value];
  } catch (error) {
    throw new Error(`This is not JSON: ${error.message}`);
  }
}
