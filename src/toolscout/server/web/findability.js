// Quality: tools that synthetic queries do not find, pairs that are confused, and advice.

import { get } from "./api.js";
import { h, number, show, table } from "./dom.js";
import { remember, report } from "./frame.js";

const DEFAULT_TOOLS = 300;
const MAX_ROWS = 100; // rows of a table

export async function open(place, parameters) {
  const most = h("input", { type: "number", id: "most", min: 1, max: 1000, value: parameters.get("most") ?? DEFAULT_TOOLS });
  const body = h("div", { id: "lint", "aria-live": "polite" });
  const look = async (event) => {
    event?.preventDefault();
    remember(place, "findability", { most: most.value });
    const token = (body.token = {}); // an older answer does not draw over a newer one
    show(body, h("p", { class: "quiet" }, "Searching for each tool …"));
    try {
      const found = await get("/v1/lint", { most: most.value });
      if (body.token === token) show(body, drawn(found));
    } catch (error) {
      if (body.token === token) show(body);
      report(error, place);
    }
  };
  place.append(
    h("p", { class: "quiet" }, "Each tool is searched for with queries generated from its name and description. Nothing is journaled."),
    h("form", { class: "row", onsubmit: look }, h("label", { for: "most" }, "Tools to check", most), h("button", { class: "main" }, "Check")), body);
  if (parameters.has("most")) await look();
}

const named = (id) => h("a", { href: `#/catalogue?${new URLSearchParams({ tool: id })}`, "data-stop": true }, id);
const lines = (sentences) => sentences.map((each) => h("div", {}, each));

function drawn(found) {
  return [
    h("p", { id: "lint-summary" }, h("strong", {}, `${number(found.asked)} tools checked: `),
      `${number(found.hidden.length)} hard to find, ${number(found.confused.length)} pairs confused, ${number(found.silent.length)} without a description`),
    part("Hard to find", found.hidden, [["tool", ""], ["found", "number"], ["found instead", ""], ["cause", ""], ["advice", ""], ["example of a failed query", ""]],
      (each) => [named(each.tool), `${number(100 * each.found)} %`, lines(each.instead), lines(each.causes), lines(each.fixes),
        [each.missed, " ", h("a", { href: `#/search?${new URLSearchParams({ q: each.missed, why: each.tool })}` }, "Why not?")]]),
    part("Confused pairs", found.confused, [["tool", ""], ["confused with", ""], ["times", "number"], ["", ""], ["advice", ""]],
      (each) => [named(each.one), named(each.other), number(each.times), each.twins ? "same text" : "", each.fix]),
    part("No description", found.silent, [["tool", ""], ["advice", ""]], (each) => [named(each), "Add a description."]),
  ];
}

function part(title, found, columns, cells) {
  if (!found.length) return null;
  return h("section", { class: "card" }, h("h2", {}, title), table(columns, found.slice(0, MAX_ROWS).map(cells), title),
    found.length > MAX_ROWS && h("p", { class: "quiet" }, `And ${number(found.length - MAX_ROWS)} more. Run toolscout lint to list all.`));
}
