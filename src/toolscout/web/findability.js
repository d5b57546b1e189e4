// Findability: tools that requests made for them do not find, pairs that are taken for one another, and what would help.

import { get } from "./api.js";
import { remember, report } from "./app.js";
import { h, number, show, table } from "./dom.js";

const MOST = 300;
const SHOWN = 100; // rows of a table

export async function open(place, parameters) {
  const most = h("input", { type: "number", id: "most", min: 1, max: 1000, value: parameters.get("most") ?? MOST });
  const body = h("div", { id: "lint", "aria-live": "polite" });
  const look = async (event) => {
    event?.preventDefault();
    remember(place, "findability", { most: most.value });
    const token = (body.token = {}); // an older answer does not draw over a newer one
    show(body, h("p", { class: "quiet" }, "asking for each tool in three ways …"));
    try {
      const found = await get("/v1/lint", { most: most.value });
      if (body.token === token) show(body, drawn(found));
    } catch (error) {
      if (body.token === token) show(body);
      report(error, place);
    }
  };
  place.append(
    h("p", { class: "quiet" }, "Tools are asked for by requests made of their names and descriptions, as the catalogue is searched now. Nothing is journaled."),
    h("form", { class: "row", onsubmit: look }, h("label", { for: "most" }, "Tools to ask for", most), h("button", { class: "main" }, "Ask for them")), body);
  if (parameters.has("most")) await look();
}

const named = (id) => h("a", { href: `#/catalogue?${new URLSearchParams({ tool: id })}`, "data-stop": true }, id);
const lines = (sentences) => sentences.map((each) => h("div", {}, each));

function drawn(found) {
  return [
    h("p", { id: "lint-summary" }, h("strong", {}, `${number(found.asked)} tools asked for: `),
      `${number(found.hidden.length)} hard to find, ${number(found.confused.length)} pairs confused, ${number(found.silent.length)} without a description`),
    part("These tools can hardly be found", found.hidden, [["tool", ""], ["found", "number"], ["stood there instead", ""], ["why", ""], ["this would fix it", ""], ["a request that missed it", ""]],
      (each) => [named(each.tool), `${number(100 * each.found)} %`, lines(each.instead), lines(each.causes), lines(each.fixes),
        [each.missed, " ", h("a", { href: `#/search?${new URLSearchParams({ q: each.missed, why: each.tool })}` }, "why?")]]),
    part("These pairs are confused", found.confused, [["one", ""], ["the other", ""], ["times", "number"], ["", ""], ["this would fix it", ""]],
      (each) => [named(each.one), named(each.other), number(each.times), each.twins ? "they say the same" : "", each.fix]),
    part("These say nothing of themselves", found.silent, [["tool", ""], ["this would fix it", ""]], (each) => [named(each), "give it a description"]),
  ];
}

function part(title, found, columns, cells) {
  if (!found.length) return null;
  return h("section", { class: "card" }, h("h2", {}, title), table(columns, found.slice(0, SHOWN).map(cells), title),
    found.length > SHOWN && h("p", { class: "quiet" }, `and ${number(found.length - SHOWN)} more: toolscout lint says them all`));
}
