// Small charts in SVG. Their figures are also in a table or a text beside them.

import { h, number, svg } from "./dom.js";

const [WIDTH, HEIGHT] = [640, 160];
const [TOP, BOTTOM] = [22, 26]; // room for texts
const AXIS = 70; // room for the figures of the axis

// One column for each value; `parts` are [name, class, values] that stand on top of each other.
export function columns(labels, parts, caption) {
  const totals = labels.map((_, at) => parts.reduce((sum, [, , values]) => sum + values[at], 0));
  const most = Math.max(1, ...totals);
  const step = WIDTH / Math.max(1, labels.length);
  const bottoms = labels.map(() => 0);
  const bars = parts.flatMap(([name, kind, values]) => values.map((value, at) => {
    if (!value) return null;
    const tall = (value / most) * (HEIGHT - TOP - BOTTOM);
    bottoms[at] += tall;
    return svg("rect", { class: kind, x: at * step + step * 0.12, y: HEIGHT - BOTTOM - bottoms[at], width: step * 0.76, height: tall },
      svg("title", {}, `${labels[at]}: ${number(value)} ${name}`));
  }));
  return h("figure", {},
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": caption },
      svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }), bars,
      svg("text", { x: 0, y: HEIGHT - 5 }, labels[0] ?? ""),
      svg("text", { x: WIDTH, y: HEIGHT - 5, "text-anchor": "end" }, labels.at(-1) ?? ""),
      svg("text", { x: WIDTH, y: 14, "text-anchor": "end" }, `most: ${number(most)}`)),
    h("figcaption", { class: "legend" }, parts.map(([name, kind]) => h("span", { class: `key ${kind}` }, name))));
}

// One line for each series of [name, class, values], all from 0 to 1.
export function lines(labels, series, caption) {
  const x = (at) => (labels.length < 2 ? WIDTH / 2 : AXIS + (at / (labels.length - 1)) * (WIDTH - AXIS - 8));
  const y = (value) => TOP + (1 - value) * (HEIGHT - TOP - BOTTOM);
  return h("figure", {},
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": caption },
      [0, 0.5, 1].map((value) => [
        svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: y(value), y2: y(value) }),
        svg("text", { x: 0, y: y(value) - 4 }, `${100 * value} %`)]),
      series.map(([name, kind, values]) => {
        const points = values.map((value, at) => [x(at), y(value), at]).filter(([, , at]) => values[at] !== null);
        return [
          svg("polyline", { class: `line ${kind}`, points: points.map(([left, top]) => `${left},${top}`).join(" ") }),
          points.map(([left, top, at]) => svg("circle", { class: `dot ${kind}`, cx: left, cy: top, r: 3.5 },
            svg("title", {}, `${labels[at]}: ${name} ${number(100 * values[at], 1)} %`)))];
      }),
      svg("text", { x: 0, y: HEIGHT - 5 }, labels[0] ?? ""),
      labels.length > 1 && svg("text", { x: WIDTH, y: HEIGHT - 5, "text-anchor": "end" }, labels.at(-1))),
    h("figcaption", { class: "legend" }, series.map(([name, kind, values]) =>
      h("span", { class: `key ${kind}` }, `${name} ${number(100 * (values.findLast((value) => value !== null) ?? 0), 1)} %`))));
}

// Two dots for each measure, champion and candidate, with the interval of their difference around the candidate.
export function pairs(rows, caption) {
  const [left, width, row] = [120, 640, 34];
  const x = (value) => left + Math.max(0, Math.min(1, value)) * (width - left - 40);
  const height = rows.length * row + 22;
  return h("figure", {},
    svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": caption },
      [0, 0.5, 1].map((value) => [
        svg("line", { class: "axis", x1: x(value), x2: x(value), y1: 0, y2: height - 18 }),
        svg("text", { x: x(value), y: height - 4, "text-anchor": "middle" }, `${100 * value} %`)]),
      rows.map(({ name, champion, candidate, interval }, at) => {
        const middle = at * row + row / 2;
        return [
          svg("text", { x: left - 8, y: middle + 4, "text-anchor": "end" }, name),
          svg("line", { class: "whisker", x1: x(champion + interval[0]), x2: x(champion + interval[1]), y1: middle, y2: middle }),
          svg("circle", { class: "champion", cx: x(champion), cy: middle, r: 6 },
            svg("title", {}, `champion ${number(100 * champion, 1)} %`)),
          svg("circle", { class: "bar", cx: x(candidate), cy: middle, r: 6 },
            svg("title", {}, `candidate ${number(100 * candidate, 1)} %`))];
      })),
    h("figcaption", { class: "legend" }, h("span", { class: "key champion" }, "champion"), h("span", { class: "key bar" }, "candidate"),
      h("span", {}, "line: 95 % interval of the difference")));
}
