// Drift: whether the traffic is still that of the champion's time, what changed, and what to do about it.

import { get, post } from "./api.js";
import { confirmed, copyable, count, h, linkTo, number, say, show, table, when } from "./dom.js";
import { report } from "./frame.js";

const STATES = { raised: ["changed", "badge bad"], quiet: ["as before", "badge good"], waiting: ["too few searches to compare", "badge"] };
const MAX_EXAMPLES = 3; // of a topic
const percent = (value) => `${number(100 * value, 1)} %`;

export function drawDrift(place) {
  const body = h("div");
  const refresh = async () => show(body, drawReport(await get("/v1/drift"), rollBack));
  const rollBack = async (champion) => {
    if (!(await confirmed(`Roll back ${champion}?`, "The former champion, or the recipe of the settings, will answer searches."))) return;
    try {
      const now = await post("/v1/rollback", { champion });
      say(`${now.champion ?? now.recipe} now serves searches.`, () => post("/v1/promote", { model: champion }).then(refresh).catch((error) => report(error, place)));
      await refresh();
    } catch (error) {
      report(error, place);
    }
  };
  return { element: h("section", { class: "card", "aria-label": "Drift", id: "drift" }, h("h2", {}, "Drift"), body), refresh };
}

function drawReport(drift, rollBack) {
  const [title, style] = STATES[drift.state];
  return [
    h("p", { id: "drift-state" }, h("span", { class: style }, title), " ",
      drift.message || (drift.state === "waiting" ? "The comparison begins when there are enough searches." : "The requests are like the earlier ones.")),
    drift.watched > 0 && h("p", { class: "quiet" }, `${count(drift.watched, "search", "searches")} since ${drift.champion} began to serve, compared with ${number(drift.reference)} before.`),
    drift.alarms.length > 0 && table([["what", ""], ["name", "name"], ["before", "number"], ["after", "number"], ["events", "number"], ["since", ""], ["now", ""]],
      drift.alarms.map((alarm) => [alarm.what, alarm.name, percent(alarm.before), percent(alarm.after), number(alarm.count), when(alarm.since), alarm.over ? "over" : "still so"]), "Changes"),
    drift.topics.length > 0 && [h("h3", {}, "New topics"), h("ul", { class: "plain" }, drift.topics.map((topic) => h("li", {},
      topic.examples.slice(0, MAX_EXAMPLES).map((text, at) => [at > 0 && " · ", h("a", { href: linkTo("search", { q: text }), "data-stop": true }, text)]),
      h("span", { class: "quiet" }, ` ${count(topic.size, "request")} of ${count(topic.callers, "caller")}`))))],
    Object.keys(drift.new_tools).length > 0 && [h("h3", {}, "Tools that are newly called"), h("ul", { class: "plain" },
      Object.entries(drift.new_tools).map(([id, calls]) => h("li", {}, copyable(id), h("span", { class: "quiet" }, ` ${count(calls, "call")}`))))],
    drift.advice.length > 0 && h("div", { class: "acts" },
      drift.advice.includes("repair") && h("a", { href: linkTo("journal", { event: "call" }) }, "See the calls that fail"),
      drift.advice.includes("learn") && h("span", {}, "Learn from the new requests: ", copyable("toolscout learn")),
      drift.advice.includes("rollback") && h("button", { type: "button", onclick: () => rollBack(drift.champion) }, "Roll back")),
  ];
}
