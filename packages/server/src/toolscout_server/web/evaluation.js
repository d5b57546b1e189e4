// Benchmark results: one dataset and metric, with a bar and a 95 % interval for each label.

import { get } from "./api.js";
import { count, h, isNarrow, number, show, svg, table } from "./dom.js";
import { remember } from "./frame.js";

const ROW = 26;
const NARROW_BARS = 15; // the table has all

export async function open(place, parameters) {
  const { results, problems } = await get("/v1/results");
  if (!results.length) {
    place.append(h("p", { class: "quiet" }, "The folder holds no results."));
    return;
  }
  const datasets = [...new Set(results.map((each) => each.dataset))];
  const metrics = [...new Set(results.flatMap((each) => Object.keys(each.metrics)))];
  const select = (id, values, preferred) => {
    const found = h("select", { id }, values.map((each) => h("option", { value: each }, each)));
    found.value = values.includes(preferred) ? preferred : values[0];
    return found;
  };
  const dataset = select("dataset", datasets, parameters.get("dataset"));
  const metric = select("metric", metrics, parameters.get("metric") ?? "ndcg@5");
  const body = h("div");
  const redraw = () => {
    remember(place, "evaluation", { dataset: dataset.value, metric: metric.value });
    const held = results.filter((each) => each.dataset === dataset.value && metric.value in each.metrics);
    show(body, drawn(held.sort((a, b) => b.metrics[metric.value] - a.metrics[metric.value]), metric.value));
  };
  dataset.addEventListener("change", redraw);
  metric.addEventListener("change", redraw);
  place.append(h("div", { class: "row" }, h("label", { for: "dataset" }, "Dataset", dataset), h("label", { for: "metric" }, "Metric", metric)),
    problems.map((each) => h("p", { class: "note bad" }, `${each.entry}: ${each.message}`)), body);
  redraw();
}

function drawn(results, metric) {
  const first = results[0];
  const columns = [["label", ""], ["recipe", ""], ["split", ""], [`${metric} %`, "number"], ["95 % interval", "number"], ["p50 ms", "number"]];
  const percent = (value) => number(100 * value, 1);
  return [
    h("p", { class: "quiet" }, first ? `${count(first.n_queries, "query", "queries")} over ${count(first.n_tools, "tool")}` : "No result has this metric."),
    h("div", { class: "card" }, chart(results, metric)),
    h("div", { class: "card" }, table(columns, results.map((each) => [each.label, each.recipe, each.split, percent(each.metrics[metric]),
      each.ci95[metric] ? each.ci95[metric].map(percent).join(" – ") : "", number(each.latency_ms.p50, 2)]), "Figures")),
  ];
}

function chart(all, metric) {
  const [left, width] = isNarrow() ? [140, 340] : [190, 760];
  const results = isNarrow() ? all.slice(0, NARROW_BARS) : all;
  const x = (value) => left + value * (width - left - 44);
  const height = results.length * ROW + 24;
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width: "100%", role: "img", "aria-label": `${metric} of ${results.length} labels; the table below has the figures` },
    (isNarrow() ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1]).map((value) => [
      svg("line", { class: "axis", x1: x(value), x2: x(value), y1: 0, y2: height - 20 }),
      svg("text", { x: x(value), y: height - 5, "text-anchor": "middle" }, `${value * 100} %`)]),
    results.map((each, at) => {
      const [top, value, pair] = [at * ROW + 4, each.metrics[metric], each.ci95[metric]];
      return [
        svg("text", { x: left - 6, y: top + 13, "text-anchor": "end" }, each.label),
        svg("rect", { class: "bar", x: x(0), y: top, width: Math.max(0, x(value) - x(0)), height: ROW - 8, rx: 2 }),
        pair && svg("line", { class: "whisker", x1: x(pair[0]), x2: x(pair[1]), y1: top + 9, y2: top + 9 }),
        svg("text", { x: x(pair ? pair[1] : value) + 6, y: top + 13 }, number(100 * value, 1))];
    }));
}
